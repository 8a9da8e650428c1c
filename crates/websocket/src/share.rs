//! How much a WebSocket does before others of its worker have their turn.

use crate::message::Message;

/// So much, in bytes that come or go as they are.
const TURN_BYTES: usize = 256 * 1024;

/// What a message that is sent takes beside its bytes.
const MESSAGE_BYTES: usize = 64;

/// The same of one that is compressed, and how many times as much its bytes take.
const PACKED_BYTES: usize = 1024;
const PACKED: usize = 16;

/// What was done since others had their turn.
pub(crate) struct Share {
    done: usize,
    /// Messages from this length on are compressed.
    packs_from: usize,
}

impl Share {
    pub(crate) fn new(packs_from: usize) -> Self {
        Self { done: 0, packs_from }
    }

    /// Begins a new one. True if the one before was used up.
    pub(crate) fn begin(&mut self) -> bool {
        let was_used_up = self.is_used_up();
        self.done = 0;
        was_used_up
    }

    /// A message came that costs so much.
    pub(crate) fn receive(&mut self, cost: usize) {
        self.done += cost;
    }

    /// A message is sent.
    pub(crate) fn send(&mut self, message: &Message) {
        let bytes = message.as_bytes().len();
        self.done += match bytes >= self.packs_from {
            true => PACKED * (PACKED_BYTES + bytes),
            false => MESSAGE_BYTES + bytes,
        };
    }

    /// Is it others' turn?
    pub(crate) fn is_used_up(&self) -> bool {
        self.done >= TURN_BYTES
    }
}
