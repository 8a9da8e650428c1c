//! Every limit and timeout of the server, with its default.

mod http2;
mod overload;

pub use self::http2::Http2Limits;
pub use self::overload::{MemoryMax, OverloadLimits};

#[cfg(feature = "config")]
use peregrine_config::{MaybeTime, Size, Time};
use peregrine_proto::h2;
use std::time::Duration;

/// What the server allows a peer, and how long it waits for one. Limits with a default other than
/// none apply unless you change them.
///
/// Sizes are in bytes. A value equal to the limit is still allowed; each field says what happens
/// over it. Limits apply to each connection unless the field says otherwise.
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
    /// A complete head: request line, fields and the empty line. Default 32 KiB, at most 65,535.
    /// Over the limit: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub head_bytes_max: usize,
    /// The request line. Default 8 KiB. Over the limit: 414 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub request_line_bytes_max: usize,
    /// One field line. Default 16 KiB. Over the limit: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub field_bytes_max: usize,
    /// Field lines in one head. Default 100. Over the limit: 431 and close.
    pub fields_max: usize,
    /// The extensions of one chunk of a chunked body. Default 256. Over the limit: 400 and close.
    /// The same happens if the extensions of all chunks together exceed the content received so far
    /// by more than 16 KiB.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub chunk_extension_bytes_max: u16,
    /// The trailer section of a chunked body. Default 8 KiB. Over the limit: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub trailer_bytes_max: usize,
    /// A request's body, unless its route has its own limit. Default 2 MiB. Over the limit, reading
    /// the body fails; the extractors respond with 413.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub body_bytes_max: u64,
    /// How much of a body that the handler did not read is received and discarded so that the
    /// connection can be reused. Default 256 KiB. Over the limit: close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub drain_bytes_max: u32,
    /// From the start of the connection to the first byte of its first request. Default 30 s. After
    /// that: close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub first_byte_timeout: Duration,
    /// From the first byte of a head to its last. Default 10 s. After that: 408 and close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub head_timeout: Duration,
    /// The minimum rate, in bytes per second, at which a peer must send the content that the server
    /// waits for, and receive a response. Default 240. At 0, any byte is enough. Over HTTP/1.1, the
    /// framing of chunks counts as content.
    ///
    /// The rate is measured where this machine's kernel takes response bytes and delivers body
    /// bytes, which happens in lumps. The kernel takes more of a response when half of
    /// `SocketOptions::unsent_bytes_max` has left, or as much as the peer's kernel frees at a time,
    /// if that is more. A peer that reads less than one such lump in `rate_slack` may therefore be
    /// disconnected although it reads: with the defaults, below about 1.1 kB/s, and at a higher
    /// rate if its kernel has a large receive buffer. One lump is a sixteenth of that buffer; on
    /// loopback, clients that read 4 to 6 kB/s were disconnected. Time in which the server waits
    /// for something else, such as a handler that does not read, does not count.
    ///
    /// *Conversations* have no minimum rate: requests with content of unknown length once their
    /// response has begun, and gRPC calls to a mounted service from their head on. Both sides may
    /// be silent in a conversation, as on an upgraded connection, and `upgraded_idle_timeout`
    /// applies.
    pub rate_min: u64,
    /// How far a peer may fall behind `rate_min`, and how long it may transfer nothing at all.
    /// Default 30 s. The server checks at least eight times in this period, so silence may last up
    /// to an eighth longer. If a request's body is too slow, its reader gets an error (408), and
    /// the connection is closed after the response. If a response is received too slowly, the
    /// connection is reset, so that the kernel does not keep the unsent rest.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub rate_slack: Duration,
    /// How long an exchange may take if its handler does not respond at once: until the end of its
    /// response and, if a task continues to read the request's body, until the end of that body.
    /// Default none. After that: 503, or a reset if the response has begun. A task that reads the
    /// body gets an error.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub exchange_timeout: Option<Duration>,
    /// Between a response and the first byte of the next request. Default 75 s. After that: close.
    ///
    /// A handler may leave the request's body to a task that reads it after the response is
    /// complete. If that task reads nothing for this long although data is available, the
    /// application has left the connection idle: the task gets an error, and the rest of the body
    /// is discarded as unwanted.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub idle_timeout: Duration,
    /// The age at which a connection closes, after the response in progress; over HTTP/2 by GOAWAY,
    /// in two steps. Default none. Each connection closes up to a tenth earlier, by a different
    /// amount, so that clients that connected together do not all reconnect together. Without a
    /// maximum age, clients that keep connections open for days stay with the instance and the
    /// worker that they found first; with one, they also reach instances that were started later.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub lifetime_max: Option<Duration>,
    /// Open connections at a time, per worker. Default 16,384. At the limit, further connections
    /// wait in the kernel's backlog. Listeners without their own limits share this number, first
    /// come, first served. On io_uring, if connections arrive at several listeners at the moment
    /// when the last slot is taken, one connection per listener may exceed the limit.
    pub connections_max: usize,
    /// From the start of the connection to the end of the TLS handshake. Default 10 s. After that:
    /// close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub handshake_timeout: Duration,
    /// TLS handshakes in progress at a time, per worker. Default 1,024. Over the limit, the oldest
    /// handshake is aborted; its peer is the least likely to complete it.
    pub handshakes_max: usize,
    /// Response bytes that may wait to be sent. Default 64 KiB. At the limit, the server does not
    /// read, parse or produce more for this connection until the peer has received them. HTTP/2
    /// then produces no more content, but continues to read until twice as much waits. A large
    /// piece (16 KiB and more) of a response is not copied over HTTP/1 and not counted: one of them
    /// waits at a time.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub pending_output_bytes_max: usize,
    /// Request content that may wait for its handler to read it. Default 64 KiB; it may be exceeded
    /// by one chunk as received by the driver. At the limit, the server reads no more of this
    /// request and, over HTTP/1.1, of this connection. Over HTTP/2, the flow-control windows limit
    /// it as well.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub unread_body_bytes_max: usize,
    /// How much the server reads ahead on an HTTP/1.1 connection while a request is being answered:
    /// pipelined requests, and the end of the connection. Default 16 KiB. At the limit, it reads
    /// nothing more until the response is written, and checks from time to time whether the peer
    /// has reset the connection: the handler is then cancelled within 10 s. If the peer only shuts
    /// down its sending side behind so much data, the server does not notice until it reads again.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub read_ahead_bytes_max: usize,
    /// After a response that ends the connection while the peer still sends, the server continues
    /// to read, so that the response is not lost to a reset. It stops when the peer has been silent
    /// for this long, whether or not the peer has more to send. Default 5 s; while the server
    /// drains, `drain_idle_timeout` if that is less. After that: close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub linger_timeout: Duration,
    /// How long the server continues to read at most, even if the peer keeps sending. Default 30 s;
    /// while the server drains, `linger_timeout`. After that: close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub linger_max: Duration,
    /// How long no byte may move in either direction on an upgraded connection or in a conversation
    /// (see `rate_min`). Default 1 hour; `None` is for protocols that monitor their peers
    /// themselves. After that: close. In a conversation, the reader of the request's content gets
    /// an error, up to an eighth of this time later.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub upgraded_idle_timeout: Option<Duration>,
    /// How long a handler, or a stream that it returned, may occupy its thread at a time, between
    /// two `await`s that suspend it. Default 100 ms; `None` disables the check. If a poll takes 1.5
    /// times as long, the server logs a warning that names the route, at most one per minute and
    /// route, while the handler still blocks, and [`Snapshot::blocked`] counts it. The routes
    /// inside a mounted service are not known; a second warning names the request as soon as its
    /// handler returns. To fix it, use `peregrine::offload` or `tokio::task::spawn_blocking`: while
    /// a handler blocks, all other connections of its worker wait. The check costs three stores and
    /// two loads to one cache line in each poll of a handler. A separate thread checks twice per
    /// budget while handlers are polled. It sleeps while no handler is polled, and the poll that
    /// wakes it pays for that.
    ///
    /// [`Snapshot::blocked`]: crate::Snapshot::blocked
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub poll_budget: Option<Duration>,
    /// How long the server continues to accept and answer as before after it was ordered to shut
    /// down, but with `Connection: close`. Default zero. Meanwhile [`Shutdown::is_ordered`] is
    /// true, so a readiness probe can make a load balancer use other instances.
    ///
    /// [`Shutdown::is_ordered`]: crate::Shutdown::is_ordered
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub lame_duck: Duration,
    /// How long connections without a request stay open after `lame_duck`, since a request may be
    /// on its way. Default 1 s. A handshake or a head that has begun has its usual time.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub drain_idle_timeout: Duration,
    /// From the order to shut down, `lame_duck` included, to the moment when everything still in
    /// progress is aborted: busy connections, and tasks and blocking functions that outlive their
    /// requests. Default 30 s.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub shutdown_timeout: Duration,
    /// How long the server waits, after the last connection has ended, for tasks of the worker's
    /// runtime and for functions on its blocking threads, within `shutdown_timeout`. Default 10 s;
    /// zero drops them at once. [`Snapshot::tasks_cut`] counts dropped tasks.
    ///
    /// The application is dropped first, so that tasks of its pools and clients end by themselves;
    /// those of a client in a `static` do not. A task that never ends by itself
    /// should await [`Shutdown::ordered`](crate::Shutdown::ordered).
    ///
    /// [`Snapshot::tasks_cut`]: crate::Snapshot::tasks_cut
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub background_timeout: Duration,
    /// Whether all plain connections come from a trusted gateway that terminates TLS. Requests on
    /// them may then be for `https`, as HAProxy and Envoy declare in HTTP/2. Default false: such a
    /// request gets a 421 (RFC 9110, section 7.4).
    pub behind_gateway: bool,
    /// Limits that apply to HTTP/1.1 and HTTP/1.0 only.
    pub http1: Http1Limits,
    /// Limits that apply to HTTP/2 only. All other limits apply to it as well.
    pub http2: Http2Limits,
    /// When each worker rejects requests because of overload: requests, clients, delay, memory.
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
            rate_min: 240,
            rate_slack: Duration::from_secs(30),
            exchange_timeout: None,
            idle_timeout: Duration::from_secs(75),
            lifetime_max: None,
            connections_max: 16_384,
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1024,
            pending_output_bytes_max: 64 * 1024,
            unread_body_bytes_max: peregrine_web::pipe::PIPE_BYTES_MAX,
            read_ahead_bytes_max: 16 * 1024,
            linger_timeout: Duration::from_secs(5),
            linger_max: Duration::from_secs(30),
            upgraded_idle_timeout: Some(Duration::from_secs(3600)),
            poll_budget: Some(Duration::from_millis(100)),
            lame_duck: Duration::ZERO,
            drain_idle_timeout: Duration::from_secs(1),
            shutdown_timeout: Duration::from_secs(30),
            background_timeout: Duration::from_secs(10),
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
    /// The age limit of a connection that was opened at `born`, as a time on the driver's clock.
    pub(crate) fn end_of_life(&self, born: Duration) -> Duration {
        let Some(life) = self.lifetime_max else { return Duration::MAX };
        // How much earlier the connection closes follows from the millisecond at which it was
        // opened, multiplied by the golden ratio: this spreads consecutive connections as evenly as
        // possible, without any stored state.
        let part = (born.as_millis() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        born.saturating_add(life - life / 10 / 1024 * part as u32)
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate { min: self.rate_min, slack: self.rate_slack }
    }

    /// A conversation has no minimum rate, and may be silent as long as an upgraded connection.
    pub(crate) fn conversation(&self) -> Rate {
        Rate { min: 0, slack: self.upgraded_idle_timeout.unwrap_or(Duration::MAX) }
    }

    /// The limits for the protocol core. Bodies are limited in a higher layer, since a route may
    /// have its own limit.
    pub(crate) fn protocol(&self) -> peregrine_proto::Limits {
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
    pub(crate) fn http2(&self) -> h2::Limits {
        let of = &self.http2;
        h2::Limits {
            request: self.protocol(),
            streams_max: of.streams_max,
            stream_window: of.stream_window.min(WINDOW_MAX),
            stream_window_max: of.stream_window_max.min(WINDOW_MAX),
            connection_window: of.connection_window.min(WINDOW_MAX),
            connection_window_max: of.connection_window_max.min(WINDOW_MAX),
            decoder_table_bytes_max: of.decoder_table_bytes_max,
            encoder_table_bytes_max: of.encoder_table_bytes_max,
            block_bytes_max: of.block_bytes_max,
            continuations_max: of.continuations_max,
            answers_max: of.answers_max,
            connect_protocol: of.connect_protocol,
            budget_max: of.budget_max,
            budget_per_second: of.budget_per_second,
            ..h2::Limits::DEFAULT
        }
    }
}

/// The minimum rate of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Bytes per second; at 0, any byte is enough.
    pub(crate) min: u64,
    /// How far the peer may fall behind.
    pub(crate) slack: Duration,
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
    /// wait for responses. Default false: when the client's side ends, the server assumes that the
    /// client has closed the connection, which is nearly always true. Handlers of requests that
    /// were received completely are still called once, in order, and their responses are sent if
    /// they are ready at once; a body that is complete, or whose length is known, is sent to its
    /// end. A handler that waits, or a stream that has nothing to send, is cancelled, unless its
    /// route has `run_to_end`.
    ///
    /// Set it to true for clients that half-close and then wait, such as scripts that use `nc`. The
    /// server then notices later that a client has closed its connection: while a handler waits,
    /// the server sends `102 Processing` from time to time, to which a closed socket responds with
    /// a reset; a stream continues until its next piece is sent.
    pub half_close: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_came_together_do_not_end_together() {
        let limits = Limits { lifetime_max: Some(Duration::from_secs(1000)), ..Limits::default() };
        let life = |born| {
            limits.end_of_life(Duration::from_millis(born)).as_secs_f64() - born as f64 / 1e3
        };
        for second in [0, 77, 1_000_000] {
            let mut lives: Vec<_> = (second * 1000..second * 1000 + 1000).map(life).collect();
            lives.sort_by(f64::total_cmp);
            assert!(lives[0] >= 900.0 && lives[999] <= 1000.0, "{} to {}", lives[0], lives[999]);
            let each_tenth = lives.chunks(100).zip(0_u32..).all(|(tenth, number)| {
                let from = 900.0 + f64::from(number) * 10.0;
                tenth.iter().all(|life| (from - 1.0..from + 11.0).contains(life))
            });
            assert!(each_tenth, "{lives:?}");
        }
        let ever = Limits { lifetime_max: Some(Duration::MAX), ..Limits::default() };
        assert!(ever.end_of_life(Duration::from_secs(5)) >= Duration::MAX / 10 * 9);
        assert_eq!(Limits::default().end_of_life(Duration::from_secs(5)), Duration::MAX);
    }
}
