//! What a connection tells its caller.

use super::close::Close;
use super::reject::Reject;
use std::borrow::Cow;

/// What the received bytes mean. What it borrows is from the bytes that were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More bytes are needed. Call again with the unused bytes and those after.
    NeedInput,
    /// A whole message of text: borrowed if it came in one frame and in one call, else owned.
    Text(Cow<'a, str>),
    /// A whole message of bytes: borrowed if it came in one frame and in one call, else owned.
    Binary(Cow<'a, [u8]>),
    /// A piece of a message, if the connection [hands out pieces](super::Connection::in_pieces). Text is
    /// checked, but a piece of it may end within a character.
    Piece {
        /// What the message is.
        kind: Kind,
        /// The piece; empty only if it is the last.
        bytes: Cow<'a, [u8]>,
        /// Whether the message is complete.
        last: bool,
    },
    /// The peer asked whether this endpoint is there. The answer is written already.
    Ping(&'a [u8]),
    /// The peer's answer to a ping, or one that nobody asked for.
    Pong(&'a [u8]),
    /// The peer ends the connection. The answer is written already, if one was due; nothing more is
    /// received or sent. What is next, [`Connection::next`](super::Connection::next) says.
    Close(Close<'a>),
    /// The peer broke a rule, and was told so. Send what was written, and close.
    Error(Reject),
    /// The connection is over; nothing more is read.
    Closed,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// Which wait the connection is in; the owner has the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// For the next message: the time for pings, and for an end because of idleness.
    Idle,
    /// For the rest of a message, between its frames.
    Message,
    /// For the rest of a frame.
    Frame,
    /// For the peer's Close frame, after ours.
    Close,
    /// For the server to close the transport connection, after both Close frames.
    End,
    /// For nothing from the peer.
    Nothing,
}

/// What the owner does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Receive.
    Receive,
    /// Close the transport connection, once what was written is sent.
    Close,
    /// Wait a moment for the server to close the transport connection, so that the port in
    /// TIME_WAIT is not the client's; then close it.
    AwaitEnd,
}
