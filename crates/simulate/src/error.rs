//! Why a request got no answer.

use std::fmt;
use std::io;
use std::time::Duration;

/// A request that got no whole answer.
///
/// The debug form is the readable text too, for tests that `expect` an answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Lost {
    /// The request, such as `POST /orders`.
    pub request: String,
    /// What became of it.
    pub why: Why,
}

/// What became of a request without an answer. In all cases but the first, the server may have carried it out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The connection was refused.
    Refused,
    /// The connection broke.
    Reset,
    /// The server closed the connection before the answer was whole.
    Ended,
    /// The client waited for so long, and left.
    GaveUp(Duration),
    /// The answer is no HTTP/1.1. The text says why.
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
            Self::Reset => f.write_str("the connection broke"),
            Self::Ended => {
                f.write_str("the server closed the connection before the answer was whole")
            }
            Self::GaveUp(after) => write!(f, "the client gave up after {after:?}"),
            Self::Malformed(text) => write!(f, "the answer is no HTTP/1.1: {text}"),
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
