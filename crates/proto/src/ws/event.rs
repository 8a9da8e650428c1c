//! Events and states that a connection reports to its caller.

use super::close::Close;
use super::error::WebSocketError;
use std::borrow::Cow;

/// The meaning of the received bytes. It may borrow from the given bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More bytes are needed. Call again with the unused bytes and those after them.
    NeedInput,
    /// A whole text message: borrowed if it arrived in one frame and in one call, otherwise owned.
    Text(Cow<'a, str>),
    /// A whole binary message: borrowed if it arrived in one frame and in one call, otherwise
    /// owned.
    Binary(Cow<'a, [u8]>),
    /// A piece of a message, if the connection [yields pieces](super::Connection::streaming). Text
    /// is validated, but a piece of it may end within a character.
    Chunk {
        /// The kind of the message.
        message_type: MessageType,
        /// The piece; empty only if it is the last.
        bytes: Cow<'a, [u8]>,
        /// Whether the message is complete.
        is_final: bool,
    },
    /// The peer sent a ping. The answer is already written.
    Ping(&'a [u8]),
    /// The peer's answer to a ping, or an unsolicited one.
    Pong(&'a [u8]),
    /// The peer ends the connection. The answer is already written, if one was needed; nothing more
    /// is received or sent. [`Connection::next_action`](super::Connection::next_action) returns the
    /// next step.
    Close(Close<'a>),
    /// The peer violated a rule, and a Close frame was written. Send the output, and close.
    Error(WebSocketError),
    /// The connection is over; nothing more is read.
    Closed,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// The event that the connection is waiting for; the owner has the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// For the next message: the time for pings and the idle timeout.
    Idle,
    /// For the rest of a message, between its frames.
    Message,
    /// For the rest of a frame.
    Frame,
    /// For the peer's Close frame, after ours.
    Close,
    /// For the server to close the transport connection, after both Close frames.
    TransportClose,
    /// For nothing from the peer.
    Nothing,
}

/// The next step of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Receive.
    Receive,
    /// Close the transport connection, once all output is sent.
    Close,
    /// Wait a moment for the server to close the transport connection, so that the port in
    /// TIME_WAIT is not the client's; then close it.
    AwaitTransportClose,
}
