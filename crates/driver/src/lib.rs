//! The contract between the server and the kernel: traits, and code that drivers share.
//!
//! A driver accepts connections, moves bytes, keeps time and runs tasks on **one thread**. It knows
//! no HTTP. The server is generic over [`Driver`] and never names a concrete one.
//!
//! The contract is completion-shaped: buffers go down by value and come back with the result, so that a
//! kernel that works on memory after the call returned (io_uring) needs no copy and no lifetime.
//! Readiness imitates completion easily; the reverse does not work.
//!
//! Four rules hold for every driver, and the common suite tests them:
//!
//! 1. Memory the kernel may touch belongs to the operation, never to the future.
//! 2. Dropping a future abandons its operation. It frees nothing the kernel may use.
//! 3. A result that nobody reads still gives back its contents (a buffer, a connection).
//! 4. When a driver shuts down, the kernel is finished with all memory before it is freed.
//!
//! Start with [`Driver`], then [`Stream`].
#![forbid(unsafe_code)]

mod figures;
mod nodes;
mod passed;
mod piece;
mod sockets;
mod threads;

pub use figures::{Figures, TURN_BOUNDS};
pub use nodes::by_node;
pub use passed::Passed;
pub use piece::{FilePart, Piece, Shared};
pub use sockets::SocketOptions;
pub use threads::{Functions, Threads};

use std::fmt;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

/// One worker's access to the kernel: a cheap handle, cloned freely, that never leaves its thread.
pub trait Driver: Clone + 'static {
    /// A bound, listening socket that may travel to the worker's thread.
    type Socket: Send + 'static;
    /// Accepts connections from a [`Driver::Socket`].
    type Listener: Listener<Stream = Self::Stream>;
    /// One connection.
    type Stream: Stream;
    /// A connection on its way from one worker to another. Dropping it closes the connection.
    type Passed: Send + 'static;
    /// See [`Driver::hold`].
    type Hold;

    /// Runs `main` on the calling thread, with everything it spawns, until `main` is done.
    ///
    /// Tasks still alive at that point are dropped, and functions on tokio's blocking threads are
    /// waited for as [`Driver::outlast`] says. A tokio runtime is entered for the whole time:
    /// `tokio::spawn`, timers and sockets work in every task.
    ///
    /// # Errors
    /// The kernel refused what the driver needs (descriptors, locked memory, an operation).
    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future;

    /// Starts listening on `socket`.
    ///
    /// # Errors
    /// The kernel refused to register the socket.
    fn listen(&self, socket: Self::Socket) -> io::Result<Self::Listener>;

    /// Takes a connection that was just accepted from this worker, so that another one may
    /// [`adopt`](Self::adopt) it. Nothing may have been received, sent or waited for: it is for connections of
    /// which no more was asked than who is there. What the peer has sent meanwhile is in the kernel and goes
    /// along.
    ///
    /// # Errors
    /// The kernel refused, or something was begun. The connection is closed.
    fn pass(&self, stream: Self::Stream) -> io::Result<Self::Passed>;

    /// Makes a connection one of this worker's, which another worker of the same driver has
    /// [passed](Self::pass).
    ///
    /// # Errors
    /// The kernel refused. The connection is closed.
    fn adopt(&self, passed: Self::Passed) -> io::Result<Self::Stream>;

    /// Starts `task` on this thread. A panic inside it ends that task alone.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// [`spawn`](Self::spawn) for tasks of which there are few. The driver's code around a task, most of which
    /// is tokio's, is compiled once for all of them, and not once for each type of task; a poll is one call
    /// through a table more.
    fn spawn_boxed(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.spawn(task);
    }

    /// Monotonic time since the driver started. It may be cached for one turn of the loop.
    fn now(&self) -> Duration;

    /// The same clock, read at this moment. The default is that of drivers whose `now` caches nothing.
    fn read_clock(&self) -> Duration {
        self.now()
    }

    /// The same clock, read at this moment or a little before: at most the rest of the poll of one other task lies
    /// between, or a few polls where those before were quick. To read a clock costs what a small request can tell. The
    /// default reads it.
    fn recent_clock(&self) -> Duration {
        self.read_clock()
    }

    /// When the worker last looked for what is worked on now, by the clock of
    /// [`read_clock`](Self::read_clock): what the kernel had ready then has had to wait since, for its
    /// turn on the thread. What became ready later is found by the next look, so that it may have waited
    /// for as long as the turn before took on top of that. Right after a sleep it is the present moment.
    ///
    /// It may be called for each request. The default, of drivers that do not know, is
    /// [`now`](Self::now).
    fn turn_began(&self) -> Duration {
        self.now()
    }

    /// When what was passed to [`Stream::send`] at `time`, by the clock of [`now`](Self::now), left at the earliest.
    /// Drivers that pass it to the kernel at the end of a turn tell of turns that took long; the default, of those that
    /// pass it on at once, is `time`.
    fn left_at(&self, time: Duration) -> Duration {
        time
    }

    /// Has `end` called at the end of each turn of the loop from now on, with the clock read at that moment, before
    /// anything that was sent in the turn leaves. False if the driver knows no such moment: then it is never called.
    ///
    /// It is there for what would read the clock many times in a turn, and must not call the driver.
    fn at_turn_end(&self, end: impl Fn(Duration) + 'static) -> bool {
        drop(end);
        false
    }

    /// Whether a task that is woken while it is polled has its next poll after all others and after a look for what the
    /// kernel has.
    const IS_FAIR_TO_OTHERS: bool = true;

    /// Has the task of `context`, which has more to do, polled again when all others that are ready have been polled and the
    /// driver has looked for what the kernel has. The default wakes the task, which is right where [`Self::IS_FAIR_TO_OTHERS`].
    fn others_first(&self, context: &mut Context<'_>) {
        context.waker().wake_by_ref();
    }

    /// Time since the Unix epoch, for dates on the wire. It may be cached for one turn of the loop.
    fn unix_time(&self) -> Duration;

    /// Ends when `now()` has reached `at`, up to a few milliseconds late, never early.
    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()>;

    /// Tells the driver that a task waits for something the driver does not know (a tokio timer, a
    /// channel, another thread), until the guard is dropped. A driver that parks in the kernel uses
    /// this to choose how to park; for other drivers it costs nothing.
    fn hold(&self) -> Self::Hold;

    /// Tasks alive on this thread's tokio runtime. Tasks of [`Driver::spawn`] may be among them: to
    /// count the others, ask when those have ended.
    fn tokio_tasks(&self) -> usize;

    /// Sets how long [`Driver::run`] waits, when `main` is done and all tasks are dropped, for
    /// functions that still run on tokio's blocking threads (`tokio::task::spawn_blocking`): as long as
    /// `is_patient` says so. It gets their number from time to time, and at least once.
    ///
    /// Without this call a driver waits for none. The default never waits and never asks.
    fn outlast(&self, is_patient: impl FnMut(usize) -> bool + 'static) {
        drop(is_patient);
    }

    /// Figures about this worker's I/O so far.
    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Accepts connections.
