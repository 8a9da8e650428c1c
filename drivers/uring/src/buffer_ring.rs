//! The ring of receive buffers shared by all connections of a worker.
//!
//! The kernel picks a buffer when bytes arrive. From that completion until [`BufferRing::provide`]
//! the driver owns the buffer. Unread buffers are linked through a side table, so a connection's
//! queue of unread chunks needs no extra memory.

use std::cell::Cell;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use peregrine_driver::Options;

use crate::ring::Ring;

/// The only buffer group of a ring.
pub(crate) const BUFFER_GROUP: u16 = 0;

const NO_BUFFER: u16 = u16::MAX;
/// The number of buffers that are provided to the kernel at the start.
const INITIAL_BUFFERS: u32 = 16;
/// The limits that `Options` documents.
const BUFFER_COUNT_RANGE: std::ops::RangeInclusive<u32> = 16..=32_768;
const BUFFER_BYTES_RANGE: std::ops::RangeInclusive<usize> = 512..=65_536;

/// All receive buffers of one worker.
///
/// Each buffer is in one of four states: not provided yet, in the kernel's ring, in a connection's
/// [`ChunkQueue`], or in a chunk held by the user. `outstanding` counts the last two.
///
/// The kernel cycles through all buffers it has, so each of them soon takes up physical memory.
/// Therefore the driver provides more buffers only when few are left.
pub(crate) struct BufferRing {
    entries: Mapping,
    memory: Mapping,
    /// The size of one buffer.
    bytes: usize,
    /// The number of buffers, a power of two, minus one.
    mask: u16,
    /// The position in `entries` of the next buffer to provide, before masking.
    tail: Cell<u16>,
    /// The number of buffers that were ever provided. Their ids are the lowest ones.
    provided: Cell<u32>,
    outstanding: Cell<u32>,
    /// The side table, indexed by buffer id.
    links: Box<[Cell<ChunkLink>]>,
}

/// The side table's entry for a buffer that contains unread bytes.
#[derive(Clone, Copy)]
struct ChunkLink {
    length: u32,
    next: u16,
}

fn buffer_count(options: &Options) -> u32 {
    options
        .receive_buffers
        .clamp(*BUFFER_COUNT_RANGE.start(), *BUFFER_COUNT_RANGE.end())
        .next_power_of_two()
}

/// The memory that the kernel locks for the buffer ring: its entries, not the buffers themselves.
pub(crate) fn locked_bytes(options: &Options) -> usize {
    buffer_count(options) as usize * size_of::<BufRingEntry>()
}

impl BufferRing {
    /// Allocates the buffers and provides the first of them to the kernel.
    ///
    /// # Errors
    /// The kernel rejected the registration.
    pub(crate) fn register(ring: &Ring, options: &Options) -> io::Result<Self> {
        let count = buffer_count(options);
        let bytes = options
            .receive_buffer_bytes
            .clamp(*BUFFER_BYTES_RANGE.start(), *BUFFER_BYTES_RANGE.end());
        let entries = Mapping::allocate(locked_bytes(options))?;
        let memory = Mapping::allocate(count as usize * bytes)?;
        let submitter = ring.io_uring()?.submitter();
        let address = entries.start.as_ptr() as u64;
        // SAFETY: the block is page-aligned, holds `count` entries, and `UringWorker` frees it only
        // after the ring was closed.
        unsafe { submitter.register_buf_ring_with_flags(address, count as u16, BUFFER_GROUP, 0) }?;
        let buffers = Self {
            entries,
            memory,
            bytes,
            mask: (count - 1) as u16,
            tail: Cell::new(0),
            provided: Cell::new(0),
            outstanding: Cell::new(0),
            links: vec![Cell::new(ChunkLink { length: 0, next: NO_BUFFER }); count as usize].into(),
        };
        buffers.grow(INITIAL_BUFFERS);
        Ok(buffers)
    }

    /// Provides up to `count` more buffers to the kernel.
    fn grow(&self, count: u32) {
        let provided = self.provided.get();
        let new_ids = provided..(provided + count).min(u32::from(self.mask) + 1);
        self.provided.set(new_ids.end);
        // `provide` expects buffers that are outstanding.
        self.outstanding.set(self.outstanding.get() + new_ids.len() as u32);
        new_ids.for_each(|id| self.provide(id as u16));
    }

    /// Called when the kernel had no buffer left. Doubles the number of buffers if that is so.
    pub(crate) fn on_exhausted(&self) {
        if self.free() == 0 {
            self.grow(self.provided.get());
        }
    }

    /// The size of one buffer in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory of all buffers used so far.
    pub(crate) fn provided_bytes(&self) -> i64 {
        i64::from(self.provided.get()) * self.bytes as i64
    }

    /// The number of buffers that the kernel can use now.
    pub(crate) fn free(&self) -> u32 {
        self.provided.get() - self.outstanding.get()
    }

