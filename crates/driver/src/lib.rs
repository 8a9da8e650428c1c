//! The interface between the server and I/O drivers: traits, and code shared by drivers.
//!
//! A driver accepts connections, moves bytes, keeps time and runs tasks on **one thread**. It does
//! not depend on HTTP. The server is generic over [`Driver`] and never names a concrete one.
//!
//! The interface is completion-based: buffers are passed by value and returned with the result, so
//! a kernel that uses memory after the call has returned (io_uring) needs neither a copy nor a
//! lifetime. Completion is easy to emulate with readiness; the reverse is not possible.
//!
//! Four rules apply to every driver, and the common test suite checks them:
//!
//! 1. Memory that the kernel may access belongs to the operation, never to the future.
//! 2. Dropping a future abandons its operation, but frees nothing that the kernel may still use.
//! 3. If a result is not read, its contents (a buffer, a connection) are still released.
//! 4. When a driver shuts down, the kernel has finished with all memory before it is freed.
//!
//! Start with [`Driver`], then [`Stream`].
#![forbid(unsafe_code)]

mod blocking;
mod handoff;
mod metrics;
mod numa;
mod send_buf;
mod socket;
mod socket_options;

pub use blocking::{BlockingTasks, BlockingThreads};
pub use handoff::Handoff;
pub use metrics::{DriverMetrics, ITERATION_BOUNDS};
pub use numa::order_by_numa_node;
pub use send_buf::{FileRange, SendBuf, SharedBytes};
pub use socket::{Address, Socket, UnixCredentials};
pub use socket_options::SocketOptions;

use std::future::{Future, poll_fn, ready};
use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

