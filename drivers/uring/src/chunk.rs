//! The chunks that the user of a stream holds, and the memory of their bytes.

use std::ops::Deref;
use std::rc::Rc;

use crate::worker::UringWorker;

/// Received bytes. Dropping the chunk returns its buffer to the worker.
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
    /// The buffer's id above 32 bits of length. They share a field because chunks are moved right
    /// after they are created, and a processor stalls when one load covers two recent stores.
    packed: u64,
}

impl ProvidedBuffer {
    pub(crate) fn new(worker: Rc<UringWorker>, buffer: u16, length: u32) -> Self {
        Self { worker, packed: (u64::from(buffer) << 32) | u64::from(length) }
    }

    fn buffer(&self) -> u16 {
        (self.packed >> 32) as u16
    }
}

/// Memory for one receive that does not use a shared buffer: either a large receive, or one while
/// all shared buffers are held by connections that are not read from, which could otherwise block
/// all other connections.
pub(crate) struct OwnedBuffer {
    /// Empty while the receive is armed; the kernel then owns its memory.
    pub(crate) bytes: Vec<u8>,
}

impl OwnedBuffer {
    /// Returns whether the bytes take up at least half of the memory. Code that stores received
    /// bytes counts their length, not the capacity, so the capacity must not be much larger.
    pub(crate) fn is_at_least_half_full(&self) -> bool {
        self.bytes.len() >= self.bytes.capacity() / 2
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            ChunkData::Eof => &[],
            // SAFETY: the buffer came with a completion and is returned to the
            // kernel only when `ProvidedBuffer` is dropped, which this borrow rules out.
            ChunkData::Provided(buffer) => unsafe {
                buffer.worker.buffers.read(buffer.buffer(), buffer.packed as u32)
            },
            ChunkData::Owned(owned) => &owned.bytes,
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
