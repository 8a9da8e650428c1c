//! The limits of HTTP/2.

#[cfg(feature = "config")]
use peregrine_config::{ByteSize, OptionalDuration};
use peregrine_proto::h2;
use std::time::Duration;

/// Limits and settings of HTTP/2 connections. See [`Limits`](crate::Limits).
///
/// ```
/// use peregrine::{Http2Limits, Limits};
///
/// let http2 = Http2Limits { concurrent_streams_max: 1000, ..Http2Limits::default() };
/// let limits = Limits { http2, ..Limits::default() };
/// assert!(limits.http2.prior_knowledge);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "config", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub struct Http2Limits {
    /// Whether a connection without TLS may start with HTTP/2, as with curl's
    /// `--http2-prior-knowledge` and gRPC without TLS. Default true. If false, the server treats
    /// the client's preface as a request with an unsupported HTTP version: 505 and close. With TLS,
    /// ALPN selects the protocol instead: see `TlsConfig::with_alpn`.
    #[doc(alias = "h2c")]
    #[doc(alias = "http2_prior_knowledge")]
    pub prior_knowledge: bool,
    /// Whether a client may request another protocol on a stream (RFC 8441). Browsers do so for a
    /// WebSocket if they already have an HTTP/2 connection. Default true. Handlers, layers and
    /// mounted services receive such a request as a GET with `Upgrade`, as over HTTP/1.1. If false,
    /// browsers open an HTTP/1.1 connection for each WebSocket.
    #[doc(alias = "SETTINGS_ENABLE_CONNECT_PROTOCOL")]
    pub enable_connect_protocol: bool,
    /// How long a client with open streams may be silent before the server sends it a PING. If the
    /// client then sends nothing for `transfer_rate_grace`, and receives none of the output that is
    /// queued for it, the server closes the connection. Default 60 s; `None` disables the PING.
    /// Without the PING, the server does not notice that a client has lost its network, and
    /// handlers that wait for its data or for events keep running for a long time.
    #[doc(alias = "http2_keep_alive_interval")]
    #[doc(alias = "ping_interval")]
    #[cfg_attr(feature = "config", serde(with = "OptionalDuration"))]
    pub keep_alive_interval: Option<Duration>,
    /// The number of streams that may be open at a time. Default 128: RFC 9113 recommends at least
    /// 100, the number that browsers and load generators use. At most 32,768. Streams over the
    /// limit are refused, and the client may retry them.
    #[doc(alias = "max_concurrent_streams")]
    #[doc(alias = "http2_max_concurrent_streams")]
    pub concurrent_streams_max: u32,
    /// How many bytes of content a client may send on a new stream before the handler reads any.
    /// Default 65,535, as in RFC 9113.
    #[doc(alias = "initial_stream_window_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub initial_stream_window: u32,
    /// The maximum window of a stream. The server enlarges a window that content fills within one
    /// round trip. Default 4 MiB, which allows 300 Mbit/s at a round-trip time of 100 ms.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub stream_window_max: u32,
    /// How many bytes of content a client may send on all streams of a connection together before
    /// handlers read any. This limits how much a client can make the server buffer. Default 1 MiB.
    /// At least 65,535.
    #[doc(alias = "initial_connection_window_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub initial_connection_window: u32,
    /// The maximum window of a connection, which grows like that of a stream. Default 8 MiB.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub connection_window_max: u32,
    /// The size of the HPACK table of request fields, which the client fills. Default 4 KiB, as in
    /// RFC 7541. At most 65,535.
    #[doc(alias = "SETTINGS_HEADER_TABLE_SIZE")]
    #[doc(alias = "header_table_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub hpack_decoder_table_bytes_max: u32,
    /// The size of the HPACK table of response fields. Default 2 KiB, which is about thirty fields.
    /// At most 65,535. Its memory is freed when the connection has been idle for 20 s.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub hpack_encoder_table_bytes_max: u32,
    /// The size of a compressed head with all its CONTINUATION frames. Default 64 KiB. This is
    /// twice the default of `head_bytes_max`, so a head that is slightly too long still gets a
    /// response (431). Over the limit: GOAWAY and close.
    #[doc(alias = "max_header_list_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub header_block_bytes_max: u32,
    /// The number of CONTINUATION frames of one head. Default 32. Over the limit: GOAWAY and close.
    pub continuation_frames_max: u16,
    /// The number of acknowledgements and resets that may be queued for a client that does not
    /// read. Default 1,000. Over the limit: GOAWAY and close.
    #[doc(alias = "max_outbound_ack")]
    pub pending_control_frames_max: u16,
    /// The budget of a connection for useless work that its client causes. A request that the
    /// client resets before its response begins costs 10, and a PING costs 2. A complete response
    /// restores 10, and 256 bytes of content restore 1. A connection starts with this budget and
    /// never has more. Default 2,000, which is enough for 200 such resets; when a browser leaves a
    /// page, it resets about 100 requests. When the budget is used up: GOAWAY (ENHANCE_YOUR_CALM)
    /// and close.
    #[doc(alias = "glitches_threshold")]
    #[doc(alias = "max_pending_accept_reset_streams")]
    pub abuse_budget_max: u32,
    /// How much of `abuse_budget_max` is restored each second. Default 50.
    pub abuse_budget_per_second: u32,
}

impl Default for Http2Limits {
    fn default() -> Self {
        let defaults = h2::Limits::DEFAULT;
        Self {
            prior_knowledge: true,
            enable_connect_protocol: defaults.enable_connect_protocol,
            keep_alive_interval: Some(Duration::from_secs(60)),
            concurrent_streams_max: defaults.concurrent_streams_max,
            initial_stream_window: defaults.initial_stream_window,
            stream_window_max: defaults.stream_window_max,
            initial_connection_window: defaults.initial_connection_window,
            connection_window_max: defaults.connection_window_max,
            hpack_decoder_table_bytes_max: defaults.hpack_decoder_table_bytes_max,
            hpack_encoder_table_bytes_max: defaults.hpack_encoder_table_bytes_max,
            header_block_bytes_max: defaults.header_block_bytes_max,
            continuation_frames_max: defaults.continuation_frames_max,
            pending_control_frames_max: defaults.pending_control_frames_max,
            abuse_budget_max: defaults.abuse_budget_max,
            abuse_budget_per_second: defaults.abuse_budget_per_second,
        }
    }
}
