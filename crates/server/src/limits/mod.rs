//! Every limit and timeout of the server, with its default.

mod http2;
mod overload;

pub use self::http2::Http2Limits;
pub use self::overload::{MemoryMax, OverloadLimits};

#[cfg(feature = "config")]
use peregrine_config::{MaybeTime, Size, Time};
use peregrine_proto::h2;
use std::time::Duration;

/// What the server allows a peer, and how long it waits for one. What has a default other than none
/// is on by default.
///
/// Sizes are in bytes. A limit that is reached is still allowed; passing it has the effect told at
/// each. Everything holds per connection unless said otherwise.
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
    /// A whole head: request line, fields, and the empty line. Default 32 KiB, at most 65,535.
    /// Passing it: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub head_bytes_max: usize,
    /// The request line. Default 8 KiB. Passing it: 414 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub request_line_bytes_max: usize,
    /// One field line. Default 16 KiB. Passing it: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub field_bytes_max: usize,
    /// Field lines in one head. Default 100. Passing it: 431 and close.
    pub fields_max: usize,
    /// The extensions of one chunk of a chunked body. Default 256. Passing it: 400 and close, as where those of all
    /// chunks are more than 16 KiB longer than the content so far.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub chunk_extension_bytes_max: u16,
    /// The trailer section of a chunked body. Default 8 KiB. Passing it: 431 and close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub trailer_bytes_max: usize,
    /// A request's body, unless its route has a limit of its own. Default 2 MiB. Passing it is an
    /// error for whoever reads the body; the extractors answer 413.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub body_bytes_max: u64,
    /// How much of a body that the handler did not read is received and thrown away so that the
    /// connection can be used again. Default 256 KiB. Passing it: close.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub drain_bytes_max: u32,
    /// From the connection's start to the first byte of its first request. Default 30 s. Passing it:
    /// close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub first_byte_timeout: Duration,
    /// From the first byte of a head to its last. Default 10 s. Passing it: 408 and close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub head_timeout: Duration,
    /// The least rate, in bytes a second, at which a peer must send the content that the server waits
    /// for, and take a response. Default 240; 0: any byte will do. Over HTTP/1.1, what is around chunks counts as they do.
    ///
    /// It is the rate at which this machine's kernel takes a response and gives a body, which is in lumps. Of a response
    /// it takes more when half of `SocketOptions::unsent_bytes_max` has left, or what the peer's kernel makes room for
    /// at a time, if that is more. So a reader may be cut off that reads, but takes less than such a lump in
    /// `rate_slack`: below some 1.1 kB/s with the defaults, and more where its kernel has a large buffer (a sixteenth of it
    /// is a lump; on loopback, readers of 4 to 6 kB/s were cut off). Time in which the server waits
    /// for something else, such as a handler that does not read, does not count.
    ///
    /// A *conversation* has no such rate: a request whose content promises no length, once its response has
    /// begun, and a call of gRPC to a mounted service from its head on. Both sides may be silent there,
    /// as on an upgraded connection, and `upgraded_idle_timeout` holds.
    pub rate_min: u64,
    /// How far a peer may fall behind `rate_min`, and how long it may move nothing at all. Default
    /// 30 s. The server looks eight times in it at the least whether something moved, so silence may last an
    /// eighth longer. Passing it with a request's body: its reader sees an error (408), and the connection is
    /// closed after the response. With a response: the connection is reset, so that the kernel keeps
    /// nothing of what the peer did not take.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub rate_slack: Duration,
    /// From the moment when a request could not be answered at once to the end of its response, and
    /// of its body where somebody goes on reading that. Default none. Passing it: 503, or a reset if
    /// the response has begun. Who reads on sees an error.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub exchange_timeout: Option<Duration>,
    /// Between a response and the first byte of the next request. Default 75 s. Passing it: close.
    ///
    /// A handler may leave the request's body to a task that reads on when the response is complete.
    /// If that task takes nothing for so long, though there is something, the connection is idle as
    /// well, by the application's doing: the reader sees an error, and the rest is treated as one that
    /// nobody wants.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub idle_timeout: Duration,
    /// The age at which a connection is told to close, after the response in progress; over HTTP/2 by GOAWAY, in two
    /// steps. Default none. It comes up to a tenth earlier, for each connection another part of that, so that clients
    /// that came together do not all come again together. Clients that keep connections for days stay with the
    /// instance, and the worker, that they found first: an age brings them to those that came later.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub lifetime_max: Option<Duration>,
    /// Connections open at a time, per worker. Default 16,384. When it is reached, further
    /// connections wait in the kernel's backlog. Listeners without limits of their own share them: whoever comes
    /// first has a place, at whichever of them. On io_uring, where several come at several listeners in the moment
    /// in which the last place is taken, one of each may be open beside it.
    pub connections_max: usize,
    /// From the connection's start to the end of the TLS handshake. Default 10 s. Passing it: close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub handshake_timeout: Duration,
    /// TLS handshakes in progress at a time, per worker. Default 1,024. One too many ends the oldest
    /// of them, which is one whose peer does not go on.
    pub handshakes_max: usize,
    /// Bytes of responses that may wait to be sent. Default 64 KiB. When it is reached, the server
    /// does not read, parse or produce more for this connection until the peer took them. HTTP/2 produces no
    /// more content then, and reads on until twice as much waits. A large piece (16 KiB and more) that the
    /// application shares with HTTP/1 is not copied and not counted: one of them waits at a time.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub pending_output_bytes_max: usize,
    /// Content of a request that may wait for its handler to take it. Default 64 KiB, and at most one piece of what
    /// the driver receives more. When it is reached, nothing more is read of this request, and over HTTP/1.1 of this
    /// connection. Over HTTP/2 windows bound it as well.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub unread_body_bytes_max: usize,
    /// What is read ahead of a connection of HTTP/1.1 while its request is answered: requests that follow it, and
    /// whether the peer leaves. Default 16 KiB. When it is reached, nothing more is read until the response is written, and
    /// the kernel is asked now and then whether the peer broke the connection off: within 10 s of that the handler ends. That
    /// a peer only ended its side behind so much is not seen before that.
    #[cfg_attr(feature = "config", serde(with = "Size"))]
    pub read_ahead_bytes_max: usize,
    /// After an answer that ends the connection while the peer still sends, the server goes on reading,
    /// so that the answer is not lost to a reset: until the peer has been silent for this long, whether or not it has more to
    /// send. Default 5 s; while the server drains, `drain_idle_timeout`, if that is less. Passing it: close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub linger_timeout: Duration,
    /// How long the server goes on reading at the most, however fast the peer sends. Default 30 s; while the server drains,
    /// `linger_timeout`. Passing it: close.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub linger_max: Duration,
    /// How long no byte may move on an upgraded connection, or of a conversation (see `rate_min`), either way.
    /// Default 1 hour; `None` for protocols that watch their peers themselves. Passing it: close; in a
    /// conversation, whoever reads the request's content sees an error, up to an eighth of the time later.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub upgraded_idle_timeout: Option<Duration>,
    /// How long a handler, or a stream that it made, may keep its thread at a time, between two
    /// `await`s that wait. Default 100 ms; `None` looks for nothing. Passing it by half: a warning
    /// that names the route, at most one a minute for each, and [`Snapshot::blocked`] counts it; it
    /// comes while the handler still blocks. Inside a mounted service, whose routes are not known, a
    /// second one names the request as soon as its handler gives the thread back. The remedy is
    /// `peregrine::offload`, or `tokio::task::spawn_blocking`: while a handler blocks, all other
    /// connections of its worker wait. Each poll of a handler pays three stores and two loads for
    /// this, to one line of the cache. A thread of its own looks twice in each budget while handlers
    /// are polled, and sleeps while none is; the poll that wakes it pays for that.
    ///
    /// [`Snapshot::blocked`]: crate::Snapshot::blocked
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub poll_budget: Option<Duration>,
    /// From the order to shut down: how long the server goes on accepting and answering as before, but
    /// with `Connection: close`. Default zero. Meanwhile [`Shutdown::is_ordered`] is true, so that a
    /// readiness probe can tell a load balancer to look elsewhere.
    ///
    /// [`Shutdown::is_ordered`]: crate::Shutdown::is_ordered
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub lame_duck: Duration,
    /// After `lame_duck`: how long connections without a request stay open, since one may be on its
    /// way. Default 1 s. A handshake or a head that has begun has the time that it always has.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub drain_idle_timeout: Duration,
    /// From the order to shut down, `lame_duck` included, to the moment when what is still in progress is
    /// cut: connections that are busy, and tasks and blocking functions that outlive their requests.
    /// Default 30 s.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub shutdown_timeout: Duration,
    /// When the last connection is over, how long to wait for tasks of the worker's runtime and for
    /// functions on its blocking threads, within `shutdown_timeout`. Default 10 s; zero drops them at
    /// once. [`Snapshot::tasks_cut`] counts tasks that were dropped.
    ///
    /// The application is dropped before, so that tasks of pools and clients that it holds end by
    /// themselves; those of a client in a `static` do not. Tasks without an end await
    /// [`Shutdown::ordered`](crate::Shutdown::ordered).
    ///
    /// [`Snapshot::tasks_cut`]: crate::Snapshot::tasks_cut
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub background_timeout: Duration,
    /// Whether all plain connections come from a gateway that is trusted to have spoken TLS with the
    /// client: a request may then be for `https`, as HAProxy and Envoy say in HTTP/2. Default false: such a
    /// request is answered 421 (RFC 9110, section 7.4).
    pub behind_gateway: bool,
    /// What holds for HTTP/1.1 and HTTP/1.0 only.
    pub http1: Http1Limits,
    /// What holds for HTTP/2 only. All other limits hold for it as well.
    pub http2: Http2Limits,
    /// What each worker takes on before it says no: requests, clients, delay, memory.
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

