//! Memory that is used again: a place for one future of any type, a stock of things, a table.
//!
//! [`Pool`] keeps what was used for the next who needs one, and [`Table`] keeps entries under numbers
//! without ever moving them. Both are safe code. The third is the reason for this crate.
//!
//! A route table holds handlers of different types, so something must erase their futures.
//! `Box::pin` does it with one allocation per request; [`FutureSlot`] does it with none: the future
//! is written into a block that is kept from request to request and grows to the largest future it
//! has met. Polling costs one indirect call, as with a box.
//!
//! [`boxed`] is the safe twin with the same shape; a test holds the two against each other.
//!
//! This crate is one of two that may contain `unsafe`. Start with [`FutureSlot::place`].

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

pub mod boxed;
mod pool;
mod table;

pub use pool::{Pool, Reuse};
pub use table::Table;

/// Blocks come in steps of this, so that futures of about one size share a block.
const BYTES_STEP: usize = 256;
const ALIGN_MIN: usize = 16;

/// A block of memory that holds one future at a time, of any type.
///
/// The block is allocated when the first future is placed, so an unused slot costs nothing but its
/// own three words.
#[derive(Default)]
pub struct FutureSlot {
    block: Option<Block>,
}

struct Block {
    memory: NonNull<u8>,
    layout: Layout,
    /// True from `place` until the future's guard has dropped it. It stays true when the guard was
    /// leaked.
    occupied: bool,
}

impl FutureSlot {
    /// An empty slot. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { block: None }
    }

    /// Bytes that the slot keeps on the heap.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.layout.size())
    }

    /// Moves `future` into the slot and returns the guard through which it is polled.
    ///
    /// Allocates only when the future is larger than every one placed before. If an earlier guard
    /// was leaked ([`std::mem::forget`]), its future stays pinned in the old block for ever, as
    /// `Pin` demands, and the slot starts a new block.
    ///
    /// ```
    /// let mut slot = peregrine_slot::FutureSlot::new();
    /// let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// let mut placed = slot.place(async { 40 + 2 });
    /// let answer = std::pin::Pin::new(&mut placed).poll(&mut context);
    /// assert_eq!(answer, std::task::Poll::Ready(42));
    /// # use std::future::Future;
    /// ```
    pub fn place<'s, F: Future + 's>(&'s mut self, future: F) -> Placed<'s, F::Output> {
        let block = self.block_for(Layout::new::<F>());
        let target = block.memory.cast::<F>();
        // SAFETY: `block_for` returned an unoccupied block that is large and aligned enough for
        // `F`, and `self` is borrowed for as long as the future lives there.
        unsafe { target.write(future) };
        block.occupied = true;
        Placed {
            occupied: &mut block.occupied,
            future: target as NonNull<dyn Future<Output = F::Output> + 's>,
        }
    }

    /// As [`place`](Self::place), but the slot goes along: the future may be kept and polled anywhere
    /// without a borrow, and [`Held::into_slot`] gives the slot back.
    ///
    /// ```
    /// let slot = peregrine_slot::FutureSlot::new();
    /// let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// let mut held = slot.hold(async { 40 + 2 });
    /// let answer = std::pin::Pin::new(&mut held).poll(&mut context);
    /// assert_eq!(answer, std::task::Poll::Ready(42));
    /// let slot = held.into_slot();
    /// # use std::future::Future;
    /// # drop(slot);
    /// ```
    pub fn hold<F: Future + 'static>(mut self, future: F) -> Held<F::Output> {
        let block = self.block_for(Layout::new::<F>());
        let target = block.memory.cast::<F>();
        // SAFETY: `block_for` returned an unoccupied block that is large and aligned enough for
        // `F`, and `Held` owns the slot for as long as the future lives there.
        unsafe { target.write(future) };
        block.occupied = true;
        Held { slot: self, future: Some(target as NonNull<dyn Future<Output = F::Output>>) }
    }

    fn block_for(&mut self, need: Layout) -> &mut Block {
        let fits = self.block.as_ref().is_some_and(|block| {
            !block.occupied
                && need.size() <= block.layout.size()
                && need.align() <= block.layout.align()
        });
        if !fits {
            self.block = Some(Block::allocate(need));
        }
        self.block.as_mut().expect("a block was just put here")
    }
}

impl fmt::Debug for FutureSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureSlot").field("capacity", &self.capacity()).finish()
    }
}

impl Block {
    fn allocate(need: Layout) -> Self {
        let layout = Layout::from_size_align(
            need.size().max(1).next_multiple_of(BYTES_STEP),
            need.align().max(ALIGN_MIN),
        )
        .expect("a future's size is far below isize::MAX");
        // SAFETY: the size is at least `BYTES_STEP`, so not zero.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, layout, occupied: false }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.occupied {
            // The guard was leaked, so its future is still pinned here and may be referred to from
            // elsewhere. `Pin` forbids the reuse of its memory: the block is leaked with it.
            return;
        }
        // SAFETY: `memory` came from `alloc` with this `layout`, and nothing lives in it.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// A future in a slot. Dropping it drops the future and frees the slot for the next.
#[must_use = "futures do nothing unless polled"]
pub struct Placed<'s, T> {
    occupied: &'s mut bool,
    future: NonNull<dyn Future<Output = T> + 's>,
}

impl<T> Future for Placed<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // SAFETY: the future lives until this guard drops, and the guard is borrowed mutably, so
        // this is the only reference.
        let future = unsafe { self.future.as_mut() };
        // SAFETY: the block never moves and is not reused before the future has been dropped.
        unsafe { Pin::new_unchecked(future) }.poll(context)
    }
}

impl<T> Drop for Placed<'_, T> {
    fn drop(&mut self) {
        // The slot counts as occupied until the destructor returned: one that panics leaves a
        // half-dropped future behind, and then the block must not be used again.
        // SAFETY: `place` wrote the future, and only this line drops it.
        unsafe { self.future.drop_in_place() };
        *self.occupied = false;
    }
}

impl<T> fmt::Debug for Placed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Placed")
    }
}

/// A future with the slot that it lives in. Dropping it drops the future, then the slot.
#[must_use = "futures do nothing unless polled"]
pub struct Held<T> {
    slot: FutureSlot,
    /// `None` once the future was dropped.
    future: Option<NonNull<dyn Future<Output = T>>>,
}

impl<T> Held<T> {
    /// Drops the future and gives the slot back. If the future's destructor panics, its block is
    /// leaked.
    #[must_use]
    pub fn into_slot(mut self) -> FutureSlot {
        self.clear();
        std::mem::take(&mut self.slot)
    }

    fn clear(&mut self) {
        let Some(future) = self.future.take() else { return };
        // The slot counts as occupied until the destructor returned, as in `Placed`.
        // SAFETY: `hold` wrote the future, and `future` was taken away: nobody drops it again.
        unsafe { future.drop_in_place() };
        if let Some(block) = &mut self.slot.block {
            block.occupied = false;
        }
    }
}

impl<T> Future for Held<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let future = self.future.as_mut().expect("the future is there until the slot is taken");
        // SAFETY: the future lives until `clear`, and this guard is borrowed mutably, so this is the
        // only reference.
        let future = unsafe { future.as_mut() };
        // SAFETY: the block is on the heap and does not move with the guard, and it is not used
        // again before the future has been dropped.
        unsafe { Pin::new_unchecked(future) }.poll(context)
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<T> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Held")
    }
}
