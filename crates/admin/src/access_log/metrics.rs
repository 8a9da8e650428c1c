//! Metrics of the access log.

use peregrine_metrics::{Counter, Exposition, MetricFamily, MetricType};

/// Line counters. Each worker has its own counters, and so does the thread that writes lines.
#[derive(Debug)]
pub struct AccessLogMetrics {
    workers: Vec<WorkerCounters>,
    pub(super) written: Counter,
    /// Lines that could not be written.
    pub(super) failed: Counter,
    pub(super) reopened: Counter,
}

/// The counters of one worker.
// Aligned so that no two workers write to the same cache line or to a pair that is prefetched
// together.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct WorkerCounters {
    /// Lines that were queued.
    pub(super) accepted: Counter,
    /// Lines that did not fit into the queue.
    pub(super) dropped: Counter,
}

impl AccessLogMetrics {
    pub(super) fn new(workers: usize) -> Self {
        let workers = (0..workers).map(|_| WorkerCounters::default()).collect();
        let (written, failed, reopened) = (Counter::new(), Counter::new(), Counter::new());
        Self { workers, written, failed, reopened }
    }

    pub(super) fn worker(&self, worker: usize) -> &WorkerCounters {
        &self.workers[worker]
    }

    fn accepted(&self) -> u64 {
        self.workers.iter().map(|worker| worker.accepted.get()).sum()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.workers.iter().map(|worker| worker.dropped.get()).sum()
    }

    /// Returns the number of lines that are queued or being written.
    pub(super) fn pending(&self) -> u64 {
        self.accepted().saturating_sub(self.written.get() + self.failed.get())
    }
}

const LINES: MetricFamily<'_> = MetricFamily {
    name: "peregrine_access_log_lines",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Access log lines that were written.",
};
const DROPPED_LINES: MetricFamily<'_> = MetricFamily {
    name: "peregrine_access_log_dropped_lines",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Access log lines that were lost, by reason.",
};
const QUEUED_LINES: MetricFamily<'_> = MetricFamily {
    name: "peregrine_access_log_queued_lines",
    metric_type: MetricType::Gauge,
    unit: "",
    help: "Access log lines that wait to be written.",
};
const REOPENS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_access_log_reopens",
    metric_type: MetricType::Counter,
    unit: "",
    help: "How often the access log file was reopened.",
};

/// The metric families that [`write()`] writes, in order.
#[cfg(test)]
pub(crate) const FAMILIES: &[MetricFamily<'static>] =
    &[LINES, DROPPED_LINES, QUEUED_LINES, REOPENS];

/// Writes the metrics. If there is no log, writes the families without samples.
pub(crate) fn write(page: &mut Exposition, metrics: Option<&AccessLogMetrics>) {
    page.begin_family(&LINES);
    if let Some(metrics) = metrics {
        page.sample(&[], metrics.written.get());
    }
    page.begin_family(&DROPPED_LINES);
    if let Some(metrics) = metrics {
        page.sample(&[("reason", "queue_full")], metrics.dropped());
        page.sample(&[("reason", "write_failed")], metrics.failed.get());
    }
    page.begin_family(&QUEUED_LINES);
    if let Some(metrics) = metrics {
        page.sample(&[], metrics.pending());
    }
    page.begin_family(&REOPENS);
    if let Some(metrics) = metrics {
        page.sample(&[], metrics.reopened.get());
    }
}
