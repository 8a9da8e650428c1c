//! Thousands of random server runs ("lives"), in simulated networks with every kind of fault.
//!
//! A failure names its seed; `life(seed)` repeats it exactly.

use peregrine_tests::server::hours;
use peregrine_tests::server::random::life;
use std::collections::BTreeMap;

/// The most lives that a failure message lists.
const WRONG_MAX: usize = 40;

/// Runs the lives of these seeds. Returns how often connections ended in each way.
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

/// The lives must cover every kind of end, or they prove little.
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

/// Runs the long lives of these seeds. Returns how many peers of each kind there were.
///
/// # Panics
/// If an assertion failed in some of them. The message names the first of them.
fn lives_of_hours(seeds: std::ops::Range<u64>) -> BTreeMap<&'static str, u64> {
    let (mut kinds, mut wrong) = (BTreeMap::new(), Vec::new());
    let count = seeds.end - seeds.start;
    for seed in seeds {
        // A life that does not complete panics.
        match std::panic::catch_unwind(|| hours::life(seed)) {
            Ok(trace) => {
                for (kind, count) in trace.kinds {
                    *kinds.entry(kind).or_default() += count;
                }
                if count == 1 {
                    wrong.extend(trace.faults);
                } else if let Some(fault) = trace.faults.first() {
                    wrong.push(format!("seed {seed}: {fault} ({} faults)", trace.faults.len()));
                }
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                wrong.push(text.unwrap_or_else(|| format!("seed {seed}: a panic")));
            }
        }
    }
    let shown = wrong.len().min(WRONG_MAX);
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong[..shown].join("\n"));
    kinds
}

#[test]
fn the_first_thousand_lives_of_hours_go_well() {
    let kinds = lives_of_hours(0..1000);
    assert!(kinds.len() == 19 && kinds.values().all(|count| *count > 20), "{kinds:?}");
}

#[test]
fn the_second_thousand_lives_of_hours_go_well() {
    lives_of_hours(1000..2000);
}

#[test]
fn the_same_seed_gives_the_same_life_of_hours() {
    for seed in 4000..4050 {
        assert_eq!(hours::life(seed), hours::life(seed), "seed {seed}");
    }
}

/// For a night: `LIVES=100000 FIRST_LIFE=0 cargo test --release --test random -- --ignored`, with
/// one thread per processor.
#[test]
#[ignore = "takes hours"]
fn as_many_lives_of_hours_as_one_likes_go_well() {
    let number = |name, other: u64| {
        std::env::var(name).map_or(other, |text| text.parse().expect("the text is a number"))
    };
    let (first, count) = (number("FIRST_LIFE", 0), number("LIVES", 100_000));
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let share = count.div_ceil(threads);
    let begin = |thread: u64| {
        let from = first + thread * share;
        let to = (from + share).min(first + count);
        std::thread::spawn(move || lives_of_hours(from..to))
    };
    let living: Vec<_> = (0..threads).map(begin).collect();
    let wrong = living.into_iter().filter_map(|thread| thread.join().err()).count();
    assert_eq!(wrong, 0, "threads in which a life failed");
}
