//! Reusable memory: a slot for one future of any type, a pool of values, and an index table.
//!
//! [`Pool`] stores used values for reuse, and [`Slab`] stores entries under small keys without ever
//! moving them. Both are safe code. [`FutureSlot`] is the reason for this crate:
//!
//! A route table contains handlers of different types, so the types of their futures must be
//! erased. `Box::pin` does so with one allocation per request. [`FutureSlot`] does so without
//! allocating: the future is written into a block that is reused from request to request and grows
//! to the size of the largest future so far. Polling costs one indirect call, as with a box.
//!
//! [`boxed`] is a safe equivalent with the same interface; a test compares the two.
//!
//! This crate is one of the few places that may contain `unsafe`; STYLE.md lists them. Start with
//! [`FutureSlot::pin`].

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

pub mod boxed;
mod pool;
mod slab;

pub use pool::{Pool, Recycle};
pub use slab::Slab;

/// Block sizes are multiples of this, so that futures of similar size share a block.
const BLOCK_SIZE_STEP: usize = 256;
/// The alignment of a block is at least this, which suffices for nearly all futures.
const BLOCK_ALIGN_MIN: usize = 16;

/// A block of memory that holds one future at a time, of any type.
///
/// The block is allocated for the first future, so an unused slot takes only one word.
#[derive(Default)]
pub struct FutureSlot {
    /// A block, whose header stores its layout. It contains no future: while a future is in a
    /// block, a [`PinnedFuture`] owns the slot.
    block: Option<NonNull<BlockHeader>>,
}

/// The start of a block. The future comes after it.
struct BlockHeader {
    /// The layout of the whole block.
    layout: Layout,
}

impl FutureSlot {
    /// Creates an empty slot, without allocating.
    #[must_use]
    pub const fn new() -> Self {
        Self { block: None }
    }

    /// The number of bytes that the slot holds on the heap.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.layout().map_or(0, |layout| layout.size())
    }

    /// Moves `future` into the slot, and the slot into the returned guard. The guard can be moved
    /// between polls, and [`PinnedFuture::into_slot`] returns the slot.
    ///
    /// Allocates only if the future is larger, or has a larger alignment, than all before it.
    ///
    /// ```
    /// let slot = peregrine_slot::FutureSlot::new();
    /// let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// let mut pinned = slot.pin(async { 40 + 2 });
    /// let output = std::pin::Pin::new(&mut pinned).poll(&mut context);
    /// assert_eq!(output, std::task::Poll::Ready(42));
    /// let slot = pinned.into_slot();
    /// # use std::future::Future;
    /// # drop(slot);
    /// ```
    #[inline]
    pub fn pin<'f, F: Future + 'f>(mut self, future: F) -> PinnedFuture<'f, F::Output> {
        let required = const { BlockLayout::of::<F>() };
        let block = self.reserve(required);
        // SAFETY: `reserve` returned a block that is at least as large as `required.offset`.
        let target = unsafe { block.byte_add(required.offset) }.cast::<F>();
        // SAFETY: the block has room for an `F` at this offset, aligned, and contains no future;
        // `PinnedFuture` owns the slot for as long as `future` lives in the block.
        unsafe { target.write(future) };
        PinnedFuture {
            slot: self,
            future: Some(target as NonNull<dyn Future<Output = F::Output> + 'f>),
        }
    }

    /// Returns a block of at least this size and alignment.
    #[inline]
    fn reserve(&mut self, required: BlockLayout) -> NonNull<BlockHeader> {
        match (self.block, self.layout()) {
            (Some(block), Some(layout))
                if required.size <= layout.size() && required.align <= layout.align() =>
            {
                block
            }
            _ => self.grow(required),
        }
    }

    /// Replaces the block by a new one of at least this size and alignment.
    #[cold]
    fn grow(&mut self, required: BlockLayout) -> NonNull<BlockHeader> {
        let size = required.size.next_multiple_of(BLOCK_SIZE_STEP);
        let layout = Layout::from_size_align(size, required.align)
            .expect("a future's size is far below isize::MAX");
        // SAFETY: the size is at least `BLOCK_SIZE_STEP`, so not zero.
        let memory = unsafe { alloc(layout) };
        let Some(block) = NonNull::new(memory.cast::<BlockHeader>()) else {
            handle_alloc_error(layout)
        };
        // SAFETY: the block is new, and large and aligned enough for a header.
        unsafe { block.write(BlockHeader { layout }) };
        *self = Self { block: Some(block) };
        block
    }

    #[inline]
    fn layout(&self) -> Option<Layout> {
        // SAFETY: a block starts with its header from `grow` until `drop`.
        self.block.map(|block| unsafe { block.as_ref() }.layout)
    }
}

