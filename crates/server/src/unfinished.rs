//! What a request was at when its connection was cut.

use std::fmt;

/// What was not over when a connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfinished {
    /// The handshake of TLS.
    Handshake,
    /// A request's head, or nothing was asked for.
    Head,
    /// The handler.
    Handler,
    /// The content of the response, which its producer had not ended or the peer not taken.
    Response,
    /// The way of a complete response to its peer.
    Delivery,
    /// The protocol that the request began, a WebSocket for instance.
    Protocol,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handshake => "its TLS handshake was not complete",
            Self::Head => "no request was complete",
            Self::Handler => "its handler had not answered",
            Self::Response => "its response was not complete",
            Self::Delivery => "its response was not delivered",
            Self::Protocol => "the protocol that it began went on",
        })
    }
}
