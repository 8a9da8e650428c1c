//! [`ShutdownReport`]: the final report of a server.

use peregrine_server::{ForceClosed, WorkerStats};
use std::fmt;

/// The final report of a server that has ended.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Each worker's counters, in order; `None` for a worker that did not end.
    pub workers: Vec<Option<WorkerStats>>,
    /// The connections that were cut, because they were still busy at the deadline or when a forced
    /// close was requested.
    #[doc(alias = "aborted")]
    pub force_closed: Vec<ForceClosed>,
    /// Whether a forced close was requested before the deadline.
    pub(crate) is_force_close_requested: bool,
}

/// Creates the report of a simulated server.
#[doc(hidden)]
#[must_use]
pub fn stopped(
    workers: Vec<Option<WorkerStats>>,
    force_closed: Vec<ForceClosed>,
    is_force_close_requested: bool,
) -> ShutdownReport {
    ShutdownReport { workers, force_closed, is_force_close_requested }
}

impl ShutdownReport {
    /// Returns the number of requests that all workers have responded to.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.requests).sum()
    }

    /// Returns the number of tasks of all workers that were dropped because they did not end in
    /// time.
    #[must_use]
    pub fn aborted_tasks(&self) -> usize {
        self.workers.iter().flatten().map(|worker| worker.aborted_tasks).sum()
    }

    /// Returns the number of blocking functions of all workers that were still running when the
    /// shutdown stopped waiting for them.
    #[doc(alias = "spawn_blocking")]
    #[must_use]
    pub fn abandoned_blocking_tasks(&self) -> usize {
        self.workers.iter().flatten().map(|worker| worker.abandoned_blocking_tasks).sum()
    }

    /// Returns the number of connections that all workers have accepted.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.accepted).sum()
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, connections) = (self.requests(), self.connections());
        write!(f, "peregrine: stopped after {requests} requests on {connections} connections")?;
        let not_ended = self.workers.iter().filter(|worker| worker.is_none()).count();
        match (self.force_closed.len(), self.is_force_close_requested) {
            // A worker that did not end may have cut connections that are not in this report.
            (0, _) if not_ended > 0 => {}
            (0, _) => f.write_str("; none was cut")?,
            (count, true) => write!(f, "; {count} cut before the deadline, as requested:")?,
            (count, false) => write!(f, "; {count} cut at the deadline:")?,
        }
        for force_closed in &self.force_closed {
            write!(f, "\n  {force_closed}")?;
        }
        let (tasks, functions) = (self.aborted_tasks(), self.abandoned_blocking_tasks());
        if tasks + functions > 0 {
            write!(f, "\n  {tasks} tasks and {functions} blocking functions did not end in time")?;
            write!(f, " (tasks that run forever should stop on peregrine::Shutdown)")?;
        }
        for (id, _) in self.workers.iter().enumerate().filter(|(_, worker)| worker.is_none()) {
            write!(
                f,
                "\n  worker {id} did not end: a handler blocks its thread; its requests and "
            )?;
            f.write_str("cut connections are not counted here")?;
        }
        Ok(())
    }
}
