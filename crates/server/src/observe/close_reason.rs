//! Why a connection ended, and what was unfinished when the server ended it.

use peregrine_proto::{Reject, h2, proxy};
use std::fmt;
use std::io;

/// Why a connection is over. It is a value, so that tests and metrics can count it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The peer closed the connection between two requests.
    PeerClosed,
    /// The peer left while a request was being received or answered.
    PeerLeft,
    /// The response said `Connection: close`, or the peer asked for it.
    Agreed,
    /// Nothing came within the time for the first byte.
    FirstByteLate,
    /// No request came within the idle time.
    Idle,
    /// A head was not complete in time.
    HeadLate,
    /// A body came too slowly.
    BodySlow,
    /// The peer did not take what was sent in time, and was reset.
    WriteStalled,
    /// Streams were open, and the peer did not answer a PING in time.
    PeerSilent,
    /// An exchange took longer than it may as a whole.
    ExchangeLate,
    /// The connection reached the age at which connections close.
    Lifetime,
    /// The peer broke a rule of the protocol.
    Rejected(Reject),
    /// The peer broke a rule of HTTP/2, or made the server do too much for nothing.
    Http2(h2::Reject),
    /// The TLS handshake, or a record after it, failed. The text says why.
    TlsFailed(String),
    /// The client's certificate was refused in the TLS handshake, or there was none where one is
    /// required.
    ClientCertificate {
        /// A short name for what is wrong with it, such as `client-certificate-expired`.
        fault: &'static str,
        /// What TLS says of it.
        cause: String,
    },
    /// The TLS handshake was not complete in time.
    HandshakeLate,
    /// Plain HTTP was sent to the TLS port.
    PlainOnTls,
    /// The PROXY header is malformed, or missing where it is required.
    Proxy(proxy::Reject),
    /// The peer may not send PROXY headers, and one is required.
    NoProxy,
    /// A handler panicked. The peer got a 500.
    HandlerPanicked,
    /// The body of a response failed before its end, so the connection had to be cut.
    ResponseFailed,
    /// Another protocol took the connection over, and has finished.
    Upgraded,
    /// The connection was idle, or its last request was answered, when the server shut down.
    Drained,
    /// The connection was still busy when the time to shut down was over.
    Cut,
    /// The connection needed more memory than the worker may hold for its peers.
    MemoryMax,
    /// The connection had come while there was little room (memory, or places), asked for nothing for a while, and others
    /// came.
    GaveWay,
    /// The client has as many connections as it may. Only where a PROXY header tells who it is is that
    /// an end: others are not accepted.
    ClientConnectionsMax,
    /// The network failed.
    Broken(io::ErrorKind),
}

impl Ended {
    /// A short name for each kind, for counting.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::PeerClosed => "peer-closed",
            Self::PeerLeft => "peer-left",
            Self::Agreed => "agreed",
            Self::FirstByteLate => "first-byte-late",
            Self::Idle => "idle",
            Self::HeadLate => "head-late",
            Self::BodySlow => "body-slow",
            Self::WriteStalled => "write-stalled",
            Self::PeerSilent => "peer-silent",
            Self::ExchangeLate => "exchange-late",
            Self::Lifetime => "lifetime",
            Self::Rejected(_) => "rejected",
            Self::Http2(reject) if reject.code() == h2::Code::ENHANCE_YOUR_CALM => "http2-excess",
            Self::Http2(_) => "http2-rejected",
            Self::TlsFailed(_) => "tls-failed",
            Self::ClientCertificate { fault, .. } => fault,
            Self::HandshakeLate => "handshake-late",
            Self::PlainOnTls => "plain-on-tls",
            Self::Proxy(_) => "proxy-refused",
            Self::NoProxy => "no-trusted-proxy",
            Self::HandlerPanicked => "handler-panicked",
            Self::ResponseFailed => "response-failed",
            Self::Upgraded => "upgraded",
            Self::Drained => "drained",
            Self::Cut => "cut",
            Self::MemoryMax => "memory-max",
            Self::GaveWay => "gave-way",
            Self::ClientConnectionsMax => "client-connections-max",
            Self::Broken(_) => "broken",
        }
    }

    /// The limit that ended the connection, by its name in `Limits`, where the reason tells which.
    pub(crate) fn limit(&self) -> Option<&'static str> {
        Some(match self {
            Self::FirstByteLate => "first_byte_timeout",
            Self::HeadLate => "head_timeout",
            Self::BodySlow | Self::WriteStalled => "rate_min",
            Self::PeerSilent => "http2.ping_after",
            Self::ExchangeLate => "exchange_timeout",
            Self::Lifetime => "lifetime_max",
            Self::MemoryMax => "overload.memory_max",
            Self::ClientConnectionsMax => "overload.connections_per_client_max",
            Self::Rejected(reject) => return limit_of(*reject),
            Self::Http2(h2::Reject::BudgetSpent) => "http2.budget_max",
            Self::Http2(h2::Reject::AnswersUnread) => "http2.answers_max",
            Self::Http2(h2::Reject::BlockTooLong) => "http2.block_bytes_max",
            _ => return None,
        })
    }
}

/// The limit that a request went beyond, by its name in `Limits`.
pub(crate) fn limit_of(reject: Reject) -> Option<&'static str> {
    Some(match reject {
        Reject::HeadTooLong => "head_bytes_max",
        Reject::RequestLineTooLong => "request_line_bytes_max",
        Reject::FieldTooLong => "field_bytes_max",
        Reject::FieldsTooMany => "fields_max",
        Reject::ChunkExtensionsTooLong => "chunk_extension_bytes_max",
        Reject::TrailersTooLong => "trailer_bytes_max",
        Reject::BodyTooLarge => "body_bytes_max",
        _ => return None,
    })
}

impl Ended {
    /// Did the TLS session end it, with an alert or without?
    pub(crate) fn is_by_tls(&self) -> bool {
        matches!(self, Self::TlsFailed(_) | Self::ClientCertificate { .. } | Self::PlainOnTls)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(reject) => write!(f, "rejected: {reject}"),
            Self::Http2(reject) => write!(f, "{}: {reject}", self.name()),
            Self::Proxy(reject) => write!(f, "proxy-refused: {reject}"),
            Self::TlsFailed(cause) => write!(f, "tls-failed: {cause}"),
            Self::ClientCertificate { fault, cause } => write!(f, "{fault}: {cause}"),
            Self::Broken(kind) => write!(f, "broken: {kind}"),
            _ => f.write_str(self.name()),
        }
    }
}

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
