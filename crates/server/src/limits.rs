//! Every limit and timeout of the server, with its default.

use std::time::Duration;

/// What the server allows a peer, and how long it waits for one. All of it is on by default.
///
/// Sizes are in bytes. A limit that is reached is still allowed; passing it has the effect told at
/// each. Everything holds per connection unless said otherwise.
///
/// ```
/// use peregrine_server::Limits;
/// use std::time::Duration;
///
/// let limits = Limits { idle_timeout: Duration::from_secs(15), ..Limits::default() };
/// assert_eq!(limits.head_bytes_max, 32 * 1024);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A whole head: request line, fields, and the empty line. Default 32 KiB, at most 65,535.
    /// Passing it: 431 and close.
    pub head_bytes_max: usize,
    /// The request line. Default 8 KiB. Passing it: 414 and close.
    pub request_line_bytes_max: usize,
    /// One field line. Default 16 KiB. Passing it: 431 and close.
    pub field_bytes_max: usize,
    /// Field lines in one head. Default 100. Passing it: 431 and close.
    pub fields_max: usize,
    /// The extensions of one chunk of a chunked body. Default 256. Passing it: 400 and close.
    pub chunk_extension_bytes_max: u16,
    /// The trailer section of a chunked body. Default 8 KiB. Passing it: 431 and close.
    pub trailer_bytes_max: usize,
    /// A request's body, unless its route has a limit of its own. Default 2 MiB. Passing it is an
    /// error for whoever reads the body; the extractors answer 413.
    pub body_bytes_max: u64,
    /// How much of a body that the handler did not read is received and thrown away so that the
    /// connection can be used again. Default 256 KiB. Passing it: close.
    pub drain_bytes_max: u32,
    /// From the connection's start to the first byte of its first request. Default 30 s. Passing it:
    /// close.
    pub first_byte_timeout: Duration,
    /// From the first byte of a head to its last. Default 10 s. Passing it: 408 and close.
    pub head_timeout: Duration,
    /// The least rate, in bytes a second, at which a request's body must come while the server waits
    /// for it. Default 240; 0 for none. Falling below it, after `body_grace`: the body's reader sees
    /// an error (408) and the connection is closed.
    pub body_rate_min: u64,
    /// How long a body may be slower than `body_rate_min` at its beginning. Default 5 s.
    pub body_grace: Duration,
    /// Between a response and the first byte of the next request. Default 75 s. Passing it: close.
    pub idle_timeout: Duration,
    /// How long the peer may take for one write of at most `pending_output_bytes_max`. Default 30 s.
    /// Passing it: close.
    pub write_stall_timeout: Duration,
    /// The age at which a connection is told to close, after the response in progress. Default none.
    pub lifetime_max: Option<Duration>,
    /// Connections open at a time, per worker. Default 16,384. When it is reached, further
    /// connections wait in the kernel's backlog.
    pub connections_max: usize,
    /// From the connection's start to the end of the TLS handshake. Default 10 s. Passing it: close.
    pub handshake_timeout: Duration,
    /// TLS handshakes in progress at a time, per worker. Default 1,024. One too many ends the oldest
    /// of them, which is one whose peer does not go on.
    pub handshakes_max: usize,
    /// Bytes of responses that may wait to be sent. Default 64 KiB. When it is reached, the server
    /// does not read, parse or produce more for this connection until the peer took them.
    pub pending_output_bytes_max: usize,
    /// After an answer that ends the connection while the peer still sends: how long the server goes
    /// on reading, so that the answer is not lost to a reset. Default 2 s.
    pub linger_timeout: Duration,
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
    pub poll_budget: Option<Duration>,
    /// From the order to shut down to the moment when what is still in progress is cut: connections
    /// that are busy, and tasks and blocking functions that outlive their requests. Default 30 s.
    pub shutdown_timeout: Duration,
    /// When the last connection is over, how long to wait for tasks of the worker's runtime and for
    /// functions on its blocking threads, within `shutdown_timeout`. Default 10 s; zero drops them at
    /// once. [`Snapshot::tasks_cut`] counts tasks that were dropped.
    ///
    /// The application is dropped before, so that tasks of pools and clients that it holds end by
    /// themselves; those of a client in a `static` do not. Tasks without an end await [`Shutdown::ordered`](crate::Shutdown::ordered).
    ///
    /// [`Snapshot::tasks_cut`]: crate::Snapshot::tasks_cut
    pub background_timeout: Duration,
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
            body_rate_min: 240,
            body_grace: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(75),
            write_stall_timeout: Duration::from_secs(30),
            lifetime_max: None,
            connections_max: 16_384,
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1024,
            pending_output_bytes_max: 64 * 1024,
            linger_timeout: Duration::from_secs(2),
            poll_budget: Some(Duration::from_millis(100)),
            shutdown_timeout: Duration::from_secs(30),
            background_timeout: Duration::from_secs(10),
        }
    }
}

impl Limits {
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
}
