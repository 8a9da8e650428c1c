//! Accounts for the memory that a worker holds for its peers.
//!
//! Each worker is normally a thread, and each thread has one counter. What grows with the bytes
//! that peers send or leave unread (pipes, collected bodies, buffers of busy connections) charges
//! its memory to the counter. The counters are thread-local numbers, without locks or atomics.
//!
//! Memory that handlers allocate is not counted.

use std::cell::Cell;
use std::marker::PhantomData;

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

/// Sets how many bytes this thread may hold; `None` means no limit. Only [`pressure`] uses the
/// limit: a reservation beyond it does not fail.
pub fn set_limit(bytes_max: Option<usize>) {
    LIMIT.set(bytes_max.unwrap_or(UNLIMITED));
}

/// How close this thread is to its memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Below three quarters of the limit: no restrictions.
    #[default]
    Low,
    /// From three quarters: no work is started that may need much memory.
    Moderate,
    /// From seven eighths: no new work is started.
    High,
    /// Above fifteen sixteenths: no buffer may grow, except those of connections that are new or
    /// have a request in progress that is never refused, such as a health check.
    Critical,
    /// Above the limit: no buffer may grow at all.
    OverLimit,
}

/// How close this thread is to its memory limit.
#[inline]
#[must_use]
pub fn pressure() -> MemoryPressure {
    let (reserved, limit) = (RESERVED.get(), LIMIT.get());
    match () {
        () if reserved < limit - limit / 4 => MemoryPressure::Low,
        () if reserved < limit - limit / 8 => MemoryPressure::Moderate,
        () if reserved <= limit - limit / 16 => MemoryPressure::High,
        () if reserved <= limit => MemoryPressure::Critical,
        () => MemoryPressure::OverLimit,
    }
}

/// Charges a number of bytes to this thread until it is dropped. It is only accounting, and holds
/// no memory itself. It is not `Send`, because each thread has its own counter.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    size: usize,
    not_send: PhantomData<*const ()>,
}

impl MemoryReservation {
    /// A reservation of no bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { size: 0, not_send: PhantomData }
    }

    /// A reservation of `bytes` bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let mut reservation = Self::empty();
        reservation.resize(bytes);
        reservation
    }

    /// Changes the reservation to this number of bytes.
    #[inline]
    pub fn resize(&mut self, bytes: usize) {
        if bytes != self.size {
            RESERVED.set(RESERVED.get().wrapping_sub(self.size).wrapping_add(bytes));
            self.size = bytes;
        }
    }

    /// The number of reserved bytes.
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
    fn a_reservation_counts_until_it_is_dropped() {
        let before = reserved();
        let mut reservation = MemoryReservation::new(100);
        let other = MemoryReservation::new(1);
        reservation.resize(20);
        assert_eq!((reserved() - before, reservation.size()), (21, 20));
        drop(reservation);
        assert_eq!(reserved() - before, 1);
        drop(other);
        assert_eq!(reserved(), before);
    }

    #[test]
    fn pressure_rises_as_the_reserved_bytes_approach_the_limit() {
        set_limit(Some(800));
        let mut reservation = MemoryReservation::empty();
        let pressures = [0, 599, 600, 699, 700, 750, 751, 800, 801].map(|bytes| {
            reservation.resize(bytes);
            pressure()
        });
        use MemoryPressure::{Critical, High, Low, Moderate, OverLimit};
        assert_eq!(
            pressures,
            [Low, Low, Moderate, Moderate, High, High, Critical, Critical, OverLimit]
        );
        set_limit(None);
        assert_eq!(pressure(), Low);
    }

    #[test]
    fn each_thread_counts_its_own_reservations() {
        let _reservation = MemoryReservation::new(7);
        let other_thread = std::thread::spawn(reserved).join().expect("the thread does not panic");
        assert_eq!(other_thread, 0);
    }
}
