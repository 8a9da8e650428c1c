//! Accounts for the memory that a worker holds for its peers.
//!
//! Each worker is a thread, and each thread has one counter. Memory that grows with the bytes that
//! peers send or leave unread is charged to it by its owner: pipes, collected bodies, buffers of
//! busy connections. The counters are thread-local numbers, without locks or atomics.
//!
//! Memory that handlers allocate is not counted.

use std::cell::Cell;
use std::marker::PhantomData;

/// No limit.
const UNLIMITED: usize = usize::MAX;

thread_local! {
    static RESERVED: Cell<usize> = const { Cell::new(0) };
    static LIMIT: Cell<usize> = const { Cell::new(UNLIMITED) };
}

/// The number of bytes charged to this thread.
#[inline]
#[must_use]
pub fn reserved() -> usize {
    RESERVED.get()
}

/// Sets how many bytes this thread may hold; `None` means no limit.
pub fn set_limit(bytes_max: Option<usize>) {
    LIMIT.set(bytes_max.unwrap_or(UNLIMITED));
}

/// How close this thread is to its memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Below three quarters of the limit: no restrictions.
    #[default]
    Low,
    /// From three quarters: nothing is started that may become large.
    Moderate,
    /// From seven eighths: nothing new is started.
    High,
    /// Above fifteen sixteenths: nothing may grow, except for work that is never refused.
    Critical,
    /// Above the limit: nothing may grow at all.
    OverLimit,
}

/// How close this thread is to its memory limit.
#[inline]
#[must_use]
pub fn pressure() -> MemoryPressure {
    let (reserved, most) = (RESERVED.get(), LIMIT.get());
    match () {
        () if reserved < most - most / 4 => MemoryPressure::Low,
        () if reserved < most - most / 8 => MemoryPressure::Moderate,
        () if reserved <= most - most / 16 => MemoryPressure::High,
        () if reserved <= most => MemoryPressure::Critical,
        () => MemoryPressure::OverLimit,
    }
}

/// Bytes charged to this thread until this is dropped. It is not `Send`.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    size: usize,
    not_send: PhantomData<*const ()>,
}

impl MemoryReservation {
    /// A charge of no bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { size: 0, not_send: PhantomData }
    }

    /// A charge of `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut charge = Self::empty();
        charge.resize(bytes);
        charge
    }

    /// Changes the charge to this number of bytes.
    #[inline]
    pub fn resize(&mut self, bytes: usize) {
        if bytes != self.size {
            RESERVED.set(RESERVED.get().wrapping_sub(self.size).wrapping_add(bytes));
            self.size = bytes;
        }
    }

    /// The number of bytes charged.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

impl Drop for MemoryReservation {
    #[inline]
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_counts_until_it_is_dropped() {
        let before = reserved();
        let mut charge = MemoryReservation::new(100);
        let other = MemoryReservation::new(1);
        charge.resize(20);
        assert_eq!((reserved() - before, charge.size()), (21, 20));
        drop(charge);
        assert_eq!(reserved() - before, 1);
        drop(other);
        assert_eq!(reserved(), before);
    }

    #[test]
    fn the_nearer_the_ceiling_the_less_is_begun() {
        set_limit(Some(800));
        let mut charge = MemoryReservation::empty();
        let fillings = [0, 599, 600, 699, 700, 750, 751, 800, 801].map(|bytes| {
            charge.resize(bytes);
            pressure()
        });
        use MemoryPressure::{Critical, High, Low, Moderate, OverLimit};
        assert_eq!(
            fillings,
            [Low, Low, Moderate, Moderate, High, High, Critical, Critical, OverLimit]
        );
        set_limit(None);
        assert_eq!(pressure(), Low);
    }

    #[test]
    fn other_threads_have_accounts_of_their_own() {
        let _charge = MemoryReservation::new(7);
        let elsewhere = std::thread::spawn(reserved).join().expect("the thread does not panic");
        assert_eq!(elsewhere, 0);
    }
}
