//! Received bytes in a user's hand, and where they lie.

use std::ops::Deref;
use std::rc::Rc;

use crate::worker::Shared;

/// Received bytes. Dropping them gives the worker's buffer back.
pub struct Chunk {
    pub(crate) bytes: Bytes,
}

pub(crate) enum Bytes {
    /// The end of input.
    None,
    /// In one of the worker's shared buffers.
    Lent(Lent),
    /// In memory of their own.
    Own(Box<Own>),
}

/// A buffer that is ours until the drop.
pub(crate) struct Lent {
    shared: Rc<Shared>,
    /// The buffer's number above 32 bits of length. Chunks are moved at once after they are made,
    /// and a processor stalls when it loads as one what was stored in pieces.
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

/// Memory for one receive that takes no shared buffer: a large one, or one when all shared buffers are
/// held by connections that nobody reads. Without the latter those could keep all others from being
/// served.
pub(crate) struct Own {
    /// Empty, and its memory the kernel's, while the receive is armed.
    pub(crate) bytes: Vec<u8>,
}

impl Own {
    /// Whoever keeps bytes counts the bytes, not the memory, which should be twice that at the most.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        self.bytes.len() >= self.bytes.capacity() / 2
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::None => &[],
            // SAFETY: the buffer came with a completion and is given back by the drop of `Lent`
            // alone, which this borrow outrules.
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