/// One worker's access to the kernel: a cheap handle, cloned freely, that never leaves its thread.
pub trait Driver: Clone + 'static {
    /// A bound, listening socket that can be sent to the worker's thread.
    type Socket: Send + 'static;
    /// Accepts connections from a [`Driver::Socket`].
    type Listener: Listener<Stream = Self::Stream>;
    /// One connection.
    type Stream: Stream;
    /// A connection being passed from one worker to another. Dropping it closes the connection.
    type Handoff: Send + 'static;
    /// See [`Driver::keep_awake`].
    type KeepAwake;

    /// Runs `main` and all tasks it spawns on the calling thread until `main` completes.
    ///
    /// Then drops all tasks that are still alive, and waits for functions on tokio's blocking
    /// threads as set by [`Driver::keep_waiting_for_blocking_tasks_while`]. A tokio runtime is
    /// entered for the whole time, so `tokio::spawn`, timers and sockets work in every task.
    ///
    /// # Errors
    /// The kernel rejected a resource that the driver needs, such as descriptors or locked memory.
    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future;

    /// Starts listening on `socket`.
    ///
    /// # Errors
    /// The kernel rejected the registration of the socket.
    fn listen(&self, socket: Self::Socket) -> io::Result<Self::Listener>;

    /// Detaches a newly accepted connection from this worker, so that another worker can
    /// [`accept_handoff`](Self::accept_handoff) it. The caller must not have received, sent or
    /// awaited anything on the connection; it may have read the addresses and credentials. Data
    /// from the peer stays in the kernel.
    ///
    /// # Errors
    /// The kernel rejected the call, or the connection had been used. The connection is closed.
    fn hand_off(&self, stream: Self::Stream) -> io::Result<Self::Handoff>;

    /// Attaches to this worker a connection that another worker of the same driver has
    /// [handed off](Self::hand_off).
    ///
    /// # Errors
    /// The kernel rejected the call. The connection is closed.
    fn accept_handoff(&self, handoff: Self::Handoff) -> io::Result<Self::Stream>;

    /// Starts `task` on this thread. A panic inside it ends only that task.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Like [`spawn`](Self::spawn), for tasks of which there are few. The driver's code around a
    /// task, most of which is tokio's, is compiled once for all of them instead of once per type of
    /// task. Each poll costs one more virtual call.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.spawn(task);
    }

    /// Monotonic time since the driver started. May be cached for one iteration of the loop.
    fn now(&self) -> Duration;

    /// Like [`now`](Self::now), without caching. The default is for drivers that never cache it.
    fn precise_now(&self) -> Duration {
        self.now()
    }

    /// Like [`precise_now`](Self::precise_now), but may return a slightly old reading, because
    /// reading a clock takes a noticeable part of a small request. The reading is at most as old as
    /// one poll of another task or, if recent polls were quick, as a few polls. The default always
    /// reads the clock.
    fn coarse_now(&self) -> Duration {
        self.precise_now()
    }

    /// The time, by the clock of [`precise_now`](Self::precise_now), at which the worker polled the
    /// kernel for its current work. A socket that was ready at that time has waited since then for
    /// the thread. A socket that became ready later is found by the next poll, so its data may in
    /// addition have waited for the length of the previous iteration. Right after a sleep, this is
    /// the current time. Cheap enough to call for each request. The default, for drivers that do
    /// not know the time, is [`now`](Self::now).
    fn polled_at(&self) -> Duration {
        self.now()
    }

    /// The earliest time at which data that was passed to [`Stream::send`] at `time`, by the clock
    /// of [`now`](Self::now), was passed to the kernel. Drivers that do this at the end of an
    /// iteration take long iterations into account. The default, for drivers that do it
    /// immediately, is `time`.
    fn submitted_at(&self, time: Duration) -> Duration {
        time
    }

    /// Registers `callback` to be called at the end of each iteration of the loop, with the current
    /// time, before data sent in the iteration is passed to the kernel. Returns false, and never
    /// calls `callback`, if the driver has no such point. `callback` must not call the driver. Use
    /// it in code that would otherwise read the clock many times in an iteration.
    fn on_iteration_end(&self, callback: impl Fn(Duration) + 'static) -> bool {
        drop(callback);
        false
    }

    /// Whether a task that is woken while it is polled is polled again only after all other ready
    /// tasks and after a poll of the kernel.
    const SELF_WAKE_YIELDS: bool = true;

    /// Yields: the task of `cx`, which has more to do, is polled again after all other ready tasks
    /// were polled and the driver has polled the kernel. The default wakes the task, which has this
    /// effect if [`Self::SELF_WAKE_YIELDS`] is true.
    fn yield_now(&self, cx: &mut Context<'_>) {
        cx.waker().wake_by_ref();
    }

    /// Time since the Unix epoch, for dates on the wire. May be cached for one iteration of the
    /// loop.
    fn unix_time(&self) -> Duration;

    /// Completes when `now()` has reached `at`, up to a few milliseconds late, never early.
    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()>;

    /// Informs the driver, until the guard is dropped, that a task waits for an event that the
    /// driver does not know about: a tokio timer, a channel, another thread. A driver that parks in
    /// the kernel uses this to choose how to park; for other drivers it costs nothing.
    fn keep_awake(&self) -> Self::KeepAwake;

    /// The number of live tasks on this thread's tokio runtime. Tasks of [`Driver::spawn`] may be
    /// included: to count the others, call this after those have ended.
    fn tokio_tasks(&self) -> usize;

    /// Makes [`Driver::run`] wait, after `main` has completed and all tasks were dropped, for
    /// functions that are still running on tokio's blocking threads
    /// (`tokio::task::spawn_blocking`), for as long as `keep_waiting` returns true. `keep_waiting`
    /// is called with their number from time to time, and at least once.
    ///
    /// Without this call, a driver does not wait for them. The default never waits and never calls
    /// `keep_waiting`.
    fn keep_waiting_for_blocking_tasks_while(
        &self,
        keep_waiting: impl FnMut(usize) -> bool + 'static,
    ) {
        drop(keep_waiting);
    }

    /// Counters of this worker's I/O.
    fn stats(&self) -> DriverStats {
        DriverStats::default()
    }
}

/// Accepts connections.
///
/// When the listener is dropped, connections that were not accepted are closed.
pub trait Listener: 'static {
    /// One connection.
    type Stream: Stream;

    /// Accepts the next connection. Dropping the future loses no connection.
    ///
    /// # Errors
    /// An error applies to this attempt, not to the listener: the caller may call again. If the
    /// process has run out of descriptors or memory (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`), the
    /// error is returned once per attempt, and the *caller* must wait before it tries again;
    /// waiting connections stay in the backlog.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>>;

    /// Makes the kernel refuse new connections, where that is supported (Linux). Connections that
    /// are already being established or waiting can still be accepted. The default has no effect.
    ///
    /// If the driver can tell that all of these have been accepted, as with Unix domain sockets on
    /// Linux, [`accept`](Self::accept) then fails with
    /// [`InvalidInput`](io::ErrorKind::InvalidInput).
    ///
    /// This applies to the *socket*, permanently: other workers and processes that share it get no
    /// new connections either. Use it for sockets that close soon, and that were not and will not
    /// be passed to another process.
    fn refuse_new_connections(&self) {}

    /// Stops waiting for connections. If this worker has already been woken for a connection that
    /// is still in the backlog, returns that connection. A worker that stops using a socket shared
    /// with others must call this once: where the kernel wakes only one worker per connection, no
    /// other worker was woken for that one. The default is for drivers whose workers are all woken
    /// for each connection.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    fn cancel_accept(&self) -> impl Future<Output = io::Result<Option<Self::Stream>>> {
        ready(Ok(None))
    }
}

