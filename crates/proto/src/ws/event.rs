//! Events and states that a connection reports to its caller.

use super::close::Close;
use super::error::WebSocketError;
use std::borrow::Cow;

/// The meaning of the received bytes. It may borrow from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// More bytes are needed. Call again with the unused bytes and those after them.
    NeedInput,
    /// A whole text message: borrowed if it arrived in one frame and in one call, otherwise owned.
    Text(Cow<'a, str>),
    /// A whole binary message: borrowed if it arrived in one frame and in one call, otherwise
    /// owned.
    Binary(Cow<'a, [u8]>),
    /// A chunk of a message, if the connection is [streaming](super::Connection::streaming). Text
    /// is validated, but a chunk of it may end within a character.
    Chunk {
        /// The kind of the message.
        message_type: MessageType,
        /// The bytes of the chunk; empty only if it is the last.
        bytes: Cow<'a, [u8]>,
        /// Whether the message is complete.
        is_final: bool,
    },
    /// The peer sent a ping. The pong is already written.
    Ping(&'a [u8]),
    /// The peer's reply to a ping, or an unsolicited pong.
    Pong(&'a [u8]),
    /// The peer closes the connection. The reply is already written, if one was needed; nothing
    /// more is received or sent. [`Connection::next_action`](super::Connection::next_action)
    /// returns the next step.
    Close(Close<'a>),
    /// The peer violated a rule, and a Close frame was written. Send the output, and close.
    Error(WebSocketError),
    /// The connection has ended; nothing more is read.
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

/// The event that the connection is waiting for. The caller sets the timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingFor {
    /// The next message. Meanwhile, the caller may send pings and enforce an idle timeout.
    NextMessage,
    /// The rest of a message, between its frames.
    Message,
    /// The rest of a frame.
    Frame,
    /// The peer's Close frame, after this end has sent one.
    Close,
    /// The server's closing of the transport connection, after both Close frames.
    TransportClose,
    /// Nothing from the peer.
    Nothing,
}

/// The next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Receive.
    Receive,
    /// Close the transport connection, once all output is sent.
    Close,
    /// Wait a moment for the server to close the transport connection, so that the server and not
    /// the client holds the connection in TIME_WAIT; then close it.
    AwaitTransportClose,
}
