//! The access log: one line per request, written by a separate thread.
//!
//! Workers put lines into a queue and never wait. Lines that cannot be written are dropped and
//! counted, for example because the disk or the queue is full, or because a pipe has no reader.
//!
//! `queue.rs` contains the queues from the workers to the thread, `writer.rs` the thread, and
//! `sink.rs` the output.

mod metrics;
mod queue;
mod sink;
mod writer;

pub use peregrine_server::AccessLogFormat;
use peregrine_server::AccessLogStyle;

pub use self::metrics::AccessLogMetrics;
#[cfg(test)]
pub(crate) use self::metrics::FAMILIES;
pub(crate) use self::metrics::write;

pub use self::sink::Sink;

use self::queue::{LineQueue, Producer, WriterSignal};
use self::writer::AccessLogWriter;
use peregrine_server::WorkerAccessLog as WorkerLog;
use peregrine_web::panic::catch_subscriber_panic;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// The default size of a worker's queue.
pub const DEFAULT_QUEUE_BYTES_MAX: usize = 1 << 20;

/// How long the shutdown waits by default until all lines are written.
pub const DEFAULT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The output and the format of the access log (`Server::access_log`).
///
/// Each request is logged in one line when its response is complete or when it ends without one.
/// This includes malformed requests and requests whose client disconnected. Workers put lines into
/// a queue for another thread, and wait neither for the disk nor for that thread.
///
/// ```no_run
/// use peregrine::access_log::{AccessLogFormat, AccessLogOptions};
/// use peregrine::prelude::*;
///
/// fn main() -> peregrine::Result<()> {
///     let log = AccessLogOptions::file("/var/log/app/access.log").format(AccessLogFormat::Json);
///     Server::bind("127.0.0.1:8080").access_log(log).serve(|| App::new().get("/", || "hello"))
/// }
/// ```
#[doc(alias = "access_log")]
#[doc(alias = "log_format")]
#[doc(alias = "Logger")]
#[derive(Debug)]
#[must_use = "a log does nothing until it is passed to `Server::access_log`"]
pub struct AccessLogOptions {
    target: Target,
    style: AccessLogStyle,
    /// The channel that changes the style, if a reload can change it.
    style_updates: Option<watch::Receiver<AccessLogStyle>>,
    queue_bytes_max: usize,
    flush_timeout: Duration,
}

/// Why an access log could not be started.
#[derive(Debug)]
pub enum AccessLogError {
    /// The output cannot be opened.
    Open {
        /// The path, or a description of another target.
        target: String,
        /// The operating system's error.
        cause: io::Error,
    },
    /// The thread cannot be started.
    Thread(io::Error),
}

impl fmt::Display for AccessLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { target, cause } => {
                write!(f, "cannot open the access log {target}: {cause}")
            }
            Self::Thread(cause) => write!(f, "cannot start the thread of the access log: {cause}"),
        }
    }
}

impl Error for AccessLogError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open { cause, .. } | Self::Thread(cause) => Some(cause),
        }
    }
}

/// An output that has not been opened yet.
enum Target {
    Stdout,
    File(PathBuf),
    Writer(Box<dyn Write + Send>),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.fmt(f),
            Self::Writer(_) => f.write_str("a writer"),
        }
    }
}

impl Target {
    fn open(self) -> Result<Sink, AccessLogError> {
        let name = format!("{self:?}");
        let sink = match self {
            Self::Stdout => Sink::stdout(),
            Self::File(path) => Sink::file(path),
            Self::Writer(writer) => Ok(Sink::from_writer(writer)),
        };
        sink.map_err(|cause| AccessLogError::Open { target: name, cause })
    }
}

impl AccessLogOptions {
    /// Writes to standard output, bypassing the buffer of `println!`.
    pub fn stdout() -> Self {
        Self::with_target(Target::Stdout)
    }

