//! Messages that were received but not yet taken by the handler.

use crate::error::RecvError;
use crate::message::Message;
use peregrine_web::memory::MemoryReservation;
use std::collections::VecDeque;

/// The accounted overhead of a queued message.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// Messages in the order of arrival. The last entry may be the error that ended the WebSocket.
#[derive(Default)]
pub(crate) struct ReceiveQueue {
    messages: VecDeque<Result<Message, RecvError>>,
    reservation: MemoryReservation,
}

impl ReceiveQueue {
    /// Adds a message and returns its accounted size.
    pub(crate) fn push(&mut self, message: Result<Message, RecvError>) -> usize {
        let cost = cost(&message);
        self.reservation.resize(self.reservation.size() + cost);
        self.messages.push_back(message);
        cost
    }

    pub(crate) fn pop(&mut self) -> Option<Result<Message, RecvError>> {
        let next = self.messages.pop_front()?;
        self.reservation.resize(self.reservation.size() - cost(&next));
        if self.messages.is_empty() {
            // Free the memory: a WebSocket is silent most of the time, and a new allocation is
            // likely to reuse memory that is still in the CPU cache.
            self.messages = VecDeque::new();
        }
        Some(next)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The accounted size of all messages.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.reservation.size()
    }
}

fn cost(message: &Result<Message, RecvError>) -> usize {
    MESSAGE_OVERHEAD_BYTES + message.as_ref().map_or(0, |message| message.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::memory::reserved;

    #[test]
    fn what_waits_counts_until_it_is_taken_or_thrown_away() {
        let before = reserved();
        let mut inbox = ReceiveQueue::default();
        for text in ["first", "second", "third"] {
            assert_eq!(inbox.push(Ok(text.into())), MESSAGE_OVERHEAD_BYTES + text.len());
        }
        assert_eq!(
            (reserved() - before, inbox.memory_bytes()),
            (3 * MESSAGE_OVERHEAD_BYTES + 16, reserved() - before)
        );
        assert_eq!(inbox.pop(), Some(Ok("first".into())));
        assert_eq!(reserved() - before, 2 * MESSAGE_OVERHEAD_BYTES + 11);
        inbox.clear();
        assert_eq!((reserved(), inbox.pop()), (before, None));
        inbox.push(Err(RecvError::ConnectionLost));
        drop(inbox);
        assert_eq!(reserved(), before);
    }
}