/// One connection, both directions. Dropping it closes the connection.
///
/// The two directions are independent. Each remembers only its last caller's waker.
pub trait Stream: 'static {
    /// Received bytes, borrowed from the driver: dropping the chunk returns the buffer. Hold a
    /// chunk only while processing it, not while waiting for something else.
    type Chunk: Deref<Target = [u8]>;

    /// Receives the next bytes from the peer. An empty chunk means that the peer has finished
    /// sending, and is returned again by every later call.
    ///
    /// A driver may receive ahead, up to a fixed number of buffers per connection; then it stops
    /// reading, and TCP flow control stops the peer. A driver need not receive before the first
    /// call, nor while the last call returned bytes.
    ///
    /// # Errors
    /// The connection broke (`ECONNRESET` and similar), in either direction: a failed send also
    /// wakes the task that waits to receive. Bytes received before the error are returned first.
    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Self::Chunk>>;

    /// Returns a chunk's bytes in memory that the caller may keep, if that needs no copy and wastes
    /// at most as much memory as the bytes take.
    ///
    /// A driver that receives large chunks into separate memory returns that memory here. The
    /// default returns the chunk unchanged.
    ///
    /// # Errors
    /// The chunk is returned unchanged: it is borrowed, or fills too little of its memory.
    fn try_into_vec(chunk: Self::Chunk) -> Result<Vec<u8>, Self::Chunk> {
        Err(chunk)
    }

    /// Starts sending the bytes of `out`, after those of earlier calls. Leaves `out` empty, and may
    /// replace its memory with that of an earlier send. Sending continues in the background while
    /// the stream lives, and wakes only tasks that wait in [`poll_flush`](Self::poll_flush).
    ///
    /// Callers must limit how much they pass: a driver's queue is unlimited. After a failure, and
    /// after [`finish`](Self::finish), the bytes are discarded.
    fn send(&self, out: &mut Vec<u8>);

    /// Like [`send`](Self::send) for `out` and then `shared`, with one system call if possible. The
    /// driver holds `shared` without copying it until the kernel has accepted its bytes, or nothing
    /// more can be sent.
    ///
    /// Use it for large data; small data is cheaper to copy to `out`. The default copies.
    fn send_shared(&self, out: &mut Vec<u8>, shared: Bytes) {
        let shared = SendBuf::from_shared(shared);
        out.extend_from_slice(shared.as_bytes());
        self.send(out);
    }

    /// Returns whether [`send_file`](Self::send_file) may be called. Default false.
    fn supports_sendfile(&self) -> bool {
        false
    }

    /// Like [`send`](Self::send) for `out` and then a range of a file, which the kernel copies to
    /// the socket from the page cache. The driver keeps the file open until the kernel has accepted
    /// the range, or nothing more can be sent.
    ///
    /// The caller must ensure that the range is in the page cache: reading from a disk blocks the
    /// worker. If the file ends before the range does, or cannot be read, sending ends after the
    /// preceding data, and [`poll_flush`](Self::poll_flush) fails with `UnexpectedEof`, which has
    /// no other meaning there.
    ///
    /// The default sends `out` and shuts down sending, because it cannot send the range.
    fn send_file(&self, out: &mut Vec<u8>, range: FileRange) {
        self.send(out);
        drop(range);
        self.finish();
    }

    /// Ready when the kernel has accepted everything that was passed to [`send`](Self::send),
    /// [`send_shared`](Self::send_shared) and [`send_file`](Self::send_file) and, after
    /// [`finish`](Self::finish), when sending was shut down as well.
    ///
    /// # Errors
    /// The connection broke, and it is unknown how much was sent; or data was passed after
    /// [`finish`](Self::finish); or a file was shorter than expected. Every later call returns the
    /// error again.
    fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns whether [`poll_flush`](Self::poll_flush) would be ready, without arranging a
    /// wake-up.
    fn is_flushed(&self) -> bool;

    /// Returns whether, as far as the driver knows, no data is waiting for the peer to read. Also
    /// returns true for data that only waits until the driver passes it to the kernel at the end of
    /// the worker's iteration. If the kernel then has no room for all of it, a task that waits in
    /// [`poll_recv`](Self::poll_recv) is woken.
    ///
    /// This is for callers that only decide whether to continue. Before dropping the stream, and
    /// before reporting bytes as sent, use [`is_flushed`](Self::is_flushed).
    fn is_writable(&self) -> bool {
        self.is_flushed()
    }

    /// The number of bytes that the kernel has accepted, which shows the progress of sending.
    /// Drivers limit how much the kernel accepts beyond the window of the peer. So if the number
    /// does not change while bytes are unsent, the peer is not reading, or has since read less than
    /// a step: half of [`SocketOptions::notsent_lowat_bytes`], or the step in which the peer's
    /// kernel opens its window.
    fn bytes_written(&self) -> u64;

    /// Shuts down sending (`FIN`) after everything sent before. Receiving is still possible.
    fn finish(&self);

    /// Receives data that is already in the kernel although [`poll_recv`](Self::poll_recv) was just
    /// pending: the worker may not have polled the kernel for a long time. Call it before giving up
    /// on a peer. Returns `None` if there is no such data. The default, for drivers whose
    /// `poll_recv` always returns available data, is `None`.
    fn try_recv(&self) -> Option<Self::Chunk> {
        None
    }

    /// Returns whether the peer has reset the connection, as far as the kernel can tell without
    /// receiving. For callers that do not receive for a long time. May cost a system call. Once
    /// this has returned true, the connection can only be dropped. The default returns false.
    fn is_broken(&self) -> bool {
        false
    }

    /// Makes dropping the stream reset the connection instead of closing it: data that the peer has
    /// not received by that time is discarded, and the kernel retains none of it.
    fn reset_on_drop(&self);

    /// The peer's address.
    fn peer_addr(&self) -> Address;

    /// The local address, to which the peer connected.
    fn local_addr(&self) -> Address;

    /// The process at the other end of a Unix domain socket. The default returns `None`.
    fn peer_credentials(&self) -> Option<UnixCredentials> {
        None
    }

    /// [`poll_recv`](Self::poll_recv) as a future. Dropping it loses no data.
    fn recv(&self) -> impl Future<Output = io::Result<Self::Chunk>> {
        poll_fn(|cx| self.poll_recv(cx))
    }

    /// [`poll_flush`](Self::poll_flush) as a future. Dropping it loses no data.
    fn flush(&self) -> impl Future<Output = io::Result<()>> {
        poll_fn(|cx| self.poll_flush(cx))
    }
}

