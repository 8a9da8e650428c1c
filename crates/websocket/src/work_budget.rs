//! Limits how much work a WebSocket does before it yields to other tasks of its worker.

use crate::message::Message;

/// The budget of one turn, in uncompressed bytes received or sent.
const BUDGET_BYTES: usize = 256 * 1024;

/// The fixed cost of a sent message.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// The cost of a compressed message is the factor, times its bytes plus the overhead.
const COMPRESSED_OVERHEAD_BYTES: usize = 1024;
const COMPRESSED_COST_FACTOR: usize = 16;

/// The work that was done since the last yield.
pub(crate) struct WorkBudget {
    used: usize,
    /// Messages of at least this length are compressed.
    compress_bytes_min: usize,
}

impl WorkBudget {
    pub(crate) fn new(compress_bytes_min: usize) -> Self {
        Self { used: 0, compress_bytes_min }
    }

    /// Starts a new turn. Returns true if the previous one used up its budget.
    pub(crate) fn reset(&mut self) -> bool {
        let was_exhausted = self.is_exhausted();
        self.used = 0;
        was_exhausted
    }

    /// Charges a received message of the given cost.
    pub(crate) fn charge_received(&mut self, cost: usize) {
        self.used += cost;
    }

    /// Charges a sent message.
    pub(crate) fn charge_sent(&mut self, message: &Message) {
        let bytes = message.as_bytes().len();
        self.used += if bytes >= self.compress_bytes_min {
            COMPRESSED_COST_FACTOR * (COMPRESSED_OVERHEAD_BYTES + bytes)
        } else {
            MESSAGE_OVERHEAD_BYTES + bytes
        };
    }

    /// Returns whether the WebSocket must yield.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.used >= BUDGET_BYTES
    }
}
