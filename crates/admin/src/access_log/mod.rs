//! The access log: a line for each request, written by a thread of its own.
//!
//! Workers hand lines over and never wait. What cannot be written, because the disk is full, a pipe is not read or
//! they make more than it takes, is dropped and counted.
//!
//! `queue.rs` is the way from a worker to the thread, `writer.rs` the thread, and `sink.rs` where lines go.

mod metrics;
mod queue;
mod sink;
mod writer;

pub use peregrine_server::Form;
use peregrine_server::Style;

#[cfg(test)]
pub(crate) use self::metrics::FAMILIES;
pub use self::metrics::Figures;
pub(crate) use self::metrics::write;

pub use self::sink::Sink;

use self::queue::{Bell, Producer, Queue};
use self::writer::Writer;
use peregrine_server::Log as WorkerLog;
use peregrine_web::panics::contained;
use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// How much may wait to be written, by default.
pub const QUEUE_BYTES_MAX: usize = 1 << 20;

/// How long the end of the server waits for what is not written, by default.
pub const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the access log goes, and how its lines look (`Server::access_log`).
///
/// Each request has one line, when its response is complete or it ended without one: also requests that were not
/// understood, or whose peer left. A worker writes it into a buffer of its own and hands it over; it waits neither
/// for the disk nor for another thread.
///
/// ```no_run
/// use peregrine::log::{Log, Form};
/// use peregrine::prelude::*;
///
/// fn main() -> peregrine::Result<()> {
///     let log = Log::file("/var/log/app/access.log").form(Form::Json);
///     Server::bind("127.0.0.1:8080").access_log(log).serve(|| App::new().get("/", || "hello"))
/// }
/// ```
#[derive(Debug)]
#[must_use = "a log does nothing until a server has it"]
pub struct Log {
    target: Target,
    style: Style,
    /// What the style is from now on, where it may change.
    live: Option<watch::Receiver<Style>>,
    queue_bytes_max: usize,
    end_timeout: Duration,
}

/// Why an access log could not begin.
#[derive(Debug)]
pub enum LogError {
    /// The place where it goes cannot be opened.
    Open {
        /// The path, or where else it was to go.
        target: String,
        /// What the system said.
        cause: io::Error,
    },
    /// The process is out of threads.
    Thread(io::Error),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { target, cause } => {
                write!(f, "cannot open the access log {target}: {cause}")
            }
            Self::Thread(cause) => write!(f, "cannot start the thread of the access log: {cause}"),
        }
    }
}

impl Error for LogError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open { cause, .. } | Self::Thread(cause) => Some(cause),
        }
    }
}

enum Target {
    Stdout,
    File(PathBuf),
    Other(Box<dyn Write + Send>),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.fmt(f),
            Self::Other(_) => f.write_str("a writer"),
        }
    }
}

impl Target {
    fn open(self) -> Result<Sink, LogError> {
        let name = format!("{self:?}");
        let sink = match self {
            Self::Stdout => Sink::stdout(),
            Self::File(path) => Sink::file(path),
            Self::Other(writer) => Ok(Sink::other(writer)),
        };
        sink.map_err(|cause| LogError::Open { target: name, cause })
    }
}

impl Log {
    /// Writes to the standard output, past the buffer that `println!` has.
    pub fn stdout() -> Self {
        Self::at(Target::Stdout)
    }

