//! Every limit and timeout of the server, with its default.

mod http2;
mod overload;

pub use self::http2::Http2Limits;
pub use self::overload::{MemoryMax, OverloadLimits};

#[cfg(feature = "config")]
use peregrine_config::{ByteSize, HumanDuration, OptionalDuration};
use peregrine_proto::h2;
use std::time::Duration;

/// How much a peer may use, and how long the server waits for it. Every limit applies with its
/// default unless you change it. A default of "none" means that there is no limit.
///
/// Sizes are in bytes. A value equal to the limit is still allowed. The description of each field
/// states what happens over the limit. A limit applies to each connection separately unless its
/// description states otherwise.
///
/// ```
/// use peregrine::Limits;
/// use std::time::Duration;
///
/// let limits = Limits { idle_timeout: Duration::from_secs(15), ..Limits::default() };
/// assert_eq!(limits.head_bytes_max, 32 * 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "config", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// The size of a complete head: request line, fields and the empty line. Default 32 KiB, at
    /// most 65,535. Over the limit: 431 and close.
    #[doc(alias = "large_client_header_buffers")]
    #[doc(alias = "max_header_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub head_bytes_max: usize,
    /// The length of the request line. Default 8 KiB. Over the limit: 414 and close.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub request_line_bytes_max: usize,
    /// The length of one field line. Default 16 KiB. Over the limit: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub field_bytes_max: usize,
    /// The number of field lines in one head. Default 100. Over the limit: 431; an HTTP/1.1
    /// connection is then closed.
    #[doc(alias = "max_headers")]
    pub fields_max: usize,
    /// The size of the extensions of one chunk of a chunked body. Default 256. Over the limit: 400
    /// and close. There is also a fixed limit: the extensions of all chunks together may exceed the
    /// content received so far by at most 16 KiB. Over that: 400 and close.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub chunk_extension_bytes_max: u16,
    /// The size of the trailer section of a chunked body. Default 8 KiB. Over the limit: 431 and
    /// close.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub trailer_bytes_max: usize,
    /// The size of a request's body. A route can have its own limit instead. Default 2 MiB. Over
    /// the limit, reading the body fails, and the extractors respond with 413.
    #[doc(alias = "client_max_body_size")]
    #[doc(alias = "DefaultBodyLimit")]
    #[doc(alias = "PayloadConfig")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub body_bytes_max: u64,
    /// How much of a request's body the server receives and discards, so that the connection can be
    /// reused, if the handler does not read all of it. Default 256 KiB. Over the limit: close.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub drain_bytes_max: u32,
    /// The time from the start of the connection, or from the end of its TLS handshake, to the
    /// first byte of its first request. Default 30 s. After that: close.
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub first_byte_timeout: Duration,
    /// The time from the first byte of a head to its last. Default 10 s. After that: 408 and close.
    #[doc(alias = "client_header_timeout")]
    #[doc(alias = "header_read_timeout")]
    #[doc(alias = "client_request_timeout")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub head_timeout: Duration,
    /// The minimum rate, in bytes per second, at which a peer must send and receive. It applies
    /// while the server waits for request content, and while the peer receives a response. Default
    /// 240; at 0, a peer only has to transfer at least one byte per `transfer_rate_grace`. Over
    /// HTTP/1.1, the framing of chunks counts as content. Time in which the server waits for
    /// something other than the peer, such as a handler that does not read, does not count.
    ///
    /// The server cannot measure exactly how fast a peer receives, because the server's kernel
    /// accepts response bytes in steps. One step is half of `SocketOptions::notsent_lowat_bytes`,
    /// or a sixteenth of the receive buffer of the peer's kernel, whichever is larger. A peer that
    /// reads less than one step in `transfer_rate_grace` may be disconnected although it reads.
    /// With the defaults, this happens below about 1.1 kB/s. If the peer's kernel has a large
    /// receive buffer, it happens at higher rates: on loopback, clients that read 4 to 6 kB/s were
    /// disconnected.
    ///
    /// The request content of a *bidirectional stream* need not arrive at a minimum rate. A
    /// bidirectional stream is a request with content of unknown length whose response has begun,
    /// or a gRPC call to a mounted service. As on an upgraded connection, both sides may be silent,
    /// and `upgraded_idle_timeout` applies instead. The peer must still receive the response at the
    /// minimum rate.
    #[doc(alias = "MinRequestBodyDataRate")]
    #[doc(alias = "send_timeout")]
    #[doc(alias = "client_body_timeout")]
    pub transfer_rate_min: u64,
    /// How far a peer may fall behind `transfer_rate_min`, and how long it may transfer nothing at
    /// all. Default 30 s. The server checks eight times in this period, so it may detect silence up
    /// to an eighth later. If the peer sends a request's body too slowly, reading the body fails
    /// (408), and the connection is closed after the response. If the peer receives a response too
    /// slowly, the connection is reset, so that the kernel discards the unsent rest.
    #[doc(alias = "GracePeriod")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub transfer_rate_grace: Duration,
    /// How long an exchange may take. The time starts when the exchange first has to wait, usually
    /// because its handler is not ready at once. An exchange ends with its response or, if a task
    /// continues to read the request's body, with that body. Default none. After that: 503, or a
    /// reset if the response has begun. A task that reads the body gets an error.
    #[doc(alias = "request_timeout")]
    #[cfg_attr(feature = "config", serde(with = "OptionalDuration"))]
    pub exchange_timeout: Option<Duration>,
    /// The time between a response and the first byte of the next request. Default 75 s. After
    /// that: close.
    ///
    /// A handler may pass the request's body to a task that continues to read it after the
    /// response. If that task reads nothing for this long although data is available, it gets an
    /// error, and the rest of the body is discarded.
    #[doc(alias = "keepalive_timeout")]
    #[doc(alias = "keep_alive")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub idle_timeout: Duration,
    /// The maximum age of a connection. The connection then closes after the response in progress;
    /// over HTTP/2, the server sends GOAWAY in two steps. Default none. Without a maximum age,
    /// clients that keep connections open for days stay with the same instance and worker, and
    /// never reach instances that were started later. Each connection closes earlier by a different
    /// amount, up to a tenth of this age, so that clients that connected at the same time do not
    /// all reconnect at the same time.
    #[doc(alias = "MAX_CONNECTION_AGE")]
    #[doc(alias = "keepalive_time")]
    #[cfg_attr(feature = "config", serde(with = "OptionalDuration"))]
    pub connection_age_max: Option<Duration>,
    /// The number of connections that may be open at a time, per worker. Default 16,384. At the
    /// limit, further connections wait in the kernel's backlog. All listeners without their own
    /// limits share this number. On io_uring, each listener may exceed the limit by one connection
    /// if connections arrive at several listeners while only one slot is left.
    #[doc(alias = "worker_connections")]
    #[doc(alias = "max_connections")]
    pub connections_max: usize,
    /// The time from the start of the connection to the end of the TLS handshake. Default 10 s.
    /// After that: close.
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub handshake_timeout: Duration,
    /// The number of TLS handshakes that may be in progress at a time, per worker. Receiving a
    /// PROXY header counts as a handshake. Default 1,024. Over the limit, the oldest handshake is
    /// aborted, because its peer is the least likely to complete it.
    #[doc(alias = "max_connection_rate")]
    pub handshakes_max: usize,
    /// How many response bytes may wait to be sent. Default 64 KiB. At the limit, an HTTP/1
    /// connection reads no further request and produces no more content until the peer has received
    /// some of these bytes. An HTTP/2 connection produces no more content, but continues to read
    /// until twice as much is waiting. Over HTTP/1, a large chunk of a response (16 KiB or more) is
    /// not copied and not counted, and at most one such chunk waits at a time.
    #[doc(alias = "max_buf_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub write_buffer_bytes_max: usize,
    /// How many bytes of a request's content may wait for the handler to read them. Default 64 KiB.
    /// The content may exceed the limit by one read from the socket. At the limit, the server reads
    /// no more content of this request. Over HTTP/1.1, the server stops reading from the
    /// connection. Over HTTP/2, the flow-control windows limit the content as well.
    #[doc(alias = "client_body_buffer_size")]
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub body_buffer_bytes_max: usize,
    /// How much the server reads ahead on an HTTP/1.1 connection while it responds to a request. It
    /// reads ahead to detect a disconnect, and to receive pipelined requests. Default 16 KiB. At
    /// the limit, the server stops reading until the response is written. Until then, it checks at
    /// least every 10 s whether the peer has reset the connection; if so, it cancels the handler.
    /// If the peer only shuts down its sending side, the server does not notice until it reads
    /// again.
    #[cfg_attr(feature = "config", serde(with = "ByteSize"))]
    pub read_ahead_bytes_max: usize,
    /// How long a peer may be silent while the server lingers. The server lingers if a response
    /// ends the connection while the peer may still be sending: it continues to read, because
    /// closing immediately would reset the connection, and a reset can destroy the response.
    /// Default 5 s; while the server drains, `drain_idle_timeout` if that is less. After that:
    /// close.
    #[doc(alias = "lingering_timeout")]
    #[doc(alias = "client_disconnect_timeout")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub linger_timeout: Duration,
    /// How long the server lingers (see `linger_timeout`) if the peer keeps sending. Default 30 s;
    /// while the server drains, `linger_timeout`. After that: close.
    #[doc(alias = "lingering_time")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub linger_time_max: Duration,
    /// How long both sides of an upgraded connection or of a bidirectional stream (see
    /// `transfer_rate_min`) may be silent. Default 1 hour. After that: close. In a bidirectional
    /// stream, reading the request's content fails instead, up to an eighth of this time later. Set
    /// this timeout to `None` only if the protocols themselves detect peers that have disappeared.
    #[cfg_attr(feature = "config", serde(with = "OptionalDuration"))]
    pub upgraded_idle_timeout: Option<Duration>,
    /// How long one poll of a handler, or of a stream that it returned, may take: the time between
    /// two `await`s that suspend it. Default 100 ms; `None` disables the check. While a handler
    /// blocks its thread, all other connections of its worker wait. A separate thread checks only
    /// twice in each period of this length, so it detects every poll that takes 1.5 times as long,
    /// and none that takes less than this. [`WorkerStats::blocking_polls`] counts the detected
    /// polls, and the server logs a warning that names the route, at most one per minute and route.
    /// The warning is logged while the handler still blocks. If the handler is inside a mounted
    /// service, the warning names only the mount, and a second warning names the request when the
    /// handler returns. To fix a blocking handler, use `peregrine::spawn_blocking` or
    /// `tokio::task::spawn_blocking`. The check costs three stores to one cache line and two loads
    /// from it in each poll of a handler. The separate thread sleeps while no handler is polled.
    ///
    /// [`WorkerStats::blocking_polls`]: crate::WorkerStats::blocking_polls
    #[doc(alias = "slow_poll_threshold")]
    #[cfg_attr(feature = "config", serde(with = "OptionalDuration"))]
    pub blocking_poll_threshold: Option<Duration>,
    /// The lame-duck time: after a shutdown is requested, the server continues to accept
    /// connections and to respond to requests for this long, but it closes each connection after
    /// its next response. Default zero. During this time [`Shutdown::is_requested`] returns true,
    /// so a readiness probe can fail, and the load balancer then uses other instances.
    ///
    /// [`Shutdown::is_requested`]: crate::Shutdown::is_requested
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub lame_duck_period: Duration,
    /// How long an idle connection stays open after the lame-duck time, because a request may be on
    /// its way. Default 1 s. If a handshake or a head has begun, its usual timeout applies.
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub drain_idle_timeout: Duration,
    /// The time from the shutdown request, including `lame_duck_period`, to the moment when the
    /// server aborts everything that is still in progress: it ends busy connections, and stops
    /// waiting for tasks and blocking functions that outlive their requests. Default 30 s.
    #[doc(alias = "worker_shutdown_timeout")]
    #[doc(alias = "graceful_shutdown")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub shutdown_timeout: Duration,
    /// How long the server waits, after its last connection has ended and within
    /// `shutdown_timeout`, for tasks of the worker's runtime and for functions on its blocking
    /// threads. Default 10 s; at zero, it does not wait. [`WorkerStats::aborted_tasks`] counts the
    /// tasks that are dropped after this wait.
    ///
    /// The application is dropped before this wait, so that the tasks of its connection pools and
    /// clients end. A client in a `static` is not dropped, so its tasks do not end. An endless task
    /// should await [`Shutdown::requested`](crate::Shutdown::requested).
    ///
    /// [`WorkerStats::aborted_tasks`]: crate::WorkerStats::aborted_tasks
    #[doc(alias = "shutdown_timeout")]
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub background_task_timeout: Duration,
    /// Whether all plain connections come from a trusted gateway that terminates TLS. If true,
    /// their requests may have the scheme `https`, which HAProxy and Envoy send over HTTP/2.
    /// Default false: such a request gets a 421 (RFC 9110, section 7.4).
    pub behind_gateway: bool,
    /// Limits that apply to HTTP/1.1 and HTTP/1.0 only.
    pub http1: Http1Limits,
    /// Limits that apply to HTTP/2 only. The limits outside `http1` and `http2` apply to both
    /// versions.
    pub http2: Http2Limits,
    /// When a worker rejects requests because of overload: too many requests in all or per client,
    /// too much delay, or too little memory.
    pub overload: OverloadLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes_max: 32 * 1024,
            request_line_bytes_max: 8 * 1024,
            field_bytes_max: 16 * 1024,
            fields_max: 100,
            chunk_extension_bytes_max: 256,
            trailer_bytes_max: 8 * 1024,
            body_bytes_max: 2 * 1024 * 1024,
            drain_bytes_max: 256 * 1024,
            first_byte_timeout: Duration::from_secs(30),
            head_timeout: Duration::from_secs(10),
            transfer_rate_min: 240,
            transfer_rate_grace: Duration::from_secs(30),
            exchange_timeout: None,
            idle_timeout: Duration::from_secs(75),
            connection_age_max: None,
            connections_max: 16_384,
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1024,
            write_buffer_bytes_max: 64 * 1024,
            body_buffer_bytes_max: peregrine_web::pipe::DEFAULT_PIPE_BYTES_MAX,
            read_ahead_bytes_max: 16 * 1024,
            linger_timeout: Duration::from_secs(5),
            linger_time_max: Duration::from_secs(30),
            upgraded_idle_timeout: Some(Duration::from_secs(3600)),
            blocking_poll_threshold: Some(Duration::from_millis(100)),
            lame_duck_period: Duration::ZERO,
            drain_idle_timeout: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(30),
            background_task_timeout: Duration::from_secs(10),
            behind_gateway: false,
            http1: Http1Limits::default(),
            http2: Http2Limits::default(),
            overload: OverloadLimits::default(),
        }
    }
}