impl Drop for FutureSlot {
    #[inline]
    fn drop(&mut self) {
        let (Some(block), Some(layout)) = (self.block, self.layout()) else { return };
        // SAFETY: the block came from `alloc` with this layout, and contains no live future.
        unsafe { dealloc(block.as_ptr().cast(), layout) };
    }
}

impl fmt::Debug for FutureSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FutureSlot").field("capacity", &self.capacity()).finish()
    }
}

/// The layout of a block for one type of future.
#[derive(Clone, Copy)]
struct BlockLayout {
    /// The block's size, including the header.
    size: usize,
    align: usize,
    /// The offset of the future in the block.
    offset: usize,
}

impl BlockLayout {
    const fn of<F>() -> Self {
        let align =
            if align_of::<F>() > BLOCK_ALIGN_MIN { align_of::<F>() } else { BLOCK_ALIGN_MIN };
        let offset = size_of::<BlockHeader>().next_multiple_of(align);
        Self { size: offset + size_of::<F>(), align, offset }
    }
}

/// A future with the slot that it lives in. Dropping this drops the future, then the slot.
#[must_use = "futures do nothing unless polled"]
pub struct PinnedFuture<'f, T> {
    slot: FutureSlot,
    /// `None` once the future was dropped.
    future: Option<NonNull<dyn Future<Output = T> + 'f>>,
}

impl<T> PinnedFuture<'_, T> {
    /// Drops the future and returns the slot. If the future's destructor panics, the slot's block
    /// is leaked.
    #[inline]
    #[must_use]
    pub fn into_slot(mut self) -> FutureSlot {
        self.take_slot()
    }

    /// Like [`into_slot`](Self::into_slot), for callers that cannot pass the guard by value.
    /// Polling the guard afterwards panics.
    #[inline]
    #[must_use]
    pub fn take_slot(&mut self) -> FutureSlot {
        self.clear();
        std::mem::take(&mut self.slot)
    }

    #[inline]
    fn clear(&mut self) {
        let Some(future) = self.future.take() else { return };
        // A destructor that panics leaves a half-dropped future behind, which is still pinned, so
        // its block must not be reused. It is leaked, because the slot gets the block back only
        // after the destructor has returned.
        let block = self.slot.block.take();
        // SAFETY: `pin` wrote the future, and `future` was taken, so it is not dropped again.
        unsafe { future.drop_in_place() };
        self.slot.block = block;
    }
}

impl<T> Future for PinnedFuture<'_, T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let future = self.future.as_mut().expect("polled after the slot was taken");
        // SAFETY: the future lives until `clear`, and this guard is borrowed mutably, so this is
        // the only reference.
        let future = unsafe { future.as_mut() };
        // SAFETY: the block is on the heap and does not move with the guard, and it is not reused
        // before the future has been dropped.
        unsafe { Pin::new_unchecked(future) }.poll(cx)
    }
}

impl<T> Drop for PinnedFuture<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.clear();
    }
}

impl<T> fmt::Debug for PinnedFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PinnedFuture")
    }
}