    /// Appends to a file, which is created if it does not exist. After log rotation has renamed the
    /// file, SIGUSR1 (if the server runs through `Server::serve`) or `ServerHandle::reopen_logs`
    /// makes the server open `path` again. No line is lost between the two files.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::with_target(Target::File(path.into()))
    }

    /// Writes to any other writer, on a thread where writes may block. Each write passes one or
    /// more complete lines.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::with_target(Target::Writer(Box::new(writer)))
    }

    /// Writes to the target that a configuration names: `stdout`, or the path of a file.
    #[doc(hidden)]
    pub fn from_target(text: &str) -> Self {
        if text == "stdout" { Self::stdout() } else { Self::file(text) }
    }

    fn with_target(target: Target) -> Self {
        let (queue_bytes_max, flush_timeout) = (DEFAULT_QUEUE_BYTES_MAX, DEFAULT_FLUSH_TIMEOUT);
        Self {
            target,
            style: AccessLogStyle::default(),
            style_updates: None,
            queue_bytes_max,
            flush_timeout,
        }
    }

    /// Sets the format of a line. Default: [`AccessLogFormat::Combined`].
    #[doc(alias = "log_format")]
    pub fn format(mut self, format: AccessLogFormat) -> Self {
        self.style.format = format;
        self
    }

    /// Omits the query strings of request targets and of `Referer` fields, which may contain
    /// secrets. By default they are logged, as in other servers.
    pub fn omit_query(mut self) -> Self {
        self.style.omit_query = true;
        self
    }

    /// Omits the requests of the route with this pattern, such as `/health`. The server fails to
    /// start if the application has no such route.
    #[doc(alias = "exclude")]
    pub fn exclude_route(mut self, pattern: impl Into<String>) -> Self {
        self.style.excluded_routes.insert(pattern.into());
        self
    }

    /// Sets the whole style.
    #[doc(hidden)]
    pub fn with_style(mut self, style: AccessLogStyle) -> Self {
        self.style = style;
        self
    }

    /// Makes the style follow the latest value of this channel.
    #[doc(hidden)]
    pub fn set_style_updates(&mut self, updates: watch::Receiver<AccessLogStyle>) {
        self.style_updates = Some(updates);
    }

    /// Opens the output.
    ///
    /// # Errors
    /// The output cannot be opened.
    #[doc(hidden)]
    pub fn open(self) -> Result<Sink, AccessLogError> {
        self.target.open()
    }

    /// Limits the size of each worker's queue, in bytes. If a line does not fit into the queue, it
    /// is dropped and counted. Default: 1 MiB. Memory is allocated only for lines that are in the
    /// queue.
    ///
    /// A second queue of the same size receives the lines that are logged while the writer thread
    /// empties the first one, so up to twice as many bytes can wait. Lines that the writer thread
    /// has taken and is writing no longer count.
    pub fn queue_bytes_max(mut self, bytes_max: usize) -> Self {
        self.queue_bytes_max = bytes_max;
        self
    }

    /// Sets how long the shutdown waits until all lines are written. Default: 5 s.
    pub fn flush_timeout(mut self, timeout: Duration) -> Self {
        self.flush_timeout = timeout;
        self
    }

    /// Whether the output is a file, which can be reopened, or a reload can change it to a file.
    #[doc(hidden)]
    #[must_use]
    pub fn may_be_file(&self) -> bool {
        matches!(self.target, Target::File(_)) || self.style_updates.is_some()
    }

    /// Opens the output and starts the thread, with a queue for each worker.
    ///
    /// # Errors
    /// The output cannot be opened, or the thread cannot be started.
    #[doc(hidden)]
    pub fn start(self, workers: usize) -> Result<StartedAccessLog, AccessLogError> {
        let may_be_file = self.may_be_file();
        let Self { target, style, style_updates, queue_bytes_max, flush_timeout } = self;
        let sink = target.open()?;
        let style = style_updates.unwrap_or_else(|| watch::channel(style).1);
        let signal = Arc::new(WriterSignal::default());
        let metrics = Arc::new(AccessLogMetrics::new(workers));
        let queue = |worker| LineQueue::new(worker, queue_bytes_max, &signal, &metrics);
        let queues: Vec<_> = (0..workers).map(|worker| Arc::new(queue(worker))).collect();
        let (sender, receiver) = mpsc::channel();
        let writer = AccessLogWriter {
            sink,
            queues: queues.clone(),
            signal: Arc::clone(&signal),
            metrics: Arc::clone(&metrics),
            done: sender,
        };
        let run: Box<dyn FnOnce() + Send> = Box::new(move || writer.run());
        let thread = thread::Builder::new().name("peregrine-log".to_owned()).spawn(run);
        let thread = thread.map_err(AccessLogError::Thread)?;
        signal.set_thread(thread.thread().clone());
        let worker_log = |queue| {
            let sink = Box::new(Producer(queue));
            WorkerLog { style: style.clone(), sink }
        };
        Ok(StartedAccessLog {
            logs: queues.into_iter().map(worker_log).collect(),
            control: may_be_file.then(|| LogControl(Arc::clone(&signal))),
            flush: AccessLogFlush { signal, done: receiver, metrics, flush_timeout },
        })
    }
}

