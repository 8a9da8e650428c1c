//! The access log: one line per request, written when the request's response is complete or the
//! request has ended without a response.
//!
//! A worker formats a line in its own buffer and passes it to a [`Lines`], which never blocks the
//! worker. `format.rs` contains the formats.

mod format;

pub use self::format::Form;
pub(crate) use self::format::Told;

use self::format::{Entry, Time};
use super::metrics::Key;
use peregrine_web::application::Application;
use peregrine_web::route::readable;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;
use tokio::sync::watch;

/// Larger line buffers are freed after use.
const LINE_KEPT_BYTES_MAX: usize = 16 * 1024;

/// Receives the lines of one worker.
pub trait Lines: Send {
    /// Takes a line, which ends with a line feed. If there is no room, drops the line and counts
    /// it. Never blocks.
    fn push(&self, line: &[u8]);
}

/// The format of the access log, and which requests are logged. The style may change while the
/// server runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// The format of a line.
    pub form: Form,
    /// Whether to leave out queries, which may contain secrets.
    pub leaves_queries_out: bool,
    /// Patterns of routes whose requests are not logged.
    pub routes_left_out: BTreeSet<String>,
}

impl Style {
    /// Checks that all routes are among these patterns of the application.
    ///
    /// # Errors
    /// The text describes the mistake and how to fix it.
    pub fn check(&self, known: &[String]) -> Result<(), String> {
        let unknown = self.routes_left_out.iter().find(|pattern| !known.contains(pattern));
        unknown.map_or(Ok(()), |pattern| {
            let known = known.join(", ");
            Err(format!(
                "the access log is configured to leave out the route `{pattern}`, but the \
                 application has no such route; it has {known}"
            ))
        })
    }
}

/// The route patterns of an application in readable form, by route number.
#[must_use]
pub fn patterns(application: &Application) -> Vec<String> {
    application.routes().map(|route| readable(route.pattern).into_owned()).collect()
}

/// The access log of one worker.
pub struct Log {
    /// The current format.
    pub style: watch::Receiver<Style>,
    /// Receives the lines.
    pub lines: Box<dyn Lines>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("style", &*self.style.borrow()).finish_non_exhaustive()
    }
}

/// Writes the access log of one worker.
pub(crate) struct Logger {
    lines: Box<dyn Lines>,
    style: RefCell<watch::Receiver<Style>>,
    form: Cell<Form>,
    leaves_queries_out: Cell<bool>,
    /// Whether the requests of a route are not logged, by route number. Empty if all requests are
    /// logged.
    left_out: RefCell<Vec<bool>>,
    /// Time since the Unix epoch.
    unix: Box<dyn Fn() -> Duration>,
    /// The route patterns, by route number.
    routes: Vec<String>,
    line: RefCell<Vec<u8>>,
    time: Cell<Time>,
}

impl Logger {
    pub(crate) fn new(
        log: Log,
        application: &Application,
        unix: impl Fn() -> Duration + 'static,
    ) -> Self {
        let logger = Self {
            lines: log.lines,
            style: RefCell::new(log.style),
            form: Cell::default(),
            leaves_queries_out: Cell::default(),
            left_out: RefCell::default(),
            unix: Box::new(unix),
            routes: patterns(application),
            line: RefCell::default(),
            time: Cell::new(Time::at(Duration::ZERO)),
        };
        logger.follow();
        logger
    }

    /// Applies the current style.
    fn follow(&self) {
        let mut style = self.style.borrow_mut();
        let style = style.borrow_and_update();
        self.form.set(style.form);
        self.leaves_queries_out.set(style.leaves_queries_out);
        let is_left_out = |pattern| style.routes_left_out.contains(pattern);
        let all = self.routes.iter().map(is_left_out);
        let is_any = !style.routes_left_out.is_empty();
        *self.left_out.borrow_mut() = if is_any { all.collect() } else { Vec::new() };
    }

    /// Writes the line of a request that ended after the time `took`.
    pub(crate) fn write(&self, key: &Key, told: &Told, took: Duration) {
        // An error means that the style cannot change any more.
        if self.style.borrow().has_changed().unwrap_or(false) {
            self.follow();
        }
        let left_out = self.left_out.borrow();
        let of_route = key.route.and_then(|route| left_out.get(route as usize));
        if of_route.copied().unwrap_or(false) {
            return;
        }
        drop(left_out);
        let began = (self.unix)().saturating_sub(took);
        if !self.time.get().is_of(began) {
            self.time.set(Time::at(began));
        }
        let entry = Entry {
            key,
            told,
            began,
            took,
            time: self.time.get(),
            route: key.route.and_then(|route| self.routes.get(route as usize)).map(String::as_str),
            leaves_query_out: self.leaves_queries_out.get(),
        };
        let mut line = self.line.borrow_mut();
        line.clear();
        entry.write(self.form.get(), &mut line);
        self.lines.push(&line);
        if line.capacity() > LINE_KEPT_BYTES_MAX {
            *line = Vec::new();
        }
    }
}
