//! What goes wrong with a WebSocket.

use crate::message::Message;
use peregrine_proto::ws::{Reject, Unsent};
use std::error::Error as StdError;
use std::fmt;

/// Why nothing more is received. It is the last thing that a receiver gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The peer broke a rule or passed a limit, and was told so with [`Reject::code`].
    Broken(Reject),
    /// The connection ended without a Close frame.
    Lost,
    /// The peer gave no sign of life, although it was asked for one.
    Silent,
    /// The worker holds as much as it may (`overload.memory_max`), and this peer made it hold more. It was told
    /// so with [`CloseCode::TRY_LATER`](crate::CloseCode::TRY_LATER).
    Overloaded,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(reject) => reject.fmt(f),
            Self::Lost => f.write_str("the connection ended without a Close frame"),
            Self::Silent => f.write_str("the peer answered no ping in time"),
            Self::Overloaded => f.write_str(
                "the worker holds as much as it may, and there is no room for the peer's message",
            ),
        }
    }
}

impl StdError for Error {}

/// Why something was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The WebSocket is closed, or about to be.
    Closed,
    /// A ping or a pong has more than 125 bytes.
    TooLong,
    /// The code may not be in a Close frame.
    InvalidCode,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the WebSocket is closed",
            Self::TooLong => "a ping or a pong has at most 125 bytes",
            Self::InvalidCode => "the code may not be in a Close frame",
        })
    }
}

impl StdError for SendError {}

impl From<Unsent> for SendError {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Closed | Unsent::Interrupts => Self::Closed,
            Unsent::TooLong => Self::TooLong,
            Unsent::CodeInvalid => Self::InvalidCode,
        }
    }
}

/// Why something was not sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrySendError {
    /// So much waits for the peer already that there is no room: the message comes back.
    Full(Message),
    /// It cannot be sent at all.
    Unsent(SendError),
}

impl fmt::Display for TrySendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(_) => f.write_str("too much waits for the peer"),
            Self::Unsent(error) => error.fmt(f),
        }
    }
}

impl StdError for TrySendError {}

/// Why a channel of JSON gave no value, or took none.
#[derive(Debug)]
#[non_exhaustive]
pub enum JsonError {
    /// The peer's message is no JSON of this type. The peer was told so with code 1007.
    Malformed(serde_json::Error),
    /// The peer sent bytes, not text. It was told so with code 1003.
    NotText,
    /// Nothing more is received.
    Ended(Error),
    /// The value to send cannot be written as JSON. Nothing was sent.
    Unwritable(serde_json::Error),
    /// The value was not sent.
    Unsent(SendError),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => {
                write!(f, "a message is not the JSON that is expected: {error}")
            }
            Self::NotText => f.write_str("a message of bytes came where JSON is text"),
            Self::Ended(error) => error.fmt(f),
            Self::Unwritable(error) => write!(f, "a value cannot be written as JSON: {error}"),
            Self::Unsent(error) => error.fmt(f),
        }
    }
}

impl StdError for JsonError {}