    /// Appends to a file, which is made if there is none. On SIGUSR1, where `Server::serve`
    /// is called, and by `Handle::reopen_logs` it is opened again, after `logrotate`
    /// or others have moved it away: no line is lost between the two files.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::at(Target::File(path.into()))
    }

    /// Writes to anything else, on a thread that may block. Lines come whole, many at a time.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self::at(Target::Other(Box::new(writer)))
    }

    /// Goes where a tree of settings says: to `stdout`, or to a file.
    #[doc(hidden)]
    pub fn target(text: &str) -> Self {
        if text == "stdout" { Self::stdout() } else { Self::file(text) }
    }

    fn at(target: Target) -> Self {
        let (queue_bytes_max, end_timeout) = (QUEUE_BYTES_MAX, END_TIMEOUT);
        Self { target, style: Style::default(), live: None, queue_bytes_max, end_timeout }
    }

    /// How a line looks. Default [`Form::Combined`].
    pub fn form(mut self, form: Form) -> Self {
        self.style.form = form;
        self
    }

    /// Leaves the queries of requests and of referring pages out, which may hold secrets. By default they are there,
    /// as in the logs of other servers.
    pub fn without_queries(mut self) -> Self {
        self.style.leaves_queries_out = true;
        self
    }

    /// Requests of the route with this pattern, such as `/health`, have no line. An error at the start if the application has
    /// no such route.
    pub fn without_route(mut self, pattern: impl Into<String>) -> Self {
        self.style.routes_left_out.insert(pattern.into());
        self
    }

    /// Looks so.
    #[doc(hidden)]
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Looks from now on as this says last.
    #[doc(hidden)]
    pub fn follow(&mut self, style: watch::Receiver<Style>) {
        self.live = Some(style);
    }

    /// Opens the place where it goes.
    ///
    /// # Errors
    /// The system cannot open it.
    #[doc(hidden)]
    pub fn open(self) -> Result<Sink, LogError> {
        self.target.open()
    }

    /// How many bytes of each worker may wait to be written. What comes beyond is dropped and counted. Default
    /// 1 MiB; the memory is in use only while so much waits.
    pub fn queue_bytes_max(mut self, bytes: usize) -> Self {
        self.queue_bytes_max = bytes;
        self
    }

    /// How long the end of the server waits until everything is written. Default 5 s.
    pub fn end_timeout(mut self, timeout: Duration) -> Self {
        self.end_timeout = timeout;
        self
    }

    /// Is it a file, which can be opened again, or may a reload make it one?
    #[doc(hidden)]
    #[must_use]
    pub fn may_be_file(&self) -> bool {
        matches!(self.target, Target::File(_)) || self.live.is_some()
    }

    /// Opens it for so many workers, and begins to write.
    ///
    /// # Errors
    /// The place where it goes cannot be opened, or the process is out of threads.
    #[doc(hidden)]
    pub fn start(self, workers: usize) -> Result<Logging, LogError> {
        let may_be_file = self.may_be_file();
        let Self { target, style, live, queue_bytes_max, end_timeout } = self;
        let sink = target.open()?;
        let style = live.unwrap_or_else(|| watch::channel(style).1);
        let bell = Arc::new(Bell::default());
        let figures = Arc::new(Figures::new(workers));
        let queue = |number| Queue::new(number, queue_bytes_max, &bell, &figures);
        let queues: Vec<_> = (0..workers).map(|number| Arc::new(queue(number))).collect();
        let (done, ended) = mpsc::channel();
        let writer = Writer {
            sink,
            queues: queues.clone(),
            bell: Arc::clone(&bell),
            figures: Arc::clone(&figures),
            done,
        };
        let write: Box<dyn FnOnce() + Send> = Box::new(move || writer.run());
        let thread = thread::Builder::new().name("peregrine-log".to_owned()).spawn(write);
        let thread = thread.map_err(LogError::Thread)?;
        bell.wakes(thread.thread().clone());
        let log = |queue| {
            let lines = Box::new(Producer(queue));
            WorkerLog { style: style.clone(), lines }
        };
        Ok(Logging {
            logs: queues.into_iter().map(log).collect(),
            place: may_be_file.then(|| Place(Arc::clone(&bell))),
            end: Ending { bell, ended, figures, end_timeout },
        })
    }
}

/// A log that has begun.
pub struct Logging {
    /// For each worker.
    logs: Vec<WorkerLog>,
    /// Where the log is a file, or may become one.
    place: Option<Place>,
    end: Ending,
}

impl Logging {
    /// Where its lines go.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.place.clone()
    }

    /// What becomes of its lines.
    #[must_use]
    pub fn figures(&self) -> &Arc<Figures> {
        &self.end.figures
    }

    /// Deals the log out to so many workers. Its end is what remains.
    #[must_use]
    pub fn deal(logging: Option<Self>, workers: usize) -> (Vec<Option<WorkerLog>>, Option<Ending>) {
        let Some(Self { logs, end, .. }) = logging else {
            return ((0..workers).map(|_| None).collect(), None);
        };
        (logs.into_iter().map(Some).collect(), Some(end))
    }
}

/// Where lines go.
#[derive(Clone, Debug)]
pub struct Place(Arc<Bell>);

impl Place {
    /// Opens the file again.
    pub fn reopen(&self) {
        self.0.reopen();
    }

    /// Has lines go elsewhere from now on. Those that were handed over by now are in one of the two places.
    pub fn switch(&self, sink: Sink) {
        self.0.switch(sink);
    }
}

/// The end of a log. When it is dropped, the thread goes on until the last worker is gone.
#[derive(Debug)]
pub struct Ending {
    bell: Arc<Bell>,
    /// Of the type that the admin listener has: each type of a channel is compiled anew.
    ended: mpsc::Receiver<io::Result<()>>,
    figures: Arc<Figures>,
    end_timeout: Duration,
}

impl Ending {
    /// Waits until everything is written, but not for long.
    pub fn end(self) {
        self.bell.end();
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.ended.recv_timeout(self.end_timeout) {
            let (timeout, lines) = (self.end_timeout, self.figures.unwritten());
            contained(|| {
                tracing::warn!(target: "peregrine", ?timeout, lines,
                "the end of the access log was not written in time, and is lost")
            });
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.bell.leave();
    }
}

#[cfg(test)]
mod tests;
