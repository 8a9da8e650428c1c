//! What a worker holds for its peers, counted in one place.
//!
//! Each worker is a thread, and each thread has one account. What grows with what peers send or leave
//! unread is charged to that account by whoever keeps it: pipes, bodies that are put together, buffers
//! of busy connections. Charges are plain numbers of the thread: neither locked nor atomic.
//!
//! What handlers allocate is not in it.

use std::cell::Cell;
use std::marker::PhantomData;

/// No ceiling.
const NONE: usize = usize::MAX;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static CEILING: Cell<usize> = const { Cell::new(NONE) };
}

/// Bytes that are charged to this thread.
#[inline]
#[must_use]
pub fn held() -> usize {
    HELD.get()
}

/// Sets how many bytes this thread may hold; `None`: as many as there are.
pub fn limit(bytes_max: Option<usize>) {
    CEILING.set(bytes_max.unwrap_or(NONE));
}

/// How much of what it may hold this thread holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filling {
    /// There is room.
    #[default]
    Free,
    /// More than three quarters: nothing new is begun that may become large.
    Tight,
    /// More than seven eighths: nothing new is begun.
    Scarce,
    /// More than fifteen sixteenths: nothing may grow, but what is never refused.
    Full,
    /// More than there may be: nothing at all may grow.
    Over,
}

/// How much of what it may hold this thread holds.
#[inline]
#[must_use]
pub fn filling() -> Filling {
    let (held, most) = (HELD.get(), CEILING.get());
    match () {
        () if held < most - most / 4 => Filling::Free,
        () if held < most - most / 8 => Filling::Tight,
        () if held <= most - most / 16 => Filling::Scarce,
        () if held <= most => Filling::Full,
        () => Filling::Over,
    }
}

/// Bytes that somebody keeps, until this is dropped. It stays on its thread.
#[derive(Debug, Default)]
pub struct Charge {
    bytes: usize,
    stays: PhantomData<*const ()>,
}

impl Charge {
    /// Nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: 0, stays: PhantomData }
    }

    /// A charge of `bytes`.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        let mut charge = Self::new();
        charge.set(bytes);
        charge
    }

    /// So many bytes are kept from now on.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            HELD.set(HELD.get().wrapping_sub(self.bytes).wrapping_add(bytes));
            self.bytes = bytes;
        }
    }

    /// The bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_counts_until_it_is_dropped() {
        let before = held();
        let mut charge = Charge::of(100);
        let other = Charge::of(1);
        charge.set(20);
        assert_eq!((held() - before, charge.bytes()), (21, 20));
        drop(charge);
        assert_eq!(held() - before, 1);
        drop(other);
        assert_eq!(held(), before);
    }

    #[test]
    fn the_nearer_the_ceiling_the_less_is_begun() {
        limit(Some(800));
        let mut charge = Charge::new();
        let fillings = [0, 599, 600, 699, 700, 750, 751, 800, 801].map(|bytes| {
            charge.set(bytes);
            filling()
        });
        use Filling::{Free, Full, Over, Scarce, Tight};
        assert_eq!(fillings, [Free, Free, Tight, Tight, Scarce, Scarce, Full, Full, Over]);
        limit(None);
        assert_eq!(filling(), Free);
    }

    #[test]
    fn other_threads_have_accounts_of_their_own() {
        let _charge = Charge::of(7);
        let elsewhere = std::thread::spawn(held).join().expect("it does not panic");
        assert_eq!(elsewhere, 0);
    }
}