/// The configuration of a driver. Drivers ignore options that do not apply to them.
#[derive(Clone, Debug)]
pub struct Options {
    /// The number of receive buffers shared by all connections of the worker. Rounded up to a power
    /// of two. Default 256, between 16 and 32,768.
    pub receive_buffers: u32,
    /// The size of a receive buffer in bytes. Default 4,096, between 512 and 65,536.
    pub receive_buffer_bytes: usize,
    /// The number of unread receive buffers per connection at which the driver stops receiving.
    /// Default 8. A driver may then continue with fewer, larger chunks, of which at most one is
    /// unread at a time.
    pub read_ahead_buffers_max: usize,
    /// The size in bytes of a large receive, used for a connection that fills its shared buffers;
    /// large receives use separate memory. Default 128 KiB, between 4 KiB and 1 MiB. A larger size
    /// gains little and delays the other connections. A chunk that fills less than half of it is
    /// copied if the receiver stores it.
    pub large_receive_bytes: usize,
    /// How long to poll for completions, in microseconds, before sleeping in the kernel. Spends
    /// idle CPU time to lower latency. Default 0: sleep immediately.
    pub busy_poll_us: u32,
    /// The CPU to pin the worker's thread to, as an index into those that the process may use,
    /// modulo their number. They are ordered by NUMA node ([`order_by_numa_node`]), so that
    /// consecutive workers are near each other. Default none.
    #[doc(alias = "worker_cpu_affinity")]
    #[doc(alias = "core_affinity")]
    pub cpu: Option<usize>,
    /// Options of the listening sockets and of their connections.
    pub socket_options: SocketOptions,
    /// Where the driver publishes its counters for other threads; one per worker. Default none; the
    /// driver then does not read the clock for them. A server with an admin listener sets it.
    pub metrics: Option<Arc<DriverMetrics>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receive_buffers: 256,
            receive_buffer_bytes: 4096,
            read_ahead_buffers_max: 8,
            large_receive_bytes: 128 * 1024,
            busy_poll_us: 0,
            cpu: None,
            socket_options: SocketOptions::default(),
            metrics: None,
        }
    }
}

impl Options {
    /// The size of a large receive, clamped to its limits.
    #[must_use]
    pub fn large_receive_bytes_clamped(&self) -> usize {
        self.large_receive_bytes.clamp(4 * 1024, 1024 * 1024)
    }
}

/// Counters of one worker's driver since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// The number of system calls: on io_uring, calls of `io_uring_enter`, which submits and waits;
    /// on tokio, reads, writes, accepts and waits. The simulation counts its waits instead.
    pub syscalls: u64,
    /// The number of accepted connections.
    pub accepted: u64,
    /// How often receiving stopped because no receive buffer was free.
    pub buffers_exhausted: u64,
    /// The number of operations that the kernel has not finished yet.
    pub in_flight: u64,
}