/// RFC 9113 §6.9.1: no window may be larger.
const WINDOW_MAX: u32 = i32::MAX.cast_unsigned();

impl Limits {
    /// When a connection reaches its maximum age, on the driver's clock.
    pub(crate) fn expires_at(&self, accepted_at: Duration) -> Duration {
        let Some(age_max) = self.connection_age_max else { return Duration::MAX };
        // The millisecond at which the connection was accepted is multiplied by the golden ratio.
        // The top 10 bits of the product are the number of steps by which the connection closes
        // earlier; 1,024 steps are a tenth of the age. This spreads consecutive connections as
        // evenly as possible, without any stored state.
        let steps = (accepted_at.as_millis() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        accepted_at.saturating_add(age_max - age_max / 10 / 1024 * steps as u32)
    }

    pub(crate) fn min_rate(&self) -> MinRate {
        MinRate { bytes_per_second: self.transfer_rate_min, grace: self.transfer_rate_grace }
    }

    /// The rate for the silence of both sides of a bidirectional stream (see `transfer_rate_min`):
    /// no minimum, but at most `upgraded_idle_timeout` without any content.
    pub(crate) fn bidi_min_rate(&self) -> MinRate {
        MinRate { bytes_per_second: 0, grace: self.upgraded_idle_timeout.unwrap_or(Duration::MAX) }
    }

    /// The limits for the protocol core. The core does not limit the size of bodies, because a
    /// route may have its own limit, which only a higher layer knows.
    pub(crate) fn to_proto(&self) -> peregrine_proto::Limits {
        peregrine_proto::Limits {
            head_bytes_max: self.head_bytes_max,
            request_line_bytes_max: self.request_line_bytes_max,
            field_bytes_max: self.field_bytes_max,
            fields_max: self.fields_max,
            body_bytes_max: u64::MAX,
            chunk_extension_bytes_max: self.chunk_extension_bytes_max,
            trailer_bytes_max: self.trailer_bytes_max,
            drain_bytes_max: self.drain_bytes_max,
        }
    }

    /// The limits for the HTTP/2 protocol core.
    pub(crate) fn to_proto_http2(&self) -> h2::Limits {
        let http2 = &self.http2;
        h2::Limits {
            request: self.to_proto(),
            concurrent_streams_max: http2.concurrent_streams_max,
            initial_stream_window: http2.initial_stream_window.min(WINDOW_MAX),
            stream_window_max: http2.stream_window_max.min(WINDOW_MAX),
            initial_connection_window: http2.initial_connection_window.min(WINDOW_MAX),
            connection_window_max: http2.connection_window_max.min(WINDOW_MAX),
            hpack_decoder_table_bytes_max: http2.hpack_decoder_table_bytes_max,
            hpack_encoder_table_bytes_max: http2.hpack_encoder_table_bytes_max,
            header_block_bytes_max: http2.header_block_bytes_max,
            continuation_frames_max: http2.continuation_frames_max,
            pending_control_frames_max: http2.pending_control_frames_max,
            enable_connect_protocol: http2.enable_connect_protocol,
            abuse_budget_max: http2.abuse_budget_max,
            abuse_budget_per_second: http2.abuse_budget_per_second,
            ..h2::Limits::DEFAULT
        }
    }
}

/// The minimum rate of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinRate {
    /// Bytes per second; at 0, any byte is enough.
    pub(crate) bytes_per_second: u64,
    /// How long the peer may take beyond the time that `bytes_per_second` allows.
    pub(crate) grace: Duration,
}

