//! Reuses values instead of creating new ones.

use crate::FutureSlot;
use std::cell::RefCell;
use std::fmt;
use std::thread::LocalKey;

/// A type whose values a [`Pool`] can store.
pub trait Recycle: Sized {
    /// Creates a new value.
    fn create() -> Self;

    /// Resets a used value without freeing its memory. Returns false if the value is not worth
    /// storing.
    fn recycle(&mut self) -> bool;
}

/// A limited number of used values, stored for reuse.
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
    /// Creates a pool that stores at most `idle_max` values; further ones are dropped.
    #[must_use]
    pub const fn new(idle_max: usize) -> Self {
        Self { idle: RefCell::new(Vec::new()), idle_max }
    }

    /// Returns the value that was put back last, which is probably still in the CPU's cache, or a
    /// new one if the pool is empty.
    #[must_use]
    pub fn get(&self) -> T {
        let value = self.idle.borrow_mut().pop();
        value.unwrap_or_else(T::create)
    }

    /// Stores `value` for a later caller of [`Pool::get`], or drops it.
    pub fn put(&self, mut value: T) {
        // Recycling may run destructors that use this pool, so `idle` must not be borrowed yet.
        if value.recycle() {
            self.push(value);
        }
    }

    #[inline]
    fn push(&self, value: T) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.idle_max {
            idle.push(value);
        }
    }

    /// Drops all stored values.
    pub fn clear(&self) {
        // Taken out first, because their destructors may use this pool.
        let values = self.idle.take();
        drop(values);
    }

    /// Like [`Pool::get`], from this thread's pool.
    #[inline]
    #[must_use]
    pub fn get_local(pool: &'static LocalKey<Self>) -> T {
        let value = pool.try_with(|pool| pool.idle.borrow_mut().pop());
        value.ok().flatten().unwrap_or_else(T::create)
    }

    /// Like [`Pool::put`], to this thread's pool, even if `value` came from the pool of another
    /// thread. A thread that is ending may have no pool; `value` is then dropped.
    #[inline]
    pub fn put_local(pool: &'static LocalKey<Self>, mut value: T) {
        if value.recycle() {
            let _ = pool.try_with(|pool| pool.push(value));
        }
    }
}

impl<T> fmt::Debug for Pool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("idle_max", &self.idle_max).finish_non_exhaustive()
    }
}

/// The initial capacity of a vector: a small response fits without growing.
const VEC_BYTES_MIN: usize = 1024;

/// A vector that grew beyond this capacity is not stored, so that one large response does not
/// occupy memory forever.
const VEC_BYTES_MAX: usize = 64 * 1024;

/// Pooled vectors are empty, with a capacity between the two limits.
impl<T> Recycle for Vec<T> {
    fn create() -> Self {
        Self::with_capacity(VEC_BYTES_MIN / size_of::<T>().max(1))
    }

    fn recycle(&mut self) -> bool {
        self.clear();
        let capacity_min = VEC_BYTES_MIN / size_of::<T>().max(1);
        self.capacity() >= capacity_min && self.capacity() * size_of::<T>() <= VEC_BYTES_MAX
    }
}

/// A slot that grew beyond this is not stored.
const SLOT_BYTES_MAX: usize = 16 * 1024;

/// A slot needs no reset, because it contains no future: while there is one, its guard owns the
/// slot.
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
    fn a_reused_vector_is_empty_and_keeps_its_memory() {
        let pool = Pool::new(1);
        let mut vector: Vec<u8> = pool.get();
        vector.extend_from_slice(&[7; 3000]);
        let (address, capacity) = (vector.as_ptr(), vector.capacity());
        pool.put(vector);
        let reused = pool.get();
        assert_eq!((reused.as_ptr(), reused.capacity(), reused.len()), (address, capacity, 0));
    }

    #[test]
    fn vectors_that_are_too_small_or_too_large_are_dropped() {
        let pool = Pool::new(8);
        for capacity in [0, 100, VEC_BYTES_MIN, VEC_BYTES_MAX, VEC_BYTES_MAX + 1] {
            pool.put(Vec::<u8>::with_capacity(capacity));
        }
        assert_eq!(pool.idle.borrow().len(), 2);
    }

    #[test]
    fn a_cleared_pool_is_empty() {
        let pool: Pool<Vec<u8>> = Pool::new(8);
        let vectors = [pool.get(), pool.get()];
        vectors.into_iter().for_each(|vector| pool.put(vector));
        pool.clear();
        assert_eq!(pool.idle.borrow().capacity(), 0);
    }

    #[test]
    fn the_pool_is_bounded() {
        thread_local! {
            static VECTORS: Pool<Vec<u64>> = const { Pool::new(3) };
        }
        let vectors: Vec<_> = (0..10).map(|_| Pool::get_local(&VECTORS)).collect();
        vectors.into_iter().for_each(|vector| Pool::put_local(&VECTORS, vector));
        assert_eq!(VECTORS.with(|pool| pool.idle.borrow().len()), 3);
    }

    #[test]
    fn a_destructor_can_use_the_pool_that_its_owner_is_put_into() {
        thread_local! {
            static VECTORS: Pool<Vec<Part>> = const { Pool::new(3) };
        }
        struct Part;
        impl Drop for Part {
            fn drop(&mut self) {
                Pool::put_local(&VECTORS, Pool::get_local(&VECTORS));
            }
        }
        let mut vector = Pool::get_local(&VECTORS);
        vector.push(Part);
        Pool::put_local(&VECTORS, vector);
        assert_eq!(VECTORS.with(|pool| pool.idle.borrow().len()), 2);
    }
}