/// An access log whose thread is running.
pub struct StartedAccessLog {
    /// One for each worker.
    logs: Vec<WorkerLog>,
    /// `None` if the output is not a file and cannot become one.
    control: Option<LogControl>,
    flush: AccessLogFlush,
}

impl StartedAccessLog {
    /// Returns the handle to the output, if the output is a file or can become one.
    #[must_use]
    pub fn control(&self) -> Option<LogControl> {
        self.control.clone()
    }

    /// Returns the log's metrics.
    #[must_use]
    pub fn metrics(&self) -> &Arc<AccessLogMetrics> {
        &self.flush.metrics
    }

    /// Gives each worker its part of the log. The returned [`AccessLogFlush`] flushes and closes
    /// the log.
    #[must_use]
    pub fn distribute(
        started_log: Option<Self>,
        workers: usize,
    ) -> (Vec<Option<WorkerLog>>, Option<AccessLogFlush>) {
        let Some(Self { logs, flush, .. }) = started_log else {
            return ((0..workers).map(|_| None).collect(), None);
        };
        (logs.into_iter().map(Some).collect(), Some(flush))
    }
}

/// A handle to the output of a running log.
#[derive(Clone, Debug)]
pub struct LogControl(Arc<WriterSignal>);

impl LogControl {
    /// Reopens the file.
    pub fn reopen(&self) {
        self.0.request_reopen();
    }

    /// Switches to another output. Lines that are already queued are written to either output.
    pub fn switch_sink(&self, sink: Sink) {
        self.0.switch(sink);
    }
}

/// Flushes and closes a log ([`wait`](Self::wait)). If this value is dropped instead, the thread
/// runs until the last worker has ended.
#[derive(Debug)]
pub struct AccessLogFlush {
    signal: Arc<WriterSignal>,
    /// Receives `Ok` or is disconnected when the thread has ended. The type is the same as that of
    /// the admin listener's channel, because each channel type is compiled separately.
    done: mpsc::Receiver<io::Result<()>>,
    metrics: Arc<AccessLogMetrics>,
    flush_timeout: Duration,
}

impl AccessLogFlush {
    /// Waits until all lines are written, for up to `flush_timeout`.
    pub fn wait(self) {
        self.signal.flush();
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.done.recv_timeout(self.flush_timeout) {
            let (timeout, lines) = (self.flush_timeout, self.metrics.pending());
            catch_subscriber_panic(|| {
                tracing::warn!(target: "peregrine", ?timeout, lines,
                "the last lines of the access log were not written in time and are lost")
            });
        }
    }
}

impl Drop for AccessLogFlush {
    fn drop(&mut self) {
        self.signal.detach();
    }
}

#[cfg(test)]
mod tests;
