//! Errors of a WebSocket.

use crate::message::Message;
use peregrine_proto::ws::{WebSocketError, WriteError};
use std::error::Error as StdError;
use std::fmt;

/// Why no more messages are received. A receiver returns it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvError {
    /// The peer broke a rule or exceeded a limit; it was sent a Close frame with
    /// [`WebSocketError::code`].
    Protocol(WebSocketError),
    /// The connection ended without a Close frame.
    ConnectionLost,
    /// The peer did not respond to a ping in time.
    PongTimeout,
    /// The worker has reached its memory limit (`overload.memory_max`), and this peer needed more.
    /// It was sent [`CloseCode::TRY_AGAIN_LATER`](crate::CloseCode::TRY_AGAIN_LATER).
    Overloaded,
}

impl fmt::Display for RecvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => error.fmt(f),
            Self::ConnectionLost => f.write_str("the connection ended without a Close frame"),
            Self::PongTimeout => f.write_str("the peer did not respond to a ping in time"),
            Self::Overloaded => f.write_str(
                "the worker has reached its memory limit and cannot hold the peer's message",
            ),
        }
    }
}

impl StdError for RecvError {}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The WebSocket is closed, or about to be.
    Closed,
    /// The payload of a ping or a pong exceeds 125 bytes.
    ControlTooLong,
    /// The code is not allowed in a Close frame.
    InvalidCode,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the WebSocket is closed",
            Self::ControlTooLong => "the payload of a ping or a pong exceeds 125 bytes",
            Self::InvalidCode => "the code is not allowed in a Close frame",
        })
    }
}

impl StdError for SendError {}

impl From<WriteError> for SendError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Closed | WriteError::MessageInProgress => Self::Closed,
            WriteError::ControlTooLong => Self::ControlTooLong,
            WriteError::InvalidCloseCode => Self::InvalidCode,
        }
    }
}

/// Why a message was not sent immediately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrySendError {
    /// The send queue is full. The message is returned.
    Full(Message),
    /// The message cannot be sent at all.
    Send(SendError),
}

impl fmt::Display for TrySendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("the send queue is full"),
            Self::Send(error) => error.fmt(f),
        }
    }
}

impl StdError for TrySendError {}

/// Why a JSON channel could not receive or send a value.
#[derive(Debug)]
#[non_exhaustive]
pub enum JsonError {
    /// The peer's message is not JSON of this type. The peer was sent close code 1007.
    Deserialize(serde_json::Error),
    /// The peer sent a binary message. It was sent close code 1003.
    NotText,
    /// No more messages are received.
    Recv(RecvError),
    /// The value cannot be serialized as JSON. Nothing was sent.
    Serialize(serde_json::Error),
    /// The value was not sent.
    Send(SendError),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deserialize(error) => {
                write!(f, "a message is not valid JSON of the expected type: {error}")
            }
            Self::NotText => f.write_str("received a binary message instead of JSON text"),
            Self::Recv(error) => error.fmt(f),
            Self::Serialize(error) => write!(f, "a value cannot be serialized as JSON: {error}"),
            Self::Send(error) => error.fmt(f),
        }
    }
}

impl StdError for JsonError {}
