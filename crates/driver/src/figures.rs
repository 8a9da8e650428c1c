//! What a worker's driver shows to other threads.

use crate::threads::Threads;
use peregrine_metrics::{Buckets, Count, Histogram, Level};
use std::sync::OnceLock;
use std::time::Duration;

/// Bounds of the times of turns, in nanoseconds.
pub const TURN_BOUNDS: [u64; 13] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
];

/// Counts of one worker's driver, which any thread may read at any time. The worker alone writes.
///
/// A driver shows what it knows and leaves the rest at zero. What it shows may be as old as its last
/// turn.
#[derive(Debug, Default)]
// No two workers write to one line of the cache, or to one that is fetched with it.
#[repr(C, align(128))]
pub struct Figures {
    /// See [`Counters::enters`](crate::Counters::enters).
    pub enters: Count,
    /// See [`Counters::buffers_exhausted`](crate::Counters::buffers_exhausted).
    pub buffers_exhausted: Count,
    /// See [`Counters::in_flight`](crate::Counters::in_flight).
    pub in_flight: Level,
    /// Times that completions did not fit into the place where the kernel puts them.
    pub overflows: Count,
    /// Memory of the receive buffers that were in use so far.
    pub buffer_bytes: Level,
    /// From waking to the next sleep, or to the next look at the kernel: what is ready last in such a turn
    /// has waited for about that long.
    pub turns: Histogram<{ TURN_BOUNDS.len() }>,
    threads: OnceLock<Threads>,
}

impl Figures {
    /// A turn took so long.
    pub fn turn(&self, time: Duration) {
        let time = time.as_secs().saturating_mul(1_000_000_000) + u64::from(time.subsec_nanos());
        self.turns.note(time, &TURN_BOUNDS);
    }

    /// Shows the blocking threads of the worker's runtime, once.
    pub fn show_threads(&self, threads: Threads) {
        // A driver begins once.
        let _ = self.threads.set(threads);
    }

    /// Threads for blocking functions, idle ones among them.
    #[must_use]
    pub fn blocking_threads(&self) -> usize {
        self.threads.get().map_or(0, Threads::count)
    }

    /// The times of turns so far.
    #[must_use]
    pub fn turn_times(&self) -> Buckets {
        let mut buckets = Buckets::default();
        self.turns.read(&mut buckets);
        buckets
    }
}
