//! Messages that were received but not yet taken by the handler.

use crate::error::RecvError;
use crate::message::Message;
use peregrine_web::memory::MemoryReservation;
use std::collections::VecDeque;

/// The accounted overhead of a queued message.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// Messages in the order of arrival. The last entry can be the error that ended the WebSocket.
#[derive(Default)]
pub(crate) struct ReceiveQueue {
    messages: VecDeque<Result<Message, RecvError>>,
    reservation: MemoryReservation,
}

impl ReceiveQueue {
    /// Adds a message and returns its accounted size.
    pub(crate) fn push(&mut self, message: Result<Message, RecvError>) -> usize {
        let bytes = accounted_bytes(&message);
        self.reservation.resize(self.reservation.size() + bytes);
        self.messages.push_back(message);
        bytes
    }

    pub(crate) fn pop(&mut self) -> Option<Result<Message, RecvError>> {
        let next = self.messages.pop_front()?;
        self.reservation.resize(self.reservation.size() - accounted_bytes(&next));
        if self.messages.is_empty() {
            // Free the memory: a WebSocket is idle most of the time, and a new allocation is likely
            // to reuse memory that is still in the CPU cache.
            self.messages = VecDeque::new();
        }
        Some(next)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the accounted size of all messages.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.reservation.size()
    }
}

fn accounted_bytes(message: &Result<Message, RecvError>) -> usize {
    MESSAGE_OVERHEAD_BYTES + message.as_ref().map_or(0, |message| message.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::memory::reserved;

    #[test]
    fn queued_messages_are_accounted_until_popped_or_cleared() {
        let reserved_before = reserved();
        let mut queue = ReceiveQueue::default();
        for text in ["first", "second", "third"] {
            assert_eq!(queue.push(Ok(text.into())), MESSAGE_OVERHEAD_BYTES + text.len());
        }
        assert_eq!(
            (reserved() - reserved_before, queue.memory_bytes()),
            (3 * MESSAGE_OVERHEAD_BYTES + 16, reserved() - reserved_before)
        );
        assert_eq!(queue.pop(), Some(Ok("first".into())));
        assert_eq!(reserved() - reserved_before, 2 * MESSAGE_OVERHEAD_BYTES + 11);
        queue.clear();
        assert_eq!((reserved(), queue.pop()), (reserved_before, None));
        queue.push(Err(RecvError::ConnectionLost));
        drop(queue);
        assert_eq!(reserved(), reserved_before);
    }
}
