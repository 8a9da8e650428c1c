//! What a completion belongs to, and the memory that an operation owns.
//!
//! An operation has no object of its own: its state is a part of the connection or listener it
//! works for, and that slot is not given up before the operation's final completion came. So the
//! slot *is* the owner of the memory, an idle connection has no second entry to touch, and the
//! futures above own nothing that the kernel uses.

use peregrine_driver::{FilePart, Piece};

/// Names one operation in the `user_data` of its submission and of all its completions.
///
/// A generation counts the users of a slot. A completion with an old generation has no addressee;
/// what it carries is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// 24 bits.
    pub(crate) generation: u32,
    /// The slot of the connection or listener.
    pub(crate) index: u32,
}

/// What an operation does, and for which kind of slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Watches the descriptor through which other threads wake the worker.
    Wake = 0,
    /// Accepts a connection for a listener.
    Accept = 1,
    /// Ends what a listener waits with.
    CancelAccept = 2,
    /// Receives for a connection.
    Receive = 3,
    /// Sends for a connection.
    Send = 4,
    /// Ends a connection's receive or send.
    CancelStream = 5,
    /// Ends everything, when the worker shuts down.
    CancelAll = 6,
    /// Ends a sleep in the ring.
    Timeout = 7,
    /// Tells a listener that there is a connection to accept.
    Connection = 8,
}

/// Generations are kept in 24 bits.
pub(crate) const GENERATION_MASK: u32 = 0x00ff_ffff;

impl Token {
    pub(crate) fn new(kind: Kind, generation: u32, index: u32) -> Self {
        Self { kind, generation: generation & GENERATION_MASK, index }
    }

    /// As the kernel carries it: kind, generation, index, from the top.
    pub(crate) fn to_user_data(self) -> u64 {
        (u64::from(self.kind as u8) << 56)
            | (u64::from(self.generation) << 32)
            | u64::from(self.index)
    }

    /// Reads back what [`Token::to_user_data`] wrote; `None` for anything else.
    pub(crate) fn from_user_data(data: u64) -> Option<Self> {
        let kind = match data >> 56 {
            0 => Kind::Wake,
            1 => Kind::Accept,
            2 => Kind::CancelAccept,
            3 => Kind::Receive,
            4 => Kind::Send,
            5 => Kind::CancelStream,
            6 => Kind::CancelAll,
            7 => Kind::Timeout,
            8 => Kind::Connection,
            _ => return None,
        };
        let generation = (data >> 32) as u32 & GENERATION_MASK;
        Some(Self { kind, generation, index: data as u32 })
    }
}

/// A piece on its way to the peer. `sent <= piece.len()`.
///
/// While a send is in the kernel, the piece is neither changed nor dropped; the connection's slot
/// upholds that. Moving a `Sending` is fine: the bytes themselves stay where they are. So they do where
/// others have them too: as long as there is one handle, shared bytes are neither changed nor freed,
/// whatever the others do with theirs.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    piece: Piece,
    sent: usize,
}

/// The most that is asked of one send; the kernel's length is 32 bits wide.
const SEND_BYTES_MAX: usize = 1 << 30;

impl Sending {
    pub(crate) fn new(piece: Piece) -> Self {
        Self { piece, sent: 0 }
    }

    /// What is left to send of bytes that are here, at most as much as one operation takes.
    pub(crate) fn rest(&self) -> &[u8] {
        let rest = self.piece.bytes().get(self.sent..).unwrap_or_default();
        &rest[..rest.len().min(SEND_BYTES_MAX)]
    }

    /// The part of a file that is being sent, and how much of it has been.
    pub(crate) fn file(&self) -> Option<(&FilePart, usize)> {
        match &self.piece {
            Piece::File(part) => Some((part, self.sent)),
            _ => None,
        }
    }

    /// Notes that the kernel took `count` bytes; true when that was the last of them.
    pub(crate) fn advance(&mut self, count: usize) -> bool {
        self.sent += count;
        assert!(self.sent <= self.piece.len(), "the kernel sends no more than it was given");
        self.sent == self.piece.len()
    }

    /// The piece, for reuse.
    pub(crate) fn into_piece(self) -> Piece {
        self.piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_the_kernel() {
        for kind in [
            Kind::Wake,
            Kind::Accept,
            Kind::CancelAccept,
            Kind::Receive,
            Kind::Send,
            Kind::CancelStream,
            Kind::CancelAll,
            Kind::Timeout,
            Kind::Connection,
        ] {
            let token = Token::new(kind, 0x0012_3456, u32::MAX - 1);
            assert_eq!(Token::from_user_data(token.to_user_data()), Some(token));
        }
        assert_eq!(Token::from_user_data(u64::MAX), None);
    }

    #[test]
    fn a_generation_wraps_at_24_bits() {
        let token = Token::new(Kind::Send, 0x0100_0001, 7);
        assert_eq!(token.generation, 1);
    }

    #[test]
    fn a_sending_counts_to_its_end() {
        let mut sending = Sending::new(Piece::Owned(b"hello".to_vec()));
        assert!(!sending.advance(2));
        assert_eq!(sending.rest(), b"llo");
        assert!(sending.advance(3));
    }
}
