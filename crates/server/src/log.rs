//! The access log: a line for each request, when its response is complete or it ended without one.
//!
//! A worker writes the line into a buffer of its own and hands it over; who takes it never makes it wait.
//! `form.rs` says how a line looks.

mod form;

pub use form::Form;

use crate::counts::Key;
use crate::told::Told;
use form::{Entry, Time};
use peregrine_web::application::Application;
use peregrine_web::route::readable;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;

/// The most that is kept of a buffer between two lines.
const LINE_KEPT_BYTES_MAX: usize = 16 * 1024;

/// Who takes the lines of one worker.
pub trait Lines: Send {
    /// Takes a line, which ends with its line feed, or drops and counts it. This never waits.
    fn push(&self, line: &[u8]);
}

/// The access log of one worker.
pub struct Log {
    /// How a line looks.
    pub form: Form,
    /// Leaves queries out, which may hold secrets.
    pub leaves_queries_out: bool,
    /// Who takes the lines.
    pub lines: Box<dyn Lines>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("form", &self.form).finish_non_exhaustive()
    }
}

/// A log, and what a worker writes it with.
pub(crate) struct Logger {
    log: Log,
    /// Time since the Unix epoch.
    unix: Box<dyn Fn() -> Duration>,
    /// The patterns of routes, by their numbers.
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
        let routes = application.routes().map(|route| readable(route.pattern).into_owned());
        Self {
            log,
            unix: Box::new(unix),
            routes: routes.collect(),
            line: RefCell::default(),
            time: Cell::new(Time::at(Duration::ZERO)),
        }
    }

    /// Writes the line of a request that is over after so long a time.
    pub(crate) fn write(&self, key: &Key, told: &Told, took: Duration) {
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
            leaves_query_out: self.log.leaves_queries_out,
        };
        let mut line = self.line.borrow_mut();
        line.clear();
        entry.write(self.log.form, &mut line);
        self.log.lines.push(&line);
        if line.capacity() > LINE_KEPT_BYTES_MAX {
            *line = Vec::new();
        }
    }
}
