//! The access log: one line per request, written when the request's response is complete or the
//! request has ended without a complete response.
//!
//! A worker formats a line in its own buffer and passes it to an [`AccessLogSink`], which never
//! blocks the worker. `format.rs` contains the formats.

mod format;

pub use self::format::AccessLogFormat;
pub(crate) use self::format::AccessLogRecord;

use self::format::{AccessLogLine, LogTimestamp};
use super::metrics::RequestAttributes;
use peregrine_web::built::BuiltApp;
use peregrine_web::route::display_pattern;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;
use tokio::sync::watch;

/// The line buffer is reused if its capacity is at most this. A larger one is freed after use.
const RETAINED_LINE_BYTES_MAX: usize = 16 * 1024;

/// Receives the lines of one worker.
pub trait AccessLogSink: Send {
    /// Accepts a line, which ends with a line feed. Must never block: if there is no room, drops
    /// the line and counts it as dropped.
    fn write_line(&self, line: &[u8]);
}

/// The format of the access log, and which requests are logged. The style can change while the
/// server is running.
#[doc(alias = "log_format")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLogStyle {
    /// The format of a line.
    pub format: AccessLogFormat,
    /// Whether to leave out queries, which may contain secrets.
    pub omit_query: bool,
    /// Patterns of routes whose requests are not logged.
    pub excluded_routes: BTreeSet<String>,
}

impl AccessLogStyle {
    /// Checks that all excluded routes are among the application's patterns, `known_patterns`.
    ///
    /// # Errors
    /// The text describes the mistake and how to fix it.
    pub fn validate(&self, known_patterns: &[String]) -> Result<(), String> {
        let unknown = self.excluded_routes.iter().find(|pattern| !known_patterns.contains(pattern));
        unknown.map_or(Ok(()), |pattern| {
            let known_patterns = known_patterns.join(", ");
            Err(format!(
                "the access log is configured to leave out the route `{pattern}`, but the \
                 application has no such route; it has {known_patterns}"
            ))
        })
    }
}

/// The route patterns of an application as they are displayed, by route number.
#[must_use]
pub fn route_patterns(application: &BuiltApp) -> Vec<String> {
    application.routes().map(|route| display_pattern(route.pattern).into_owned()).collect()
}

/// What a worker needs for its access log: the style, and the sink for its lines.
pub struct WorkerAccessLog {
    /// The current style.
    pub style: watch::Receiver<AccessLogStyle>,
    /// Receives the lines.
    pub sink: Box<dyn AccessLogSink>,
}

impl fmt::Debug for WorkerAccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerAccessLog")
            .field("style", &*self.style.borrow())
            .finish_non_exhaustive()
    }
}

/// Formats the lines of one worker's access log and passes them to its sink.
pub(crate) struct AccessLogger {
    sink: Box<dyn AccessLogSink>,
    style: RefCell<watch::Receiver<AccessLogStyle>>,
    format: Cell<AccessLogFormat>,
    omit_query: Cell<bool>,
    /// Which routes are excluded from the log, by route number. Empty if no route is excluded.
    excluded: RefCell<Vec<bool>>,
    /// Returns the time since the Unix epoch.
    unix_time: Box<dyn Fn() -> Duration>,
    /// The route patterns, by route number.
    routes: Vec<String>,
    /// The buffer for the current line.
    line: RefCell<Vec<u8>>,
    /// The timestamp of the last line. Lines with the same second reuse it.
    time: Cell<LogTimestamp>,
}

impl AccessLogger {
    pub(crate) fn new(
        log: WorkerAccessLog,
        application: &BuiltApp,
        unix_time: impl Fn() -> Duration + 'static,
    ) -> Self {
        let logger = Self {
            sink: log.sink,
            style: RefCell::new(log.style),
            format: Cell::default(),
            omit_query: Cell::default(),
            excluded: RefCell::default(),
            unix_time: Box::new(unix_time),
            routes: route_patterns(application),
            line: RefCell::default(),
            time: Cell::new(LogTimestamp::from_unix(Duration::ZERO)),
        };
        logger.reload();
        logger
    }

    /// Applies the latest style.
    fn reload(&self) {
        let mut updates = self.style.borrow_mut();
        let style = updates.borrow_and_update();
        self.format.set(style.format);
        self.omit_query.set(style.omit_query);
        let is_excluded = |pattern| style.excluded_routes.contains(pattern);
        let excluded = self.routes.iter().map(is_excluded);
        let has_exclusions = !style.excluded_routes.is_empty();
        *self.excluded.borrow_mut() = if has_exclusions { excluded.collect() } else { Vec::new() };
    }

    /// Writes the line of a request that ended after `duration`.
    pub(crate) fn write(
        &self,
        attributes: &RequestAttributes,
        record: &AccessLogRecord,
        duration: Duration,
    ) {
        // An error means that the sender is gone, so the style no longer changes.
        if self.style.borrow().has_changed().unwrap_or(false) {
            self.reload();
        }
        let excluded = self.excluded.borrow();
        let is_excluded = attributes.route.and_then(|route| excluded.get(route as usize));
        if is_excluded.copied().unwrap_or(false) {
            return;
        }
        drop(excluded);
        let started_at = (self.unix_time)().saturating_sub(duration);
        if !self.time.get().covers(started_at) {
            self.time.set(LogTimestamp::from_unix(started_at));
        }
        let entry = AccessLogLine {
            attributes,
            record,
            started_at,
            duration,
            time: self.time.get(),
            route: attributes
                .route
                .and_then(|route| self.routes.get(route as usize))
                .map(String::as_str),
            omit_query: self.omit_query.get(),
        };
        let mut line = self.line.borrow_mut();
        line.clear();
        entry.write(self.format.get(), &mut line);
        self.sink.write_line(&line);
        if line.capacity() > RETAINED_LINE_BYTES_MAX {
            *line = Vec::new();
        }
    }
}
