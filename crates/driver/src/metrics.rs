//! Counters that a worker's driver publishes for other threads.

use crate::blocking::BlockingThreads;
use peregrine_metrics::{Counter, Gauge, Histogram, HistogramSnapshot};
use std::sync::OnceLock;
use std::time::Duration;

/// The bucket bounds of iteration times, in nanoseconds.
pub const ITERATION_BOUNDS: [u64; 13] = [
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
/// A driver leaves counters that it does not support at zero. Values are published at the end of
/// each iteration.
#[derive(Debug, Default)]
// Two workers must not write to the same cache line, or to one that is prefetched with it.
#[repr(C, align(128))]
pub struct DriverMetrics {
    /// See [`DriverStats::syscalls`](crate::DriverStats::syscalls); on tokio, without the waits.
    pub syscalls: Counter,
    /// See [`DriverStats::buffers_exhausted`](crate::DriverStats::buffers_exhausted).
    pub buffers_exhausted: Counter,
    /// See [`DriverStats::in_flight`](crate::DriverStats::in_flight).
    pub in_flight: Gauge,
    /// How often completions did not fit into the kernel's completion queue.
    pub cq_overflows: Counter,
    /// The memory of the receive buffers used so far, in bytes.
    pub buffer_bytes: Gauge,
    /// The time from waking up to the next sleep, or to the next poll of the kernel: the last task
    /// of such an iteration has waited for about that long.
    pub iterations: Histogram<{ ITERATION_BOUNDS.len() }>,
    blocking_threads: OnceLock<BlockingThreads>,
}

impl DriverMetrics {
    /// Records an iteration of this length.
    pub fn record_iteration(&self, time: Duration) {
        let nanoseconds =
            time.as_secs().saturating_mul(1_000_000_000) + u64::from(time.subsec_nanos());
        self.iterations.observe(nanoseconds, &ITERATION_BOUNDS);
    }

    /// Publishes the blocking threads of the worker's runtime. Only the first call has an effect.
    pub fn set_blocking_threads(&self, threads: BlockingThreads) {
        // Fails only on a second call, and a driver starts only once.
        let _ = self.blocking_threads.set(threads);
    }

    /// The number of threads for blocking functions, including idle ones.
    #[must_use]
    pub fn blocking_threads(&self) -> usize {
        self.blocking_threads.get().map_or(0, BlockingThreads::count)
    }

    /// The histogram of iteration times so far.
    #[must_use]
    pub fn iteration_durations(&self) -> HistogramSnapshot {
        let mut buckets = HistogramSnapshot::default();
        self.iterations.read_into(&mut buckets);
        buckets
    }
}
