//! What became of the lines of the access log.

use peregrine_metrics::{Count, Family, Kind, Page};

/// Counts of lines. Each worker writes its own, and the thread that writes lines its own.
#[derive(Debug)]
pub struct Figures {
    workers: Vec<OfWorker>,
    pub(super) written: Count,
    /// The system did not take them.
    pub(super) failed: Count,
    pub(super) reopened: Count,
}

/// What one worker counts.
// No two workers write to one line of the cache, or to one that is fetched with it.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct OfWorker {
    /// Lines that were handed over.
    pub(super) taken: Count,
    /// Lines for which there was no room.
    pub(super) dropped: Count,
}

impl Figures {
    pub(super) fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| OfWorker::default()).collect();
        let (written, failed, reopened) = (Count::new(), Count::new(), Count::new());
        Self { workers, written, failed, reopened }
    }

    pub(super) fn of(&self, worker: usize) -> &OfWorker {
        &self.workers[worker]
    }

    fn taken(&self) -> u64 {
        self.workers.iter().map(|worker| worker.taken.get()).sum()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.workers.iter().map(|worker| worker.dropped.get()).sum()
    }

    /// Lines that wait.
    pub(super) fn unwritten(&self) -> u64 {
        self.taken().saturating_sub(self.written.get() + self.failed.get())
    }
}

const LINES: Family<'_> = Family {
    name: "peregrine_access_log_lines",
    kind: Kind::Counter,
    unit: "",
    help: "Lines of the access log that were written.",
};
const DROPPED: Family<'_> = Family {
    name: "peregrine_access_log_dropped_lines",
    kind: Kind::Counter,
    unit: "",
    help: "Lines of the access log that are lost, by why.",
};
const WAITING: Family<'_> = Family {
    name: "peregrine_access_log_waiting_lines",
    kind: Kind::Gauge,
    unit: "",
    help: "Lines of the access log that wait to be written.",
};
const REOPENED: Family<'_> = Family {
    name: "peregrine_access_log_reopens",
    kind: Kind::Counter,
    unit: "",
    help: "Times that the file of the access log was opened again.",
};

/// The families that [`write()`] writes, in order.
#[cfg(test)]
pub(crate) const FAMILIES: &[Family<'static>] = &[LINES, DROPPED, WAITING, REOPENED];

/// Writes what is known; nothing but the families where there is no log.
pub(crate) fn write(page: &mut Page, figures: Option<&Figures>) {
    page.family(&LINES);
    if let Some(figures) = figures {
        page.sample(&[], figures.written.get());
    }
    page.family(&DROPPED);
    if let Some(figures) = figures {
        page.sample(&[("reason", "queue_full")], figures.dropped());
        page.sample(&[("reason", "write_failed")], figures.failed.get());
    }
    page.family(&WAITING);
    if let Some(figures) = figures {
        page.sample(&[], figures.unwritten());
    }
    page.family(&REOPENED);
    if let Some(figures) = figures {
        page.sample(&[], figures.reopened.get());
    }
}
