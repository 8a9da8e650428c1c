//! The access log: one line per request, written by a separate thread.
//!
//! Workers put lines into a queue and never wait. Lines are dropped and counted if they cannot be
//! written, because the disk is full, a pipe has no reader, or the queue is full.
//!
//! `queue.rs` has the queues from the workers to the thread, `writer.rs` the thread, and `sink.rs`
//! the output.

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
use peregrine_web::panic::catch_log_panic;
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

/// How long the shutdown waits for unwritten lines, by default.
pub const DEFAULT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The output and the format of the access log (`Server::access_log`).
///
/// Each request is logged in one line when its response is complete or when it ends without one.
/// This includes malformed requests and requests whose client disconnected. Workers put lines into
/// a queue for another thread; they wait neither for the disk nor for that thread.
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
    /// The channel for changes of the style, if it can change.
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
    /// file, it is reopened on SIGUSR1 (if the server runs through `Server::serve`) or by
    /// `ServerHandle::reopen_logs`. No line is lost between the two files.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::with_target(Target::File(path.into()))
    }

    /// Writes to any other writer, on a thread that may block. Each call gets many lines, all of
    /// them complete.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::with_target(Target::Writer(Box::new(writer)))
    }

    /// Writes to the target of a configuration: `stdout`, or the path of a file.
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
    pub fn format(mut self, form: AccessLogFormat) -> Self {
        self.style.format = form;
        self
    }

    /// Leaves out the query strings of request targets and of `Referer` fields, which may contain
    /// secrets. By default they are logged, as in other servers.
    pub fn omit_query(mut self) -> Self {
        self.style.omit_query = true;
        self
    }

    /// Leaves out the requests of the route with this pattern, such as `/health`. Starting the
    /// server fails if the application has no such route.
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

    /// Takes the style from the latest value of this channel.
    #[doc(hidden)]
    pub fn set_style_updates(&mut self, style: watch::Receiver<AccessLogStyle>) {
        self.style_updates = Some(style);
    }

    /// Opens the output.
    ///
    /// # Errors
    /// The output cannot be opened.
    #[doc(hidden)]
    pub fn open(self) -> Result<Sink, AccessLogError> {
        self.target.open()
    }

    /// Sets how many bytes of each worker may wait to be written. Further lines are dropped and
    /// counted. Default: 1 MiB. The memory is allocated only while that much waits.
    pub fn queue_bytes_max(mut self, bytes: usize) -> Self {
        self.queue_bytes_max = bytes;
        self
    }

    /// Sets how long the shutdown waits until everything is written. Default: 5 s.
    pub fn flush_timeout(mut self, timeout: Duration) -> Self {
        self.flush_timeout = timeout;
        self
    }

    /// Whether the output is a file, which can be reopened, or may become one by a reload.
    #[doc(hidden)]
    #[must_use]
    pub fn may_be_file(&self) -> bool {
        matches!(self.target, Target::File(_)) || self.style_updates.is_some()
    }

    /// Opens the output and starts the thread, with a queue for each of `workers`.
    ///
    /// # Errors
    /// The output cannot be opened, or the thread cannot be started.
    #[doc(hidden)]
    pub fn start(self, workers: usize) -> Result<StartedAccessLog, AccessLogError> {
        let may_be_file = self.may_be_file();
        let Self { target, style, style_updates: live, queue_bytes_max, flush_timeout } = self;
        let sink = target.open()?;
        let style = live.unwrap_or_else(|| watch::channel(style).1);
        let bell = Arc::new(WriterSignal::default());
        let figures = Arc::new(AccessLogMetrics::new(workers));
        let queue = |number| LineQueue::new(number, queue_bytes_max, &bell, &figures);
        let queues: Vec<_> = (0..workers).map(|number| Arc::new(queue(number))).collect();
        let (done, ended) = mpsc::channel();
        let writer = AccessLogWriter {
            sink,
            queues: queues.clone(),
            signal: Arc::clone(&bell),
            metrics: Arc::clone(&figures),
            done,
        };
        let write: Box<dyn FnOnce() + Send> = Box::new(move || writer.run());
        let thread = thread::Builder::new().name("peregrine-log".to_owned()).spawn(write);
        let thread = thread.map_err(AccessLogError::Thread)?;
        bell.set_thread(thread.thread().clone());
        let log = |queue| {
            let lines = Box::new(Producer(queue));
            WorkerLog { style: style.clone(), sink: lines }
        };
        Ok(StartedAccessLog {
            logs: queues.into_iter().map(log).collect(),
            control: may_be_file.then(|| LogControl(Arc::clone(&bell))),
            flush: AccessLogFlush { signal: bell, done: ended, metrics: figures, flush_timeout },
        })
    }
}

/// An access log whose thread is running.
pub struct StartedAccessLog {
    /// One for each worker.
    logs: Vec<WorkerLog>,
    /// Set if the output is a file or may become one.
    control: Option<LogControl>,
    flush: AccessLogFlush,
}

impl StartedAccessLog {
    /// The handle to the output, if it is a file or may become one.
    #[must_use]
    pub fn control(&self) -> Option<LogControl> {
        self.control.clone()
    }

    /// The metrics of the log.
    #[must_use]
    pub fn metrics(&self) -> &Arc<AccessLogMetrics> {
        &self.flush.metrics
    }

    /// Distributes the log to the workers. The returned [`AccessLogFlush`] ends it.
    #[must_use]
    pub fn distribute(
        logging: Option<Self>,
        workers: usize,
    ) -> (Vec<Option<WorkerLog>>, Option<AccessLogFlush>) {
        let Some(Self { logs, flush: end, .. }) = logging else {
            return ((0..workers).map(|_| None).collect(), None);
        };
        (logs.into_iter().map(Some).collect(), Some(end))
    }
}

/// A handle to the output of a running log.
#[derive(Clone, Debug)]
pub struct LogControl(Arc<WriterSignal>);

impl LogControl {
    /// Reopens the file.
    pub fn reopen(&self) {
        self.0.reopen();
    }

    /// Switches to another output. Lines that are already queued go to one of the two.
    pub fn switch_sink(&self, sink: Sink) {
        self.0.switch(sink);
    }
}

/// Ends a log. If this is dropped instead, the thread keeps running until the last worker has
/// ended.
#[derive(Debug)]
pub struct AccessLogFlush {
    signal: Arc<WriterSignal>,
    /// The same type as in the admin listener, because each channel type is compiled separately.
    done: mpsc::Receiver<io::Result<()>>,
    metrics: Arc<AccessLogMetrics>,
    flush_timeout: Duration,
}

impl AccessLogFlush {
    /// Waits until everything is written, for up to `flush_timeout`.
    pub fn wait(self) {
        self.signal.flush();
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.done.recv_timeout(self.flush_timeout) {
            let (timeout, lines) = (self.flush_timeout, self.metrics.pending());
            catch_log_panic(|| {
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
