//! Metrics of the access log.

use peregrine_metrics::{Count, Family, Kind, Page};

/// Counters of lines. Each worker has its own, and so has the thread that writes lines.
#[derive(Debug)]
pub struct Figures {
    workers: Vec<OfWorker>,
    pub(super) written: Count,
    /// Lines that could not be written.
    pub(super) failed: Count,
    pub(super) reopened: Count,
}

/// The counters of one worker.
// Aligned so that no two workers write to the same cache line or to a pair that is prefetched
// together.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct OfWorker {
    /// Lines that were queued.
    pub(super) taken: Count,
    /// Lines for which the queue had no room.
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

    /// The number of lines in the queues.
    pub(super) fn unwritten(&self) -> u64 {
        self.taken().saturating_sub(self.written.get() + self.failed.get())
    }
}

const LINES: Family<'_> = Family {
    name: "peregrine_access_log_lines",
    kind: Kind::Counter,
    unit: "",
    help: "Access log lines that were written.",
};
const DROPPED: Family<'_> = Family {
    name: "peregrine_access_log_dropped_lines",
    kind: Kind::Counter,
    unit: "",
    help: "Access log lines that were lost, by reason.",
};
const WAITING: Family<'_> = Family {
    name: "peregrine_access_log_waiting_lines",
    kind: Kind::Gauge,
    unit: "",
    help: "Access log lines that wait to be written.",
};
const REOPENED: Family<'_> = Family {
    name: "peregrine_access_log_reopens",
    kind: Kind::Counter,
    unit: "",
    help: "How often the access log file was reopened.",
};

/// The metric families that [`write()`] writes, in order.
#[cfg(test)]
pub(crate) const FAMILIES: &[Family<'static>] = &[LINES, DROPPED, WAITING, REOPENED];

/// Writes the metrics; only the families, without samples, if there is no log.
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
