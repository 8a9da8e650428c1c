//! Limits how much work a WebSocket does before it yields to other tasks of its worker.

use crate::message::Message;

/// The budget of one turn, in uncompressed bytes received or sent.
const TURN_BYTES: usize = 256 * 1024;

/// The fixed cost of a sent message.
const MESSAGE_BYTES: usize = 64;

/// The fixed cost of a compressed message, and the factor for its bytes.
const PACKED_BYTES: usize = 1024;
const PACKED: usize = 16;

/// The work done since the last yield.
pub(crate) struct Share {
    done: usize,
    /// Messages of at least this length are compressed.
    packs_from: usize,
}

impl Share {
    pub(crate) fn new(packs_from: usize) -> Self {
        Self { done: 0, packs_from }
    }

    /// Starts a new turn. Returns true if the previous one used up its budget.
    pub(crate) fn begin(&mut self) -> bool {
        let was_used_up = self.is_used_up();
        self.done = 0;
        was_used_up
    }

    /// Charges a received message of the given cost.
    pub(crate) fn receive(&mut self, cost: usize) {
        self.done += cost;
    }

    /// Charges a sent message.
    pub(crate) fn send(&mut self, message: &Message) {
        let bytes = message.as_bytes().len();
        self.done += match bytes >= self.packs_from {
            true => PACKED * (PACKED_BYTES + bytes),
            false => MESSAGE_BYTES + bytes,
        };
    }

    /// Returns whether the WebSocket must yield.
    pub(crate) fn is_used_up(&self) -> bool {
        self.done >= TURN_BYTES
    }
}