/// RFC 9113 §6.9.1: no window is larger.
const WINDOW_MAX: u32 = i32::MAX.cast_unsigned();

impl Limits {
    /// When a connection has lived for as long as it may.
    ///
    /// The part by which a life is shorter follows from the millisecond in which it began, by the golden ratio: those
    /// that begin one after the other are spread as evenly as can be, and nothing has to be remembered.
    pub(crate) fn end_of_life(&self, born: Duration) -> Duration {
        let Some(life) = self.lifetime_max else { return Duration::MAX };
        let part = (born.as_millis() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        born.saturating_add(life - life / 10 / 1024 * part as u32)
    }

    pub(crate) fn rate(&self) -> Rate {
        Rate { min: self.rate_min, slack: self.rate_slack }
    }

    /// In a conversation any byte will do, and silence may be as long as on an upgraded connection.
    pub(crate) fn conversation(&self) -> Rate {
        Rate { min: 0, slack: self.upgraded_idle_timeout.unwrap_or(Duration::MAX) }
    }

    /// What the protocol core needs of them. Bodies are measured further up, where a route may have
    /// a limit of its own.
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

    /// The same for HTTP/2.
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

/// The least rate of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Bytes a second; 0: any byte will do.
    pub(crate) min: u64,
    /// How far the peer may fall behind.
    pub(crate) slack: Duration,
}

/// What the server allows a peer that speaks HTTP/1.1 or HTTP/1.0. See [`Limits`].
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
    /// wait for responses. Default false: the end of the client's side means that the client has
    /// closed the connection, as it nearly always does. Requests received completely are still
    /// called once, in order, and answered if their handlers are ready at once; a body that is
    /// complete, or whose length is known, is sent to its end. A handler that waits, or a stream
    /// that has nothing to send, is cancelled, unless its route says `run_to_end`.
    ///
    /// Set it to true for clients that half-close and then wait, such as scripts around `nc`. A
    /// client that has closed is then noticed later: while a handler waits, the server sends `102
    /// Processing` now and then, which a closed socket answers with a reset; a stream goes on until
    /// its next piece is sent.
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
