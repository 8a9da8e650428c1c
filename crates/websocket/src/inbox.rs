//! What came for the handler and was not taken yet.

use crate::error::Error;
use crate::message::Message;
use std::collections::VecDeque;

/// What a message costs beyond its bytes while it waits.
const MESSAGE_BYTES: usize = 64;

/// Messages in the order in which they came. The last may be the reason why no more come.
#[derive(Default)]
pub(crate) struct Inbox {
    messages: VecDeque<Result<Message, Error>>,
    bytes: usize,
}

impl Inbox {
    /// Adds a message. Returns what it costs.
    pub(crate) fn push(&mut self, message: Result<Message, Error>) -> usize {
        let cost = cost(&message);
        self.bytes += cost;
        self.messages.push_back(message);
        cost
    }

    pub(crate) fn pop(&mut self) -> Option<Result<Message, Error>> {
        let next = self.messages.pop_front()?;
        self.bytes -= cost(&next);
        if self.messages.is_empty() {
            // A WebSocket is silent most of the time, and what was freed last is nearest to the processor.
            self.messages = VecDeque::new();
        }
        Some(next)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What all messages cost.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn cost(message: &Result<Message, Error>) -> usize {
    MESSAGE_BYTES + message.as_ref().map_or(0, |message| message.as_bytes().len())
}
