//! Why a connection ended, and what was unfinished if the server force-closed it.

use peregrine_proto::{RequestError, h2, proxy_protocol};
use std::fmt;
use std::io;

/// Why a connection ended. Tests and metrics can count these values.
#[derive(Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed the connection after the response to its last request, or without a request.
    PeerClosed,
    /// The peer disconnected in a handshake, or before the response to its request was complete.
    PeerAborted,
    /// The last response was complete, and the connection could not be reused. Over HTTP/1: the
    /// request or the response had `Connection: close`, the client uses HTTP/1.0 without
    /// keep-alive, or the rest of the request's body was too long to discard. Over HTTP/2: the peer
    /// sent GOAWAY, or the server sent it because the connection used a reserved slot.
    ConnectionClose,
    /// No request began within `first_byte_timeout` or, on a listener without TLS, the PROXY header
    /// was not complete within that time.
    FirstByteTimeout,
    /// No further request arrived within `idle_timeout`, or an upgraded protocol was silent for
    /// `upgraded_idle_timeout`.
    IdleTimeout,
    /// A head was not complete within `head_timeout`.
    HeadTimeout,
    /// A request's body arrived too slowly.
    BodyTooSlow,
    /// The peer received the output too slowly, so the connection was reset.
    WriteStalled,
    /// While streams were open, the peer sent nothing for `http2.keep_alive_interval`, so the
    /// server sent a PING. Then the peer sent nothing, and received no queued output, for
    /// `transfer_rate_grace`.
    PingTimeout,
    /// An HTTP/1 response was still being sent when `exchange_timeout` expired.
    ExchangeTimeout,
    /// The connection reached its maximum age.
    ConnectionAgeMax,
    /// A request broke a rule of HTTP or exceeded a limit.
    Rejected(RequestError),
    /// The peer broke a rule of HTTP/2, or used up its budget (`abuse_budget_max`).
    Http2Rejected(h2::Http2Error),
    /// The TLS handshake, or a record after the handshake, failed. The text names the cause.
    TlsFailed(String),
    /// The TLS handshake failed because the client's certificate was rejected, or because the
    /// client sent no certificate although one is required.
    ClientCertificate {
        /// A short name for the error, such as `client-certificate-expired`.
        label: &'static str,
        /// The cause, as TLS reports it.
        cause: String,
    },
    /// The connection was closed during a TLS handshake or a PROXY header, for one of two reasons:
    ///
    /// - On a listener with TLS, the handshake, including any PROXY header before it, was not
    ///   complete within `handshake_timeout`.
    /// - On any listener, more than `handshakes_max` connections were in a TLS handshake or sending
    ///   a PROXY header, and this connection was the oldest of them.
    HandshakeTimeout,
    /// The peer sent plain HTTP to a listener that uses TLS.
    PlaintextOnTlsPort,
    /// The PROXY header is malformed, or missing where it is required.
    ProxyHeaderRejected(proxy_protocol::ProxyProtocolError),
    /// The peer is not trusted to send PROXY headers, and one is required.
    UntrustedProxy,
    /// A handler panicked, and the peer got a 500, or an upgraded protocol panicked.
    HandlerPanicked,
    /// The body of a response failed before it was complete, so the connection was closed.
    ResponseBodyFailed,
    /// The connection was upgraded to another protocol, which has ended.
    Upgraded,
    /// The server was shutting down, possibly because an upgrade in place replaced it, and the
    /// connection was idle or its last response was complete.
    Drained,
    /// The connection was still busy when the shutdown timeout expired.
    ForceClosed,
    /// The connection needed more memory than the worker may use (`overload.memory_max`).
    MemoryMax,
    /// The connection used a reserved slot, because memory, connection slots or file descriptors
    /// were short. It had no request in progress, and another connection needed the slot.
    Evicted,
    /// A PROXY header named a client that has reached its limit of connections. Without a PROXY
    /// header, such a connection is reset when it is accepted and is not counted with this reason.
    ClientConnectionsMax,
    /// The network failed.
    Io(io::ErrorKind),
}

