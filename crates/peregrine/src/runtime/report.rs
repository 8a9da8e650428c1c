//! What a server did in its life, and how it is told.

use peregrine_server::{Cut, Snapshot};
use std::fmt;

/// What the server did, reported when it has ended.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Stopped {
    /// Each worker's figures, in order; `None` for a worker that did not end.
    pub workers: Vec<Option<Snapshot>>,
    /// Connections that were cut because they were still busy at the deadline, or at the order to cut.
    pub cut: Vec<Cut>,
    /// Was there an order to cut before the deadline?
    pub(crate) is_cut_ordered: bool,
}

/// What a simulated server did.
#[doc(hidden)]
#[must_use]
pub fn stopped(workers: Vec<Option<Snapshot>>, cut: Vec<Cut>, is_cut_ordered: bool) -> Stopped {
    Stopped { workers, cut, is_cut_ordered }
}

impl Stopped {
    /// Requests answered by all workers.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.requests).sum()
    }

    /// Tasks of all workers that were dropped because they did not end in time.
    #[must_use]
    pub fn tasks_cut(&self) -> usize {
        self.workers.iter().flatten().map(|worker| worker.tasks_cut).sum()
    }

    /// Blocking functions of all workers that were still running when the wait for them ended.
    #[must_use]
    pub fn functions_left(&self) -> usize {
        self.workers.iter().flatten().map(|worker| worker.functions_left).sum()
    }

    /// Connections accepted by all workers.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.workers.iter().flatten().map(|worker| worker.accepted).sum()
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, connections) = (self.requests(), self.connections());
        write!(f, "peregrine: stopped after {requests} requests on {connections} connections")?;
        let not_ended = self.workers.iter().filter(|worker| worker.is_none()).count();
        match (self.cut.len(), self.is_cut_ordered) {
            (0, _) if not_ended > 0 => {}
            (0, _) => f.write_str("; none was cut")?,
            (cut, true) => write!(f, "; {cut} cut, as was ordered:")?,
            (cut, false) => write!(f, "; {cut} cut at the deadline:")?,
        }
        for cut in &self.cut {
            write!(f, "\n  {cut}")?;
        }
        let (tasks, functions) = (self.tasks_cut(), self.functions_left());
        if tasks + functions > 0 {
            write!(f, "\n  {tasks} tasks and {functions} blocking functions did not end in time")?;
            write!(f, " (tasks without an end should await peregrine::Shutdown)")?;
        }
        for (number, _) in self.workers.iter().enumerate().filter(|(_, worker)| worker.is_none()) {
            write!(
                f,
                "\n  worker {number} did not end: a handler blocks its thread; what it did, "
            )?;
            f.write_str("and what was cut with it, is not counted here")?;
        }
        Ok(())
    }
}
