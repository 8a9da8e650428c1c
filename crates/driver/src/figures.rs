//! Counters that a worker's driver publishes for other threads.

use crate::threads::Threads;
use peregrine_metrics::{Buckets, Count, Histogram, Level};
use std::sync::OnceLock;
use std::time::Duration;

/// The bucket bounds of turn times, in nanoseconds.
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

/// The counters of one worker's driver. Any thread may read them at any time; only the worker
/// writes.
///
/// A driver leaves counters that it does not support at zero. Values may be as old as its last
/// turn.
#[derive(Debug, Default)]
// Two workers must not write to the same cache line, or to one that is prefetched with it.
#[repr(C, align(128))]
pub struct Figures {
    /// See [`Counters::enters`](crate::Counters::enters).
    pub enters: Count,
    /// See [`Counters::buffers_exhausted`](crate::Counters::buffers_exhausted).
    pub buffers_exhausted: Count,
    /// See [`Counters::in_flight`](crate::Counters::in_flight).
    pub in_flight: Level,
    /// How often completions did not fit into the kernel's completion queue.
    pub overflows: Count,
    /// The memory of the receive buffers used so far, in bytes.
    pub buffer_bytes: Level,
    /// The time from waking up to the next sleep, or to the next poll of the kernel: the last task
    /// of such a turn has waited for about that long.
    pub turns: Histogram<{ TURN_BOUNDS.len() }>,
    threads: OnceLock<Threads>,
}

impl Figures {
    /// Records a turn of this length.
    pub fn turn(&self, time: Duration) {
        let time = time.as_secs().saturating_mul(1_000_000_000) + u64::from(time.subsec_nanos());
        self.turns.note(time, &TURN_BOUNDS);
    }

    /// Publishes the blocking threads of the worker's runtime, once.
    pub fn show_threads(&self, threads: Threads) {
        // A driver starts only once.
        let _ = self.threads.set(threads);
    }

    /// The number of threads for blocking functions, including idle ones.
    #[must_use]
    pub fn blocking_threads(&self) -> usize {
        self.threads.get().map_or(0, Threads::count)
    }

    /// The histogram of turn times so far.
    #[must_use]
    pub fn turn_times(&self) -> Buckets {
        let mut buckets = Buckets::default();
        self.turns.read(&mut buckets);
        buckets
    }
}
