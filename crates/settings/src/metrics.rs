//! Metrics of configuration reloads.

use peregrine_metrics::{Family, Kind, Page};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Counts reloads. Only the reload thread writes; any thread may read.
#[derive(Debug)]
pub struct Figures {
    done: AtomicU64,
    failed: AtomicU64,
    has_succeeded: AtomicBool,
    /// When the configuration was last loaded, in milliseconds since the Unix epoch.
    taken_at: AtomicU64,
}

impl Figures {
    /// Counts the initial configuration as loaded now.
    #[must_use]
    pub fn begin() -> Self {
        let zero = AtomicU64::default;
        let figures = Self {
            done: zero(),
            failed: zero(),
            has_succeeded: AtomicBool::new(true),
            taken_at: zero(),
        };
        figures.taken_now();
        figures
    }

    fn taken_now(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.taken_at.store(now, Ordering::Relaxed);
    }

    /// Records the result of a reload.
    pub fn reloaded(&self, has_succeeded: bool) {
        if has_succeeded {
            self.taken_now();
        }
        self.has_succeeded.store(has_succeeded, Ordering::Relaxed);
        let count = if has_succeeded { &self.done } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

const SUCCESSFUL: Family<'_> = Family {
    name: "peregrine_config_last_reload_successful",
    kind: Kind::Gauge,
    unit: "",
    help: "1 if the last configuration reload succeeded; 0 if it failed and changed nothing.",
};
const TAKEN_AT: Family<'_> = Family {
    name: "peregrine_config_last_reload_success_timestamp_seconds",
    kind: Kind::Gauge,
    unit: "seconds",
    help: "Time of the last configuration load, at startup or on reload, since the Unix epoch.",
};
const RELOADS: Family<'_> = Family {
    name: "peregrine_config_reloads",
    kind: Kind::Counter,
    unit: "",
    help: "Configuration reloads, by result.",
};

/// The families that [`write()`] writes, in order.
pub const FAMILIES: &[Family<'static>] = &[SUCCESSFUL, TAKEN_AT, RELOADS];

/// Writes the metrics. Without figures, as for a server not built from a configuration, writes only
/// the families.
pub fn write(page: &mut Page, figures: Option<&Figures>) {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    page.family(&SUCCESSFUL);
    if let Some(figures) = figures {
        page.sample(&[], u64::from(figures.has_succeeded.load(Ordering::Relaxed)));
    }
    page.family(&TAKEN_AT);
    if let Some(figures) = figures {
        page.sample(&[], of(&figures.taken_at) as f64 / 1000.0);
    }
    page.family(&RELOADS);
    if let Some(figures) = figures {
        page.sample(&[("result", "done")], of(&figures.done));
        page.sample(&[("result", "failed")], of(&figures.failed));
    }
}
