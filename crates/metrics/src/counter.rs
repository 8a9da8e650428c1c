//! Numbers that one thread writes and any thread reads.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A counter that only grows.
///
/// Only **one** thread may write to it, which makes an addition as cheap as for a plain integer.
/// Concurrent additions by two threads could be lost.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `amount`.
    #[inline]
    pub fn add(&self, amount: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Sets the counter to a value that was counted elsewhere.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Returns the current value. Any thread can call this.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A gauge: the current number of something. The rule for writers of a [`Counter`] applies here as
/// well.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Creates a gauge at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Adds `amount`, which may be negative.
    #[inline]
    pub fn add(&self, amount: i64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }

    /// Sets the gauge to a value that was counted elsewhere.
    #[inline]
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the current value. Any thread can call this.
    #[inline]
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_by_another_thread() {
        let (counter, gauge) = (Counter::new(), Gauge::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..1000).for_each(|_| counter.add(2));
                gauge.add(5);
                gauge.add(-2);
            });
        });
        assert_eq!((counter.get(), gauge.get()), (2000, 3));
        counter.set(7);
        assert_eq!(counter.get(), 7);
    }
}
