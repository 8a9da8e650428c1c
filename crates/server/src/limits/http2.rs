//! The limits of HTTP/2.

#[cfg(feature = "config")]
use peregrine_config::{MaybeTime, Size};
use peregrine_proto::h2;
use std::time::Duration;

/// What the server allows a peer that speaks HTTP/2. See [`Limits`](crate::Limits).
///
/// ```
/// use peregrine::{Http2Limits, Limits};
///
/// let http2 = Http2Limits { streams_max: 1000, ..Http2Limits::default() };
/// let limits = Limits { http2, ..Limits::default() };
/// assert!(limits.http2.prior_knowledge);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "config", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub struct Http2Limits {
    /// Whether a connection without TLS may begin with HTTP/2 at once, as curl's
    /// `--http2-prior-knowledge` and gRPC without TLS do. Default true. Without it, such a connection is
    /// answered as HTTP/1.1 answers an unknown version: 505 and close. With TLS, the protocols that are
    /// offered decide: `Tls::with_alpn`.
    pub prior_knowledge: bool,
    /// Whether a client may ask for another protocol on a stream (RFC 8441), as browsers do for a
    /// WebSocket if there is an HTTP/2 connection already. Default true. Handlers, layers and mounted
    /// services see such a request as the GET with `Upgrade` that it would be over HTTP/1.1. Without it,
    /// browsers open a connection of HTTP/1.1 for each WebSocket.
    pub connect_protocol: bool,
    /// While streams are open: how long the client may be silent before it is asked, by PING, whether it is
    /// there. A client that then neither sends anything for `rate_slack` nor takes anything of what waits
    /// for it is left, and its connection closed. Default 60 s; `None` asks nobody. A conversation, or a
    /// response that waits for news, would otherwise keep its handler long after a client that lost its
    /// network.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub ping_after: Option<Duration>,
    /// Streams open at a time. Default 128: the standard recommends no less than 100, which is what
    /// browsers and load tools use. At most 32,768. Passing it: the stream is refused, and the peer may
    /// try again.
    pub streams_max: u32,
    /// How much content a new stream may send before the handler takes any. Default 65,535, the
    /// protocol's own.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub stream_window: u32,
    /// How far that grows while content fills it within a round trip. Default 4 MiB, which is 300 Mbit/s
    /// over 100 ms.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub stream_window_max: u32,
    /// How much content all streams of a connection may send before handlers take any: what a peer can
    /// make the server hold. Default 1 MiB. No less than 65,535.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub connection_window: u32,
    /// How far that grows. Default 8 MiB.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub connection_window_max: u32,
    /// The table of fields that the peer fills. Default 4 KiB, the protocol's own. At most 65,535.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub decoder_table_bytes_max: u32,
    /// The table of fields of responses. Default 2 KiB, which is some thirty. At most 65,535. It is given back
    /// when a connection has been idle for 20 s.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub encoder_table_bytes_max: u32,
    /// A compressed head with all its CONTINUATION frames. Default 64 KiB: twice what a head may have,
    /// so that one that is too long can be answered. Passing it: GOAWAY and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub block_bytes_max: u32,
    /// CONTINUATION frames of one head. Default 32. Passing it: GOAWAY and close.
    pub continuations_max: u16,
    /// Acknowledgements and resets that may wait for a peer that does not read. Default 1,000. Passing
    /// it: GOAWAY and close.
    pub answers_max: u16,
    /// What a peer may make the server do for nothing: requests that it resets at once cost 10, pings 2;
    /// a complete response earns 10, and 256 bytes of content earn 1. This is what a connection begins
    /// with, and the most that it saves up. Default 2,000, which is 200 requests that are reset at once:
    /// a browser that leaves a page resets some 100. Passing it: GOAWAY (ENHANCE_YOUR_CALM) and close.
    pub budget_max: u32,
    /// How much of it comes back each second. Default 50.
    pub budget_per_second: u32,
}

impl Default for Http2Limits {
    fn default() -> Self {
        let of = h2::Limits::DEFAULT;
        Self {
            prior_knowledge: true,
            connect_protocol: of.connect_protocol,
            ping_after: Some(Duration::from_secs(60)),
            streams_max: of.streams_max,
            stream_window: of.stream_window,
            stream_window_max: of.stream_window_max,
            connection_window: of.connection_window,
            connection_window_max: of.connection_window_max,
            decoder_table_bytes_max: of.decoder_table_bytes_max,
            encoder_table_bytes_max: of.encoder_table_bytes_max,
            block_bytes_max: of.block_bytes_max,
            continuations_max: of.continuations_max,
            answers_max: of.answers_max,
            budget_max: of.budget_max,
            budget_per_second: of.budget_per_second,
        }
    }
}
