//! Accounts for the memory that a worker holds for its peers.
//!
//! Each worker is a thread, and each thread has one account. Memory that grows with the bytes that
//! peers send or leave unread is charged to it by its owner: pipes, collected bodies, buffers of
//! busy connections. The counters are thread-local numbers, without locks or atomics.
//!
//! Memory that handlers allocate is not counted.

use std::cell::Cell;
use std::marker::PhantomData;

/// No limit.
const NONE: usize = usize::MAX;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static CEILING: Cell<usize> = const { Cell::new(NONE) };
}

/// The number of bytes charged to this thread.
#[inline]
#[must_use]
pub fn held() -> usize {
    HELD.get()
}

/// Sets how many bytes this thread may hold; `None` means no limit.
pub fn limit(bytes_max: Option<usize>) {
    CEILING.set(bytes_max.unwrap_or(NONE));
}

/// How close this thread is to its memory limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filling {
    /// Below three quarters of the limit: no restrictions.
    #[default]
    Free,
    /// From three quarters: nothing is started that may become large.
    Tight,
    /// From seven eighths: nothing new is started.
    Scarce,
    /// Above fifteen sixteenths: nothing may grow, except for work that is never refused.
    Full,
    /// Above the limit: nothing may grow at all.
    Over,
}

/// How close this thread is to its memory limit.
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

/// Bytes charged to this thread until this is dropped. It is not `Send`.
#[derive(Debug, Default)]
pub struct Charge {
    bytes: usize,
    stays: PhantomData<*const ()>,
}

impl Charge {
    /// A charge of no bytes.
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

    /// Changes the charge to this number of bytes.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            HELD.set(HELD.get().wrapping_sub(self.bytes).wrapping_add(bytes));
            self.bytes = bytes;
        }
    }

    /// The number of bytes charged.
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
        let elsewhere = std::thread::spawn(held).join().expect("the thread does not panic");
        assert_eq!(elsewhere, 0);
    }
}
