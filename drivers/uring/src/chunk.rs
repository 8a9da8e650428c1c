//! Received bytes as held by the user, and the memory they are in.

use std::ops::Deref;
use std::rc::Rc;

use crate::worker::Shared;

/// Received bytes. Dropping the chunk gives its buffer back to the worker.
pub struct Chunk {
    pub(crate) bytes: Bytes,
}

pub(crate) enum Bytes {
    /// End of input.
    None,
    /// In one of the worker's shared buffers.
    Lent(Lent),
    /// In separately allocated memory.
    Own(Box<Own>),
}

/// A buffer owned by the driver until this is dropped.
pub(crate) struct Lent {
    shared: Rc<Shared>,
    /// The buffer's number above 32 bits of length. Chunks are moved right after they are created,
    /// and a processor stalls when it loads in one access what was stored in two.
    place: u64,
}

impl Lent {
    pub(crate) fn new(shared: Rc<Shared>, buffer: u16, length: u32) -> Self {
        Self { shared, place: (u64::from(buffer) << 32) | u64::from(length) }
    }

    fn buffer(&self) -> u16 {
        (self.place >> 32) as u16
    }
}

/// Memory for one receive that does not use a shared buffer: a large one, or one while all shared
/// buffers are held by connections that are not read from. Without the latter, those connections
/// could block all others.
pub(crate) struct Own {
    /// Empty while the receive is armed; the kernel then owns its memory.
    pub(crate) bytes: Vec<u8>,
}

impl Own {
    /// Code that stores bytes accounts for the bytes, not the capacity, so the capacity should be
    /// at most twice as large.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.bytes.len() >= self.bytes.capacity() / 2
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::None => &[],
            // SAFETY: the buffer came with a completion and is given back only when `Lent` is
            // dropped, which this borrow rules out.
            Bytes::Lent(lent) => unsafe {
                lent.shared.buffers.read(lent.buffer(), lent.place as u32)
            },
            Bytes::Own(own) => &own.bytes,
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.shared.buffers.give_back(self.buffer());
        if !self.shared.starved.borrow().is_empty() {
            self.shared.tasks.disturb();
        }
    }
}
