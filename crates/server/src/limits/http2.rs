//! The limits of HTTP/2.

#[cfg(feature = "config")]
use peregrine_config::{MaybeTime, Size};
use peregrine_proto::h2;
use std::time::Duration;

/// Limits and settings of HTTP/2 connections. See [`Limits`](crate::Limits).
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
    /// Whether a connection without TLS may start with HTTP/2, as curl's `--http2-prior-knowledge`
    /// and gRPC without TLS do. Default true. If false, the server treats the client's preface as
    /// an HTTP/1.1 request with an unknown version: 505 and close. With TLS, the protocols offered
    /// by ALPN decide: `Tls::with_alpn`.
    pub prior_knowledge: bool,
    /// Whether a client may request another protocol on a stream (RFC 8441), as browsers do for a
    /// WebSocket when they already have an HTTP/2 connection. Default true. To handlers, layers and
    /// mounted services, such a request looks like the GET with `Upgrade` that HTTP/1.1 would use.
    /// If false, browsers open an HTTP/1.1 connection for each WebSocket.
    pub connect_protocol: bool,
    /// How long a client with open streams may be silent before the server sends it a PING. If the
    /// client then remains silent for `rate_slack`, and receives none of the output that is queued
    /// for it, the server closes the connection. Default 60 s; `None` disables the PING. Without
    /// the PING, the handler of a conversation, or of a response that waits for events, keeps
    /// running long after the client has lost its network.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub ping_after: Option<Duration>,
    /// Open streams at a time. Default 128: RFC 9113 recommends at least 100, the number that
    /// browsers and load generators use. At most 32,768. Streams over the limit are refused, and
    /// the client may retry them.
    pub streams_max: u32,
    /// How much content a client may send on a new stream before the handler reads any. Default
    /// 65,535, as in RFC 9113.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub stream_window: u32,
    /// How far the window of a stream grows if content fills it within one round trip. Default 4
    /// MiB, which is 300 Mbit/s at a round-trip time of 100 ms.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub stream_window_max: u32,
    /// How much content a client may send on all streams of a connection before handlers read any:
    /// it limits what a client can make the server buffer. Default 1 MiB. At least 65,535.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub connection_window: u32,
    /// How far the window of a connection grows. Default 8 MiB.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub connection_window_max: u32,
    /// Size of the HPACK table of request fields, which the client fills. Default 4 KiB, as in RFC
    /// 7541. At most 65,535.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub decoder_table_bytes_max: u32,
    /// Size of the HPACK table of response fields. Default 2 KiB, which is about thirty fields. At
    /// most 65,535. Its memory is freed when a connection has been idle for 20 s.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub encoder_table_bytes_max: u32,
    /// Size of a compressed head with all its CONTINUATION frames. Default 64 KiB: twice the
    /// default limit of a head, so that a head that is slightly too long still gets a response.
    /// Over the limit: GOAWAY and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub block_bytes_max: u32,
    /// CONTINUATION frames of one head. Default 32. Over the limit: GOAWAY and close.
    pub continuations_max: u16,
    /// Acknowledgements and resets that may be queued for a client that does not read. Default
    /// 1,000. Over the limit: GOAWAY and close.
    pub answers_max: u16,
    /// The budget for work that a client causes without a benefit. A request that it resets at once
    /// costs 10 and a PING costs 2; a complete response earns 10, and 256 bytes of content earn 1.
    /// A connection starts with this budget, which is also the maximum. Default 2,000, which is 200
    /// requests that are reset at once; a browser that leaves a page resets about 100. When the
    /// budget is used up: GOAWAY (ENHANCE_YOUR_CALM) and close.
    pub budget_max: u32,
    /// How much of `budget_max` is restored each second. Default 50.
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
