//! Metrics of configuration reloads.

use peregrine_metrics::{Exposition, MetricFamily, MetricType};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts reloads. Only the reload thread writes the counters, and any thread can read them.
#[derive(Debug)]
pub struct ReloadMetrics {
    succeeded: AtomicU64,
    failed: AtomicU64,
    has_succeeded: AtomicBool,
    /// When the configuration was last loaded, in milliseconds since the Unix epoch.
    last_success_time: AtomicU64,
}

impl ReloadMetrics {
    /// Creates the metrics, with the current time as that of the initial load.
    #[must_use]
    pub fn with_initial_load() -> Self {
        let metrics = Self {
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            has_succeeded: AtomicBool::new(true),
            last_success_time: AtomicU64::new(0),
        };
        metrics.record_success_time();
        metrics
    }

    fn record_success_time(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.last_success_time.store(now, Ordering::Relaxed);
    }

    /// Records the result of a reload.
    pub fn record_reload(&self, has_succeeded: bool) {
        if has_succeeded {
            self.record_success_time();
        }
        self.has_succeeded.store(has_succeeded, Ordering::Relaxed);
        let counter = if has_succeeded { &self.succeeded } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

const SUCCESSFUL: MetricFamily<'_> = MetricFamily {
    name: "peregrine_config_last_reload_successful",
    metric_type: MetricType::Gauge,
    unit: "",
    help: "1 if the last configuration reload succeeded; 0 if it failed and changed nothing.",
};
const LAST_SUCCESS_TIME: MetricFamily<'_> = MetricFamily {
    name: "peregrine_config_last_reload_success_timestamp_seconds",
    metric_type: MetricType::Gauge,
    unit: "seconds",
    help: "Time of the last configuration load, at startup or on reload, since the Unix epoch.",
};
const RELOADS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_config_reloads",
    metric_type: MetricType::Counter,
    unit: "",
    help: "Configuration reloads, by result.",
};

/// The families that [`write()`] writes, in order.
pub const FAMILIES: &[MetricFamily<'static>] = &[SUCCESSFUL, LAST_SUCCESS_TIME, RELOADS];

/// Writes the metrics. Without metrics, as for a server not built from a configuration, writes only
/// the families.
pub fn write(page: &mut Exposition, metrics: Option<&ReloadMetrics>) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    page.begin_family(&SUCCESSFUL);
    if let Some(metrics) = metrics {
        page.sample(&[], u64::from(metrics.has_succeeded.load(Ordering::Relaxed)));
    }
    page.begin_family(&LAST_SUCCESS_TIME);
    if let Some(metrics) = metrics {
        page.sample(&[], load(&metrics.last_success_time) as f64 / 1000.0);
    }
    page.begin_family(&RELOADS);
    if let Some(metrics) = metrics {
        page.sample(&[("result", "done")], load(&metrics.succeeded));
        page.sample(&[("result", "failed")], load(&metrics.failed));
    }
}