///
/// When the listener is dropped, connections that nobody took are closed.
pub trait Listener: 'static {
    /// One connection.
    type Stream: Stream;

    /// The next connection. Dropping the future loses none.
    ///
    /// # Errors
    /// An error concerns this one attempt, not the listener: the caller may call again. When the
    /// process is out of descriptors or memory (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`) the error is
    /// returned once per attempt and the *caller* waits before it tries again; waiting connections stay
    /// in the backlog.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>>;

    /// From now on the kernel refuses new connections here, where it can be told to: on Linux.
    /// Connections that have begun can still be accepted. The default changes nothing.
    ///
    /// Where it is known that none of them is left, as with Unix domain sockets on Linux,
    /// [`accept`](Self::accept) says so from then on, by an error of the kind
    /// [`InvalidInput`](io::ErrorKind::InvalidInput).
    ///
    /// The *socket* is told, for good: no other worker or process that has it gets a new connection
    /// from it. Use it for sockets that close soon, and that were not and will not be handed over.
    fn refuse_new(&self) {}

    /// The connection that this worker was woken for when it stopped accepting, if nobody has taken it.
    /// Whoever leaves a socket that others go on with asks this once: where the kernel wakes one worker
    /// for each connection, nobody else was told of that one. The default is for drivers that are woken
    /// together with all others.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    fn last(&self) -> impl Future<Output = io::Result<Option<Self::Stream>>> {
        ready(Ok(None))
    }
}

