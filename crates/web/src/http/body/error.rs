//! Errors that occur while a body is read or sent.

use peregrine_proto::RequestError;
use std::error::Error;
use std::fmt;

/// Why a body could not be read or sent completely.
#[derive(Debug)]
#[non_exhaustive]
pub enum BodyError {
    /// The peer disconnected before the body was complete.
    Disconnected,
    /// The body is larger than its limit.
    TooLarge {
        /// The limit in force, in bytes.
        limit: u64,
    },
    /// The peer sent the body slower than the minimum rate.
    TooSlow,
    /// The memory that the worker holds for its peers is close to its limit (`memory_max`), so no
    /// more of the body can be buffered.
    Overloaded,
    /// The body violates the protocol, or exceeds a limit of its parser, such as that on trailers.
    Protocol(RequestError),
    /// The body decompresses to more than `ratio_max` times its size.
    DecompressedTooLarge {
        /// The limit in force.
        ratio_max: u32,
    },
    /// The body is not valid in the content coding that it declares.
    DecodeFailed {
        /// The coding, such as `gzip`.
        coding: &'static str,
    },
    /// The stream or body that the application supplied returned this error.
    Stream(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the peer disconnected before the body was complete"),
            Self::TooLarge { limit } => write!(f, "the body is larger than {limit} bytes"),
            Self::TooSlow => f.write_str("the body arrived more slowly than the minimum rate"),
            Self::Overloaded => f.write_str("the server has no memory left for the body"),
            Self::DecompressedTooLarge { ratio_max } => {
                write!(f, "the body decompresses to more than {ratio_max} times its size")
            }
            Self::DecodeFailed { coding } => write!(f, "the body is not valid {coding}"),
            Self::Protocol(error) => write!(f, "the body was rejected: {error}"),
            Self::Stream(error) => write!(f, "the body's source failed: {error}"),
        }
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Stream(error) => Some(&**error),
            _ => None,
        }
    }
}

impl BodyError {
    /// Recovers a [`BodyError`] that passed through a body of another crate. Any other error
    /// becomes [`BodyError::Stream`].
    pub(super) fn downcast(error: Box<dyn Error + Send + Sync>) -> Self {
        match error.downcast::<Self>() {
            Ok(body_error) => *body_error,
            Err(error) => Self::Stream(error),
        }
    }
}
