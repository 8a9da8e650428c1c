//! [`Lost`]: a simulated request that got no complete response.

use std::fmt;
use std::io;
use std::time::Duration;

/// A request that got no complete response.
///
/// The `Debug` form is the same text as the `Display` form, for tests that `expect` a response.
#[derive(Clone, PartialEq, Eq)]
pub struct Lost {
    /// The request, such as `POST /orders`.
    pub request: String,
    /// The reason.
    pub why: Why,
}

/// Why a request got no response. In all cases except [`Refused`](Self::Refused), the server may
/// have executed the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The connection was refused.
    Refused,
    /// The connection was reset.
    Reset,
    /// The server closed the connection before the response was complete.
    Ended,
    /// The client disconnected after it had waited for this time.
    GaveUp(Duration),
    /// The response is not valid HTTP/1.1. The text says why.
    Malformed(String),
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::UnexpectedEof => Self::Ended,
            _ => Self::Reset,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("the connection was refused"),
            Self::Reset => f.write_str("the connection was reset"),
            Self::Ended => {
                f.write_str("the server closed the connection before the response was complete")
            }
            Self::GaveUp(after) => write!(f, "the client gave up after {after:?}"),
            Self::Malformed(text) => write!(f, "the response is not HTTP/1.1: {text}"),
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer to {}: {}", self.request, self.why)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Lost {}