/// One connection, both directions. Dropping it closes the connection.
///
/// The two directions are independent. Each remembers only its last caller's waker.
pub trait Stream: 'static {
    /// Received bytes, on loan from the driver: dropping them gives the buffer back. Hold a chunk only
    /// while working on it, not while waiting for something else.
    type Chunk: Deref<Target = [u8]>;

    /// The next bytes from the peer. An empty chunk is the end of the peer's sending side, and every
    /// later call returns it again.
    ///
    /// A driver may receive ahead, up to a fixed number of buffers per connection; then it stops
    /// reading and the peer is held back by TCP. A driver need not receive before the first call, nor
    /// while the last one returned bytes.
    ///
    /// # Errors
    /// The connection broke (`ECONNRESET` and the like), in either direction: a caller that waits here
    /// is woken when a send fails, too. Bytes received before the error are returned first.
    fn poll_recv(&self, context: &mut Context<'_>) -> Poll<io::Result<Self::Chunk>>;

    /// The bytes of a chunk in memory that the caller may keep for as long as it likes, if that takes
    /// no copy and wastes no more memory than the bytes need.
    ///
    /// A driver that receives large chunks into memory of their own gives that memory away here. The
    /// default gives nothing away.
    ///
    /// # Errors
    /// The chunk is returned as it was: it is on loan, or fills too little of its memory.
    fn keep(chunk: Self::Chunk) -> Result<Vec<u8>, Self::Chunk> {
        Err(chunk)
    }

    /// Begins to send the bytes of `out`, after those of earlier calls, and leaves `out` empty, with
    /// the memory of an earlier send where the driver has some. Sending goes on in the background for
    /// as long as the stream lives, and wakes only callers that wait in [`poll_sent`](Self::poll_sent).
    ///
    /// Callers bound how much they pass: a driver queues without a limit. After a failure, and after
    /// [`finish`](Self::finish), bytes are dropped.
    fn send(&self, out: &mut Vec<u8>);

    /// As [`send`](Self::send) of `out`, and of `shared` behind it, in one call into the kernel where
    /// that can be. The driver holds `shared` until the kernel took its bytes, or nothing more can be
    /// sent, and copies none of them.
    ///
    /// For bytes that are many: a few cost less when they are copied to `out`. The default copies.
    fn send_shared(&self, out: &mut Vec<u8>, shared: Bytes) {
        let shared = Piece::shared(shared);
        out.extend_from_slice(shared.bytes());
        self.send(out);
    }

    /// May [`send_file`](Self::send_file) be called? By default it may not.
    fn sends_files(&self) -> bool {
        false
    }

    /// As [`send`](Self::send) of `out`, and of a part of a file behind it, which the kernel gives from its own
    /// memory to the socket. The driver keeps the file open until the kernel took the part, or nothing more can be
    /// sent.
    ///
    /// The caller sees to it that the part is in the kernel's memory: what must come from a disk holds up the worker.
    /// A file that ends before the part does, or that cannot be read, ends sending: what was passed before is sent and
    /// nothing else, and [`poll_sent`](Self::poll_sent) fails with `UnexpectedEof`, which means nothing else there.
    ///
    /// The default sends `out`, and ends our side, since the part cannot be sent.
    fn send_file(&self, out: &mut Vec<u8>, part: FilePart) {
        self.send(out);
        drop(part);
        self.finish();
    }

    /// Ready when the kernel has everything that was passed to [`send`](Self::send),
    /// [`send_shared`](Self::send_shared) and [`send_file`](Self::send_file), and after
    /// [`finish`](Self::finish) the end of our side as well.
    ///
    /// # Errors
    /// The connection broke, and how much was sent is unknown; or bytes were passed after the end; or a file
    /// did not have what it was to have. Every later call returns the error again.
    fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Would [`poll_sent`](Self::poll_sent) be ready? Asks for no wake-up.
    fn is_sent(&self) -> bool;

    /// Does nothing wait for the peer, as far as is known? Bytes that the driver passes to the kernel
    /// at the end of the worker's turn are not known to be sent, and not known to wait. If it turns out
    /// that the kernel has no room for all of them, a caller that waits in
    /// [`poll_recv`](Self::poll_recv) is woken.
    ///
    /// This is for callers that only want to know whether to go on. Before the stream is dropped, and
    /// before bytes are reported as sent, ask [`is_sent`](Self::is_sent).
    fn has_room(&self) -> bool {
        self.is_sent()
    }

    /// How far sending has come: a count that grows whenever the kernel takes bytes. Drivers keep the
    /// kernel from taking much more than the peer's kernel has room for, so a count that stands still
    /// while bytes are unsent means that the peer does not read, or has read less than a lump since: half of
    /// [`SocketOptions::unsent_bytes_max`], or what the peer's kernel makes room for at a time.
    fn progress(&self) -> u64;

    /// Ends our sending side (`FIN`) behind everything sent before. Receiving goes on.
    fn finish(&self);

    /// Receives what is here at this moment and [`poll_recv`](Self::poll_recv), which was pending just before, may not
    /// know of yet, since the worker has not looked for a long time. For callers that are about to give up. `None`:
    /// nothing is here, which is also the default, of drivers that know all of it.
    fn recv_now(&self) -> Option<Self::Chunk> {
        None
    }

    /// Did the peer break the connection off, as far as the kernel can tell without receiving? For
    /// callers that do not receive for a long time. It may cost a system call, and once it is true, the
    /// connection can only be dropped. The default knows nothing.
    fn is_broken(&self) -> bool {
        false
    }

    /// Makes a drop of the stream reset the connection instead of closing it: bytes that the peer has
    /// not taken by then are thrown away, and the kernel keeps none of them.
    fn reset_on_drop(&self);

    /// The other end's address.
    fn peer(&self) -> Address;

    /// The address the peer connected to.
    fn local(&self) -> Address;

    /// The process at the other end of a Unix domain socket. The default knows nothing.
    fn credentials(&self) -> Option<Credentials> {
        None
    }

    /// [`poll_recv`](Self::poll_recv) as a future. Dropping it loses nothing.
    fn recv(&self) -> impl Future<Output = io::Result<Self::Chunk>> {
        poll_fn(|context| self.poll_recv(context))
    }

    /// [`poll_sent`](Self::poll_sent) as a future. Dropping it loses nothing.
    fn sent(&self) -> impl Future<Output = io::Result<()>> {
        poll_fn(|context| self.poll_sent(context))
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Address {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix domain socket, with its path if it has one.
    Unix(Option<PathBuf>),
    /// The kernel did not tell, or there is no kernel.
    #[default]
    Unknown,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Self::Unix(None) => f.write_str("unix:(unnamed)"),
            Self::Unknown => f.write_str("(unknown)"),
        }
    }
}

