//! Why a connection ended, and what was unfinished if the server ended it.

use peregrine_proto::{Reject, h2, proxy};
use std::fmt;
use std::io;

/// Why a connection ended. Tests and metrics can count these values.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The peer closed the connection between two requests.
    PeerClosed,
    /// The peer disconnected while a request was being received or answered.
    PeerLeft,
    /// The connection closed in order after a response with `Connection: close`, or after the peer
    /// announced that it would close.
    Agreed,
    /// The first byte did not arrive within `first_byte_timeout`.
    FirstByteLate,
    /// No further request arrived within `idle_timeout`, or an upgraded protocol was silent for
    /// `upgraded_idle_timeout`.
    Idle,
    /// A head was not complete within `head_timeout`.
    HeadLate,
    /// A request's body arrived too slowly.
    BodySlow,
    /// The peer did not receive the output in time. The connection was reset.
    WriteStalled,
    /// Streams were open, and the peer did not answer a PING in time.
    PeerSilent,
    /// An exchange took longer than `exchange_timeout`.
    ExchangeLate,
    /// The connection reached its maximum age.
    Lifetime,
    /// The peer broke a rule of HTTP.
    Rejected(Reject),
    /// The peer broke a rule of HTTP/2, or used up its budget (`budget_max`).
    Http2(h2::Reject),
    /// The TLS handshake, or a record after it, failed. The text contains the cause.
    TlsFailed(String),
    /// The TLS handshake failed because the client's certificate was refused, or because the client
    /// sent none although one is required.
    ClientCertificate {
        /// A short name for the fault, such as `client-certificate-expired`.
        fault: &'static str,
        /// The cause, as TLS reports it.
        cause: String,
    },
    /// The TLS handshake was not complete within `handshake_timeout`, or was aborted because of
    /// `handshakes_max`.
    HandshakeLate,
    /// The peer sent plain HTTP to a listener that uses TLS.
    PlainOnTls,
    /// The PROXY header is malformed, or missing where it is required.
    Proxy(proxy::Reject),
    /// The peer is not trusted to send PROXY headers, and one is required.
    NoProxy,
    /// A handler panicked. The peer got a 500.
    HandlerPanicked,
    /// The body of a response failed before its end, so the connection was closed.
    ResponseFailed,
    /// The connection was upgraded to another protocol, which has ended.
    Upgraded,
    /// The server shut down, and the connection closed when it was idle or its last request was
    /// answered.
    Drained,
    /// The connection was still busy when the shutdown timeout expired.
    Cut,
    /// The connection needed more memory than the worker may use (`overload.memory_max`).
    MemoryMax,
    /// The connection used a reserved slot, because memory or connection slots were short. It sent
    /// no request for a while, and another connection needed the slot.
    GaveWay,
    /// A PROXY header named a client that has reached its limit of connections. Without a PROXY
    /// header, such a connection is reset when it is accepted, and does not have this reason.
    ClientConnectionsMax,
    /// The network failed.
    Broken(io::ErrorKind),
}

impl Ended {
    /// A short name for each reason, for counting.
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

    /// If the reason identifies a limit, the name of that limit in `Limits`.
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

/// The name in `Limits` of the limit that a request exceeded, if the reason is a limit.
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
    /// Returns whether the TLS session ended the connection, with or without an alert.
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

/// What was unfinished when a connection was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unfinished {
    /// The TLS handshake.
    Handshake,
    /// The head of a request, or no request had arrived.
    Head,
    /// The handler.
    Handler,
    /// The response: it was not complete, or the peer had not received all of it.
    Response,
    /// The delivery of a complete response.
    Delivery,
    /// The protocol that the request switched to, such as a WebSocket.
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
            Self::Protocol => "its upgraded protocol had not ended",
        })
    }
}
