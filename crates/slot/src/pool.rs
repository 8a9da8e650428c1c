//! Reuses values instead of creating new ones.

use crate::FutureSlot;
use std::cell::RefCell;
use std::fmt;
use std::thread::LocalKey;

/// A type that a [`Pool`] can keep.
pub trait Recycle: Sized {
    /// Creates a new value.
    fn create() -> Self;

    /// Resets a used value, keeping its memory. Returns false if it is not worth keeping.
    fn recycle(&mut self) -> bool;
}

/// A limited stock of used values.
///
/// Values are added only after [`Recycle::recycle`], so that no user sees the data of another one.
/// An empty pool takes no memory. A pool belongs to one thread: either as a field of something that
/// the thread owns, or as a thread-local, for values that may be dropped on any thread
/// ([`Pool::get_local`]).
pub struct Pool<T> {
    idle: RefCell<Vec<T>>,
    idle_max: usize,
}

impl<T: Recycle> Pool<T> {
    /// Creates a pool that keeps at most this many values; more are dropped.
    #[must_use]
    pub const fn new(kept_max: usize) -> Self {
        Self { idle: RefCell::new(Vec::new()), idle_max: kept_max }
    }

    /// Returns the value given back last, which is likely still in the CPU's cache, or a new one.
    #[must_use]
    pub fn get(&self) -> T {
        let kept = self.idle.borrow_mut().pop();
        kept.unwrap_or_else(T::create)
    }

    /// Keeps `item` for the next caller of [`Pool::get`], or drops it.
    pub fn put(&self, mut item: T) {
        // Its parts are dropped before the list is borrowed: their destructors may use this pool.
        if item.recycle() {
            self.push(item);
        }
    }

    #[inline]
    fn push(&self, item: T) {
        let mut kept = self.idle.borrow_mut();
        if kept.len() < self.idle_max {
            kept.push(item);
        }
    }

    /// Drops all kept values.
    pub fn clear(&self) {
        // Their destructors may use this pool.
        let kept = self.idle.take();
        drop(kept);
    }

    /// Like [`Pool::get`], from this thread's pool.
    #[inline]
    #[must_use]
    pub fn get_local(pool: &'static LocalKey<Self>) -> T {
        let kept = pool.try_with(|pool| pool.idle.borrow_mut().pop());
        kept.ok().flatten().unwrap_or_else(T::create)
    }

    /// Like [`Pool::put`], to this thread's pool, whatever thread `item` came from. A thread that
    /// is ending may have no pool; `item` is then dropped.
    #[inline]
    pub fn put_local(pool: &'static LocalKey<Self>, mut item: T) {
        if item.recycle() {
            let _ = pool.try_with(|pool| pool.push(item));
        }
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("kept_max", &self.idle_max).finish_non_exhaustive()
    }
}

/// A list's initial capacity: a small response fits without growing.
const VEC_BYTES_MIN: usize = 1024;

/// A list that grew beyond this is not kept, so one large response does not occupy memory
/// forever.
const VEC_BYTES_MAX: usize = 64 * 1024;

/// An empty list with some capacity, but not too much.
impl<T> Recycle for Vec<T> {
    fn create() -> Self {
        Self::with_capacity(VEC_BYTES_MIN / size_of::<T>().max(1))
    }

    fn recycle(&mut self) -> bool {
        self.clear();
        let least = VEC_BYTES_MIN / size_of::<T>().max(1);
        self.capacity() >= least && self.capacity() * size_of::<T>() <= VEC_BYTES_MAX
    }
}

/// A slot that grew beyond this is not kept.
const SLOT_BYTES_MAX: usize = 16 * 1024;

/// A slot without a future: while there is a future, its guard owns the slot.
impl Recycle for FutureSlot {
    fn create() -> Self {
        Self::new()
    }

    fn recycle(&mut self) -> bool {
        self.capacity() <= SLOT_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_empty_with_its_memory() {
        let pool = Pool::new(1);
        let mut list: Vec<u8> = pool.get();
        list.extend_from_slice(&[7; 3000]);
        let (address, capacity) = (list.as_ptr(), list.capacity());
        pool.put(list);
        let again = pool.get();
        assert_eq!((again.as_ptr(), again.capacity(), again.len()), (address, capacity, 0));
    }

    #[test]
    fn what_is_not_worth_keeping_is_dropped() {
        let pool = Pool::new(8);
        for capacity in [0, 100, VEC_BYTES_MIN, VEC_BYTES_MAX, VEC_BYTES_MAX + 1] {
            pool.put(Vec::<u8>::with_capacity(capacity));
        }
        assert_eq!(pool.idle.borrow().len(), 2);
    }

    #[test]
    fn a_pool_that_is_cleared_keeps_nothing() {
        let pool: Pool<Vec<u8>> = Pool::new(8);
        let lists = [pool.get(), pool.get()];
        lists.into_iter().for_each(|list| pool.put(list));
        pool.clear();
        assert_eq!(pool.idle.borrow().capacity(), 0);
    }

    #[test]
    fn the_pool_is_bounded() {
        thread_local! {
            static LISTS: Pool<Vec<u64>> = const { Pool::new(3) };
        }
        let lists: Vec<_> = (0..10).map(|_| Pool::get_local(&LISTS)).collect();
        lists.into_iter().for_each(|list| Pool::put_local(&LISTS, list));
        assert_eq!(LISTS.with(|pool| pool.idle.borrow().len()), 3);
    }

    #[test]
    fn a_destructor_may_use_the_pool_that_its_owner_is_given_to() {
        thread_local! {
            static LISTS: Pool<Vec<Part>> = const { Pool::new(3) };
        }
        struct Part;
        impl Drop for Part {
            fn drop(&mut self) {
                Pool::put_local(&LISTS, Pool::get_local(&LISTS));
            }
        }
        let mut list = Pool::get_local(&LISTS);
        list.push(Part);
        Pool::put_local(&LISTS, list);
        assert_eq!(LISTS.with(|pool| pool.idle.borrow().len()), 2);
    }
}