/// Limits and settings of HTTP/1.1 and HTTP/1.0 connections. See [`Limits`].
///
/// ```
/// use peregrine::Limits;
///
/// let mut limits = Limits::default();
/// assert!(!limits.http1.half_close);
/// limits.http1.half_close = true;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "config", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub struct Http1Limits {
    /// Whether a client may shut down its sending side (FIN, or `close_notify` over TLS) and still
    /// wait for responses. Default false: when the client's sending side ends, the server assumes
    /// that the client has closed the connection, which is nearly always true. The server still
    /// calls the handlers of requests that were received completely, once and in order. It sends
    /// responses that are ready on the handler's first poll, and it sends the rest of a body whose
    /// length is known. It cancels a response stream of unknown length that has nothing to send. It
    /// also cancels a handler that waits, unless its route has `run_to_completion`.
    ///
    /// Set it to true for clients that half-close and then wait, such as scripts that use `nc`. The
    /// server then notices later that a client has closed its connection. While a handler waits,
    /// the server sends `102 Processing` from time to time, to which a closed socket responds with
    /// a reset. While it sends a response stream, it detects the close only when it sends the next
    /// chunk.
    pub half_close: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_opened_together_expire_at_different_times() {
        let limits =
            Limits { connection_age_max: Some(Duration::from_secs(1000)), ..Limits::default() };
        let lifetime = |accepted_at| {
            limits.expires_at(Duration::from_millis(accepted_at)).as_secs_f64()
                - accepted_at as f64 / 1e3
        };
        for second in [0, 77, 1_000_000] {
            let mut lifetimes: Vec<_> =
                (second * 1000..second * 1000 + 1000).map(lifetime).collect();
            lifetimes.sort_by(f64::total_cmp);
            assert!(
                lifetimes[0] >= 900.0 && lifetimes[999] <= 1000.0,
                "{} to {}",
                lifetimes[0],
                lifetimes[999]
            );
            let is_evenly_spread = lifetimes.chunks(100).zip(0_u32..).all(|(tenth, index)| {
                let from = 900.0 + f64::from(index) * 10.0;
                tenth.iter().all(|lifetime| (from - 1.0..from + 11.0).contains(lifetime))
            });
            assert!(is_evenly_spread, "{lifetimes:?}");
        }
        let unlimited = Limits { connection_age_max: Some(Duration::MAX), ..Limits::default() };
        assert!(unlimited.expires_at(Duration::from_secs(5)) >= Duration::MAX / 10 * 9);
        assert_eq!(Limits::default().expires_at(Duration::from_secs(5)), Duration::MAX);
    }
}
