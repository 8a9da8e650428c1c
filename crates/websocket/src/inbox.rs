//! Messages that were received but not yet taken by the handler.

use crate::error::Error;
use crate::message::Message;
use peregrine_web::account::Charge;
use std::collections::VecDeque;

/// The accounted overhead of a queued message.
const MESSAGE_BYTES: usize = 64;

/// Messages in the order of arrival. The last entry may be the error that ended the WebSocket.
#[derive(Default)]
pub(crate) struct Inbox {
    messages: VecDeque<Result<Message, Error>>,
    charge: Charge,
}

impl Inbox {
    /// Adds a message and returns its accounted size.
    pub(crate) fn push(&mut self, message: Result<Message, Error>) -> usize {
        let cost = cost(&message);
        self.charge.set(self.charge.bytes() + cost);
        self.messages.push_back(message);
        cost
    }

    pub(crate) fn pop(&mut self) -> Option<Result<Message, Error>> {
        let next = self.messages.pop_front()?;
        self.charge.set(self.charge.bytes() - cost(&next));
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
    pub(crate) fn bytes(&self) -> usize {
        self.charge.bytes()
    }
}

fn cost(message: &Result<Message, Error>) -> usize {
    MESSAGE_BYTES + message.as_ref().map_or(0, |message| message.as_bytes().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::account::held;

    #[test]
    fn what_waits_counts_until_it_is_taken_or_thrown_away() {
        let before = held();
        let mut inbox = Inbox::default();
        for text in ["first", "second", "third"] {
            assert_eq!(inbox.push(Ok(text.into())), MESSAGE_BYTES + text.len());
        }
        assert_eq!((held() - before, inbox.bytes()), (3 * MESSAGE_BYTES + 16, held() - before));
        assert_eq!(inbox.pop(), Some(Ok("first".into())));
        assert_eq!(held() - before, 2 * MESSAGE_BYTES + 11);
        inbox.clear();
        assert_eq!((held(), inbox.pop()), (before, None));
        inbox.push(Err(Error::Lost));
        drop(inbox);
        assert_eq!(held(), before);
    }
}