impl CloseReason {
    /// A short name for the reason, by which connections are counted.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::PeerClosed => "peer-closed",
            Self::PeerAborted => "peer-aborted",
            Self::ConnectionClose => "connection-close",
            Self::FirstByteTimeout => "first-byte-timeout",
            Self::IdleTimeout => "idle-timeout",
            Self::HeadTimeout => "head-timeout",
            Self::BodyTooSlow => "body-too-slow",
            Self::WriteStalled => "write-stalled",
            Self::PingTimeout => "ping-timeout",
            Self::ExchangeTimeout => "exchange-timeout",
            Self::ConnectionAgeMax => "connection-age-max",
            Self::Rejected(_) => "rejected",
            Self::Http2Rejected(error) if error.code() == h2::ErrorCode::ENHANCE_YOUR_CALM => {
                "http2-excess"
            }
            Self::Http2Rejected(_) => "http2-rejected",
            Self::TlsFailed(_) => "tls-failed",
            Self::ClientCertificate { label, .. } => label,
            Self::HandshakeTimeout => "handshake-timeout",
            Self::PlaintextOnTlsPort => "plaintext-on-tls-port",
            Self::ProxyHeaderRejected(_) => "proxy-header-rejected",
            Self::UntrustedProxy => "untrusted-proxy",
            Self::HandlerPanicked => "handler-panicked",
            Self::ResponseBodyFailed => "response-body-failed",
            Self::Upgraded => "upgraded",
            Self::Drained => "drained",
            Self::ForceClosed => "force-closed",
            Self::MemoryMax => "memory-max",
            Self::Evicted => "evicted",
            Self::ClientConnectionsMax => "client-connections-max",
            Self::Io(_) => "io-error",
        }
    }

    /// The name in `Limits` of the limit to count for this reason. `None` if no limit closed the
    /// connection, and for `IdleTimeout` and `HandshakeTimeout`, which more than one limit can
    /// cause: the code that detects these timeouts counts the limit.
    pub(crate) fn limit_name(&self) -> Option<&'static str> {
        Some(match self {
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::HeadTimeout => "head_timeout",
            Self::BodyTooSlow | Self::WriteStalled => "transfer_rate_min",
            Self::PingTimeout => "http2.keep_alive_interval",
            Self::ExchangeTimeout => "exchange_timeout",
            Self::ConnectionAgeMax => "connection_age_max",
            Self::MemoryMax => "overload.memory_max",
            Self::ClientConnectionsMax => "overload.connections_per_client_max",
            Self::Rejected(error) => return limit_name_for(*error),
            Self::Http2Rejected(h2::Http2Error::AbuseBudgetExhausted) => "http2.abuse_budget_max",
            Self::Http2Rejected(h2::Http2Error::PendingControlFramesExceeded) => {
                "http2.pending_control_frames_max"
            }
            Self::Http2Rejected(h2::Http2Error::HeaderBlockTooLong) => {
                "http2.header_block_bytes_max"
            }
            _ => return None,
        })
    }
}

/// The name in `Limits` of the limit that a request exceeded, if it was rejected because of one.
pub(crate) fn limit_name_for(error: RequestError) -> Option<&'static str> {
    Some(match error {
        RequestError::HeadTooLong => "head_bytes_max",
        RequestError::RequestLineTooLong => "request_line_bytes_max",
        RequestError::FieldTooLong => "field_bytes_max",
        RequestError::FieldsTooMany => "fields_max",
        RequestError::ChunkExtensionsTooLong => "chunk_extension_bytes_max",
        RequestError::TrailersTooLong => "trailer_bytes_max",
        RequestError::BodyTooLarge => "body_bytes_max",
        _ => return None,
    })
}

impl CloseReason {
    /// Returns whether the connection ended because TLS failed, with or without an alert.
    pub(crate) fn is_tls_failure(&self) -> bool {
        matches!(
            self,
            Self::TlsFailed(_) | Self::ClientCertificate { .. } | Self::PlaintextOnTlsPort
        )
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(error) => write!(f, "rejected: {error}"),
            Self::Http2Rejected(error) => write!(f, "{}: {error}", self.label()),
            Self::ProxyHeaderRejected(error) => write!(f, "proxy-header-rejected: {error}"),
            Self::TlsFailed(cause) => write!(f, "tls-failed: {cause}"),
            Self::ClientCertificate { label, cause } => write!(f, "{label}: {cause}"),
            Self::Io(kind) => write!(f, "io-error: {kind}"),
            _ => f.write_str(self.label()),
        }
    }
}

/// What was unfinished when a connection was force-closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlightStage {
    /// The TLS handshake.
    Handshake,
    /// The head of the next request, whether or not any of it had arrived.
    Head,
    /// The handler.
    Handler,
    /// The response: the server had not written all of it to the connection's output.
    Response,
    /// The delivery: all of the response was written to the output, but the kernel had not accepted
    /// all of the output.
    Delivery,
    /// The protocol that the request switched to, such as a WebSocket.
    Upgraded,
}

impl fmt::Display for InFlightStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handshake => "its TLS handshake was not complete",
            Self::Head => "it was waiting for a request head",
            Self::Handler => "its handler had not responded",
            Self::Response => "its response was not complete",
            Self::Delivery => "its response was not delivered",
            Self::Upgraded => "its upgraded protocol had not ended",
        })
    }
}