/// The process that connected a Unix domain socket, as the kernel noted it at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The user that the process ran as (the effective one).
    pub uid: u32,
    /// The group that the process ran as.
    pub gid: u32,
    /// The process id; `None` where the system does not tell it, or where the process has no id in this
    /// process's namespace.
    pub pid: Option<u32>,
}

/// A bound, listening socket of this machine, for drivers that use the kernel.
///
/// Several workers, and other processes, may listen with duplicates of one socket. Duplicates share its
/// options and flags: drivers may set `O_NONBLOCK`, for every duplicate, and none clears it. An owner
/// of another duplicate must expect that accepting does not block.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl From<std::net::TcpListener> for Socket {
    fn from(listener: std::net::TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(unix)]
impl From<std::os::unix::net::UnixListener> for Socket {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// Settings for a driver before it starts. A driver ignores settings that have no meaning for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Receive buffers shared by all connections of the worker. Rounded up to a power of two.
    /// Default 256, between 16 and 32,768.
    pub receive_buffers: u32,
    /// Bytes of one receive buffer. Default 4,096, between 512 and 65,536.
    pub receive_buffer_bytes: usize,
    /// Unread receive buffers that one connection may have before the driver stops receiving for it.
    /// Default 8. A driver may then go on in fewer and larger pieces, at most one of them unread at a
    /// time.
    pub receive_ahead_max: usize,
    /// Bytes of a receive on a connection that fills its buffers, in memory of its own. Default 128 KiB, between 4 KiB
    /// and 1 MiB. Larger ones gain little and make the other connections wait; and a chunk that leaves more than half of its
    /// memory empty is copied for whoever keeps it.
    pub receive_large_bytes: usize,
    /// Microseconds to look for completions before sleeping in the kernel. Spends idle CPU to lower
    /// latency. Default 0: sleep at once.
    pub spin_us: u32,
    /// The CPU to pin the worker's thread to, as an index into those that the process may use, wrapping
    /// around. They are counted node by node of the machine's memory ([`by_node`]), so that workers that
    /// follow each other are near each other. Default none.
    pub cpu: Option<usize>,
    /// Options of sockets.
    pub sockets: SocketOptions,
    /// Where the driver shows its counts to other threads: one place for each worker. Default none, and then
    /// it reads no clock for them. A server with an admin listener sets it.
    pub figures: Option<Arc<Figures>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            receive_buffers: 256,
            receive_buffer_bytes: 4096,
            receive_ahead_max: 8,
            receive_large_bytes: 128 * 1024,
            spin_us: 0,
            cpu: None,
            sockets: SocketOptions::default(),
            figures: None,
        }
    }
}

impl Options {
    /// Bytes of a large receive, within what is sensible.
    #[must_use]
    pub fn large_bytes(&self) -> usize {
        self.receive_large_bytes.clamp(4 * 1024, 1024 * 1024)
    }
}

/// What one worker's driver has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times the thread entered the kernel to submit or wait.
    pub enters: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Times receiving stopped because no receive buffer was free.
    pub buffers_exhausted: u64,
    /// Operations the kernel has not finished yet.
    pub in_flight: u64,
}
