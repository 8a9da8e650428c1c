//! Thousands of random lives of a server, in simulated networks that do what they can to break it.
//!
//! A failure names its seed; `life(seed)` repeats it exactly.

use peregrine_tests::server::random::life;
use std::collections::BTreeMap;

/// Lives the lives of some seeds. How often connections ended in each way.
fn lives(seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, u64> {
    let mut endings = BTreeMap::new();
    for seed in seeds {
        let trace = life(seed);
        for (name, count) in trace.snapshot.ended {
            *endings.entry(name).or_default() += count;
        }
    }
    endings
}

/// The lives must meet everything that can happen, or they prove little.
fn assert_eventful(endings: &BTreeMap<&'static str, u64>) {
    for name in ["agreed", "peer-closed", "peer-left", "rejected", "drained", "broken", "cut"] {
        let count = endings.get(name).copied().unwrap_or(0);
        assert!(count > 0, "no connection ended by {name}: {endings:?}");
    }
}

#[test]
fn the_first_two_thousand_lives_go_well() {
    assert_eventful(&lives(0..2000));
}

#[test]
fn the_second_two_thousand_lives_go_well() {
    assert_eventful(&lives(2000..4000));
}

#[test]
fn the_same_seed_gives_the_same_life() {
    for seed in 4000..4100 {
        assert_eq!(life(seed), life(seed), "seed {seed}");
    }
    assert_ne!(life(4000), life(4001));
}
