//! Received bytes as held by the user, and the memory they are in.

use std::ops::Deref;
use std::rc::Rc;

use crate::worker::UringWorker;

/// Received bytes. Dropping the chunk gives its buffer back to the worker.
pub struct Chunk {
    pub(crate) bytes: ChunkData,
}

pub(crate) enum ChunkData {
    /// End of input.
    Eof,
    /// In one of the worker's shared buffers.
    Provided(ProvidedBuffer),
    /// In separately allocated memory.
    Owned(Box<OwnedBuffer>),
}

/// A buffer owned by the driver until this is dropped.
pub(crate) struct ProvidedBuffer {
    worker: Rc<UringWorker>,
    /// The buffer's number above 32 bits of length. Chunks are moved right after they are created,
    /// and a processor stalls when it loads in one access what was stored in two.
    packed: u64,
}

impl ProvidedBuffer {
    pub(crate) fn new(shared: Rc<UringWorker>, buffer: u16, length: u32) -> Self {
        Self { worker: shared, packed: (u64::from(buffer) << 32) | u64::from(length) }
    }

    fn buffer(&self) -> u16 {
        (self.packed >> 32) as u16
    }
}

/// Memory for one receive that does not use a shared buffer: a large one, or one while all shared
/// buffers are held by connections that are not read from. Without the latter, those connections
/// could block all others.
pub(crate) struct OwnedBuffer {
    /// Empty while the receive is armed; the kernel then owns its memory.
    pub(crate) bytes: Vec<u8>,
}

impl OwnedBuffer {
    /// Code that stores bytes accounts for the bytes, not the capacity, so the capacity should be
    /// at most twice as large.
    pub(crate) fn is_at_least_half_full(&self) -> bool {
        self.bytes.len() >= self.bytes.capacity() / 2
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            ChunkData::Eof => &[],
            // SAFETY: the buffer came with a completion and is given back only when
            // `ProvidedBuffer` is dropped, which this borrow rules out.
            ChunkData::Provided(lent) => unsafe {
                lent.worker.buffers.read(lent.buffer(), lent.packed as u32)
            },
            ChunkData::Owned(own) => &own.bytes,
        }
    }
}

impl Drop for ProvidedBuffer {
    fn drop(&mut self) {
        self.worker.buffers.provide(self.buffer());
        if !self.worker.starved.borrow().is_empty() {
            self.worker.executor.wake_loop();
        }
    }
}