    /// Records that the kernel has put received bytes into buffer `id`.
    pub(crate) fn on_selected(&self, id: u16) {
        assert!(id <= self.mask, "the kernel returned an unknown buffer");
        self.outstanding.set(self.outstanding.get() + 1);
        if self.free() < self.provided.get() / 4 {
            self.grow(1);
        }
    }

    /// Returns the first `length` bytes of a buffer owned by the driver.
    ///
    /// # Safety
    /// Buffer `id` must have come with a completion, and must not be provided to the kernel again
    /// while the slice is in use.
    pub(crate) unsafe fn read(&self, id: u16, length: u32) -> &[u8] {
        let start = self.address(id);
        let length = (length as usize).min(self.bytes);
        // SAFETY: `address` is at least `bytes` before the end of the block; the caller guarantees
        // that the kernel does not write to this buffer now. The memory was zeroed at the start.
        unsafe { std::slice::from_raw_parts(start, length) }
    }

    /// Provides buffer `id` to the kernel.
    pub(crate) fn provide(&self, id: u16) {
        let tail = self.tail.get();
        let base: *mut BufRingEntry = self.entries.start.as_ptr().cast();
        // SAFETY: the masked index is smaller than the number of entries in the block.
        let slot = unsafe { base.add(usize::from(tail & self.mask)) };
        // SAFETY: the block is zeroed, which is a valid entry, and aligned. The kernel reads an
        // entry only after the tail has passed it, so this one is not in use.
        let entry = unsafe { &mut *slot };
        entry.set_addr(self.address(id) as u64);
        entry.set_len(self.bytes as u32);
        entry.set_bid(id);
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: `base` is the first entry of a registered, page-aligned ring.
        let shared_tail = unsafe { BufRingEntry::tail(base) }.cast_mut();
        // SAFETY: the tail is inside the block, is aligned, and both sides access it only
        // atomically.
        let shared_tail = unsafe { AtomicU16::from_ptr(shared_tail) };
        shared_tail.store(self.tail.get(), Ordering::Release);
        self.outstanding.set(self.outstanding.get() - 1);
    }

    fn address(&self, id: u16) -> *mut u8 {
        assert!(id <= self.mask, "a buffer id is smaller than the number of buffers");
        // SAFETY: `id` is in range, so the offset stays inside the block of `count * bytes`.
        unsafe { self.memory.start.as_ptr().add(usize::from(id) * self.bytes) }
    }
}

/// A connection's unread chunks, in the order of arrival.
#[derive(Debug)]
pub(crate) struct ChunkQueue {
    head: u16,
    tail: u16,
    count: u16,
}

impl ChunkQueue {
    pub(crate) const EMPTY: Self = Self { head: NO_BUFFER, tail: NO_BUFFER, count: 0 };

    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Adds buffer `id` with `length` bytes.
    pub(crate) fn push(&mut self, buffers: &BufferRing, id: u16, length: u32) {
        buffers.links[usize::from(id)].set(ChunkLink { length, next: NO_BUFFER });
        if self.count == 0 {
            self.head = id;
        } else {
            let last = &buffers.links[usize::from(self.tail)];
            last.set(ChunkLink { next: id, ..last.get() });
        }
        self.tail = id;
        self.count += 1;
    }

    /// Removes the oldest buffer. Returns it with its number of bytes.
    pub(crate) fn pop(&mut self, buffers: &BufferRing) -> Option<(u16, u32)> {
        if self.count == 0 {
            return None;
        }
        let id = self.head;
        let link = buffers.links[usize::from(id)].get();
        self.head = link.next;
        self.count -= 1;
        Some((id, link.length))
    }
}

/// Zeroed, page-aligned memory from the kernel. A page takes up physical memory only once it is
/// written to; an allocator might zero, and so write to, all of them.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: only this value owns the memory, and any thread may access or unmap it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn allocate(bytes: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address chosen by the kernel does not affect existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Self { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has this address and length, and `UringWorker` drops it only after
        // the ring was closed, so the kernel no longer uses it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RING_SIZES;

    #[test]
    fn the_kernel_gets_more_buffers_only_when_few_are_left() {
        let mut ring = Ring::create(RING_SIZES[0]).unwrap();
        let buffers = BufferRing::register(&ring, &Options::default()).unwrap();
        for _ in 0..100 {
            (0..12).for_each(|id| buffers.on_selected(id));
            (0..12).for_each(|id| buffers.provide(id));
        }
        assert_eq!((buffers.provided.get(), buffers.free()), (INITIAL_BUFFERS, INITIAL_BUFFERS));
        for taken in 0..256 {
            assert!(buffers.free() > 0, "after {taken}");
            buffers.on_selected(taken);
            buffers.on_exhausted();
        }
        assert_eq!((buffers.provided.get(), buffers.free()), (256, 0));
        buffers.on_exhausted();
        assert_eq!(buffers.free(), 0);
        ring.close();
    }
}
