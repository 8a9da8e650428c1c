//! [`SimRequestError`]: a simulated request that got no complete response.

use std::fmt;
use std::io;
use std::time::Duration;

/// A request that got no complete response.
///
/// The `Debug` form is the same text as the `Display` form, for tests that `expect` a response.
#[derive(Clone, PartialEq, Eq)]
pub struct SimRequestError {
    /// The request, such as `POST /orders`.
    pub request: String,
    /// The reason.
    pub kind: SimErrorKind,
}

/// Why a request got no complete response. In all cases except
/// [`ConnectionRefused`](Self::ConnectionRefused), it is possible that the server executed the
/// request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimErrorKind {
    /// The connection was refused.
    ConnectionRefused,
    /// The connection was reset, by a fault, by the server or by the test.
    ConnectionReset,
    /// The server closed the connection before the response was complete.
    UnexpectedEof,
    /// The client disconnected after it had waited for this time.
    TimedOut(Duration),
    /// The response is not valid HTTP/1.1. The text says why.
    InvalidResponse(String),
}

impl From<io::Error> for SimErrorKind {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            io::ErrorKind::UnexpectedEof => Self::UnexpectedEof,
            _ => Self::ConnectionReset,
        }
    }
}

impl fmt::Display for SimErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectionRefused => f.write_str("the connection was refused"),
            Self::ConnectionReset => f.write_str("the connection was reset"),
            Self::UnexpectedEof => {
                f.write_str("the server closed the connection before the response was complete")
            }
            Self::TimedOut(after) => write!(f, "the client gave up after {after:?}"),
            Self::InvalidResponse(text) => write!(f, "the response is not HTTP/1.1: {text}"),
        }
    }
}

impl fmt::Display for SimRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no response to {}: {}", self.request, self.kind)
    }
}

impl fmt::Debug for SimRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for SimRequestError {}
