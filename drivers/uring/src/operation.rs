//! Identifies operations, and owns the memory of those that send.
//!
//! An operation is not a separate object: its state is part of the slot of its connection or
//! listener, and that slot exists until the operation's final completion. So the slot *is* the
//! owner of the memory, there is no second table entry to look up, and futures own nothing that the
//! kernel uses.

use peregrine_driver::{FileRange, SendBuf};

/// Identifies one operation, in the `user_data` of its submission and of all its completions.
///
/// A new generation begins whenever a slot is used for another connection or listener. A completion
/// with an old generation is stale; the resources it carries are released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: OpKind,
    /// 24 bits.
    pub(crate) generation: u32,
    /// The slot of the connection or listener.
    pub(crate) index: u32,
}

/// The operation and the kind of slot it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum OpKind {
    /// Polls the descriptor through which other threads wake the worker.
    Wake = 0,
    /// Accepts a connection for a listener.
    Accept = 1,
    /// Cancels the operation that a listener waits for.
    CancelAccept = 2,
    /// Receives for a connection.
    Receive = 3,
    /// Sends for a connection.
    Send = 4,
    /// Cancels a connection's receive or send.
    CancelStream = 5,
    /// Cancels everything when the worker shuts down.
    CancelAll = 6,
    /// Ends a sleep in the ring.
    Timeout = 7,
    /// Notifies a listener of a connection to accept.
    AcceptReady = 8,
}

/// Generations are kept in 24 bits.
pub(crate) const GENERATION_MASK: u32 = 0x00ff_ffff;

impl Token {
    pub(crate) fn new(kind: OpKind, generation: u32, index: u32) -> Self {
        Self { kind, generation: generation & GENERATION_MASK, index }
    }

    /// Encodes the token for the kernel: kind, generation, index, from the highest bits down.
    pub(crate) fn to_user_data(self) -> u64 {
        (u64::from(self.kind as u8) << 56)
            | (u64::from(self.generation) << 32)
            | u64::from(self.index)
    }

    /// Decodes a value of [`Token::to_user_data`]; `None` for anything else.
    pub(crate) fn from_user_data(data: u64) -> Option<Self> {
        let kind = match data >> 56 {
            0 => OpKind::Wake,
            1 => OpKind::Accept,
            2 => OpKind::CancelAccept,
            3 => OpKind::Receive,
            4 => OpKind::Send,
            5 => OpKind::CancelStream,
            6 => OpKind::CancelAll,
            7 => OpKind::Timeout,
            8 => OpKind::AcceptReady,
            _ => return None,
        };
        let generation = (data >> 32) as u32 & GENERATION_MASK;
        Some(Self { kind, generation, index: data as u32 })
    }
}

/// A buffer being sent to the peer. `sent <= buf.len()`.
///
/// While a send is in the kernel, the buffer is neither changed nor dropped; the connection's slot
/// ensures that. Moving a `SendOp` is fine, because the bytes themselves stay in place. This also
/// holds for shared bytes: as long as one handle exists, they are neither changed nor freed,
/// whatever happens to the other handles.
#[derive(Debug, Default)]
pub(crate) struct SendOp {
    buf: SendBuf,
    sent: usize,
}

/// The maximum length of one send; the kernel's length has 32 bits.
const SEND_LEN_MAX: usize = 1 << 30;

impl SendOp {
    pub(crate) fn new(buf: SendBuf) -> Self {
        Self { buf, sent: 0 }
    }

    /// The unsent bytes, at most as many as one operation can send; empty for a file.
    pub(crate) fn remaining(&self) -> &[u8] {
        let rest = self.buf.as_bytes().get(self.sent..).unwrap_or_default();
        &rest[..rest.len().min(SEND_LEN_MAX)]
    }

    /// The range that is being sent and the number of its bytes that have been sent, if this is a
    /// range of a file.
    pub(crate) fn file(&self) -> Option<(&FileRange, usize)> {
        match &self.buf {
            SendBuf::File(range) => Some((range, self.sent)),
            _ => None,
        }
    }

    /// Records that the kernel accepted `count` bytes. Returns true if those were the last ones.
    pub(crate) fn advance(&mut self, count: usize) -> bool {
        self.sent += count;
        assert!(self.sent <= self.buf.len(), "the kernel sent more than it was given");
        self.sent == self.buf.len()
    }

    /// Returns the buffer for reuse.
    pub(crate) fn into_buf(self) -> SendBuf {
        self.buf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_through_user_data() {
        for kind in [
            OpKind::Wake,
            OpKind::Accept,
            OpKind::CancelAccept,
            OpKind::Receive,
            OpKind::Send,
            OpKind::CancelStream,
            OpKind::CancelAll,
            OpKind::Timeout,
            OpKind::AcceptReady,
        ] {
            let token = Token::new(kind, 0x0012_3456, u32::MAX - 1);
            assert_eq!(Token::from_user_data(token.to_user_data()), Some(token));
        }
        assert_eq!(Token::from_user_data(u64::MAX), None);
    }

    #[test]
    fn a_generation_wraps_at_24_bits() {
        let token = Token::new(OpKind::Send, 0x0100_0001, 7);
        assert_eq!(token.generation, 1);
    }

    #[test]
    fn a_send_is_complete_after_its_last_byte() {
        let mut send = SendOp::new(SendBuf::Owned(b"hello".to_vec()));
        assert!(!send.advance(2));
        assert_eq!(send.remaining(), b"llo");
        assert!(send.advance(3));
    }
}
