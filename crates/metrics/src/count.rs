//! Numbers that one thread writes and any thread reads.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A count that only grows.
///
/// Only **one** thread may write to it, which makes an addition as cheap as to a plain number. Additions
/// of two threads at a time would be lost.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Nothing counted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `more`.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Replaces the count by one that was kept elsewhere.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// The count now, for any thread.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many there are of something at present. What holds for the writer of a [`Count`] holds here.
#[derive(Debug, Default)]
pub struct Level(AtomicI64);

impl Level {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Adds `more`, which may be negative.
    #[inline]
    pub fn add(&self, more: i64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Replaces the level by one that was kept elsewhere.
    #[inline]
    pub fn set(&self, level: i64) {
        self.0.store(level, Ordering::Relaxed);
    }

    /// The level now, for any thread.
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
    fn what_one_thread_counts_another_one_reads() {
        let (count, level) = (Count::new(), Level::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..1000).for_each(|_| count.add(2));
                level.add(5);
                level.add(-2);
            });
        });
        assert_eq!((count.get(), level.get()), (2000, 3));
        count.set(7);
        assert_eq!(count.get(), 7);
    }
}
