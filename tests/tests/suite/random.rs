//! Thousands of random server runs ("lives"), in simulated networks with every kind of fault.
//!
//! A failure names its seed; `life(seed)` repeats it exactly.

use peregrine_tests::multiplied;
use peregrine_tests::server::hours;
use peregrine_tests::server::random::life;
use std::collections::BTreeMap;

/// The most lives that a failure message lists.
const WRONG_MAX: usize = 40;

/// Every second seed, so that two tests share the work.
fn half(seeds: std::ops::Range<u64>, first: usize) -> impl ExactSizeIterator<Item = u64> {
    let seeds: Vec<_> = multiplied(seeds).skip(first).step_by(2).collect();
    seeds.into_iter()
}

/// Runs the lives of these seeds. Returns how often connections ended in each way.
fn lives(seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut endings = BTreeMap::new();
    for seed in seeds {
        let trace = life(seed);
        for (name, count) in trace.snapshot.closed {
            *endings.entry(name).or_default() += count;
        }
    }
    endings
}

/// The lives must cover every kind of end, or they prove little.
fn assert_eventful(endings: &BTreeMap<&'static str, u64>) {
    for name in [
        "connection-close",
        "peer-closed",
        "peer-aborted",
        "rejected",
        "drained",
        "io-error",
        "force-closed",
    ] {
        let count = endings.get(name).copied().unwrap_or(0);
        assert!(count > 0, "no connection ended by {name}: {endings:?}");
    }
}

#[test]
fn lives_with_even_seeds_go_well() {
    assert_eventful(&lives(half(0..1600, 0)));
}

#[test]
fn lives_with_odd_seeds_go_well() {
    assert_eventful(&lives(half(0..1600, 1)));
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
fn lives_of_hours(seeds: impl ExactSizeIterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let (mut kinds, mut wrong) = (BTreeMap::new(), Vec::new());
    let count = seeds.len();
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
fn lives_of_hours_with_even_seeds_go_well() {
    let kinds = lives_of_hours(half(0..800, 0));
    assert!(kinds.len() == 19 && kinds.values().all(|count| *count > 5), "{kinds:?}");
}

#[test]
fn lives_of_hours_with_odd_seeds_go_well() {
    lives_of_hours(half(0..800, 1));
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
        std::thread::spawn(move || lives_of_hours((from..to).collect::<Vec<_>>().into_iter()))
    };
    let living: Vec<_> = (0..threads).map(begin).collect();
    let wrong = living.into_iter().filter_map(|thread| thread.join().err()).count();
    assert_eq!(wrong, 0, "threads in which a life failed");
}
