//! How long a shutdown waits for workers before it abandons those that do not end.

use peregrine_server::Lifecycle;
use std::time::{Duration, Instant};

/// How long after the shutdown timeout a worker may take to end before the server stops waiting for
/// it. Only a handler that blocks its thread makes a worker take longer.
pub(crate) const FORCE_CLOSE_GRACE: Duration = Duration::from_secs(5);

/// How long a shutdown may take before the server prints what it is waiting for.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// The deadlines of a shutdown.
#[derive(Debug, Default)]
pub(crate) struct ShutdownDeadline {
    lifecycle: Lifecycle,
    /// When the server stops waiting for its workers.
    abandon_at: Option<Instant>,
    /// When connections are cut.
    force_close_at: Option<Instant>,
    /// Whether a forced close was requested before `force_close_at`.
    pub(crate) is_force_close_requested: bool,
    /// When to print what the shutdown is waiting for; `None` if there is no need.
    report_at: Option<Instant>,
}

impl ShutdownDeadline {
    /// Updates the deadlines for a new lifecycle state. Deadlines only ever move earlier.
    pub(crate) fn update(&mut self, order: Lifecycle, shutdown_timeout: Duration, now: Instant) {
        if order <= self.lifecycle {
            return;
        }
        let was_draining = self.lifecycle > Lifecycle::Serving;
        self.lifecycle = order;
        match order {
            Lifecycle::Standby | Lifecycle::Serving | Lifecycle::LameDuck => return,
            Lifecycle::HandingOver | Lifecycle::Draining if was_draining => return,
            Lifecycle::HandingOver | Lifecycle::Draining => {
                self.report_at = Some(now + REPORT_AFTER);
                self.force_close_at = now.checked_add(shutdown_timeout);
            }
            Lifecycle::ForceClosing => {
                self.report_at = None;
                self.is_force_close_requested = self.force_close_at.is_none_or(|at| now < at);
            }
        }
        let patience = if order == Lifecycle::ForceClosing {
            FORCE_CLOSE_GRACE
        } else {
            shutdown_timeout.saturating_add(FORCE_CLOSE_GRACE)
        };
        // A time beyond the range of `Instant` means no deadline.
        self.abandon_at = self.abandon_at.into_iter().chain(now.checked_add(patience)).min();
    }

    /// How long the caller may wait: `Some(None)` means without a limit, `None` that the deadline
    /// has passed.
    pub(crate) fn next_wait(&self, now: Instant) -> Option<Option<Duration>> {
        let Some(at) = self.abandon_at else {
            return Some(self.report_at.map(|at| at.saturating_duration_since(now)));
        };
        let left = at.checked_duration_since(now)?;
        Some(Some(self.report_at.map_or(left, |at| at.saturating_duration_since(now).min(left))))
    }

    /// True once, when a shutdown has taken long enough to need an explanation.
    pub(crate) fn take_report_due(&mut self, now: Instant) -> bool {
        self.report_at.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_no_end_before_an_order_and_none_is_left_after_the_deadline() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = ShutdownDeadline::default();
        assert_eq!(deadline.next_wait(now), Some(None));
        deadline.update(Lifecycle::Draining, hour, now);
        assert_eq!(deadline.next_wait(now), Some(Some(REPORT_AFTER)));
        assert!(deadline.take_report_due(now + REPORT_AFTER));
        assert_eq!(deadline.next_wait(now), Some(Some(hour + FORCE_CLOSE_GRACE)));
        assert_eq!(deadline.next_wait(now + hour + FORCE_CLOSE_GRACE + REPORT_AFTER), None);
    }

    #[test]
    fn a_long_shutdown_is_told_of_once() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = ShutdownDeadline::default();
        assert!(!deadline.take_report_due(now + hour));
        deadline.update(Lifecycle::Draining, hour, now);
        assert!(!deadline.take_report_due(now));
        assert!(deadline.take_report_due(now + REPORT_AFTER));
        assert!(!deadline.take_report_due(now + REPORT_AFTER));
    }

    #[test]
    fn an_order_to_cut_brings_the_end_nearer_and_nothing_moves_it_away() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = ShutdownDeadline::default();
        deadline.update(Lifecycle::Serving, hour, now);
        assert_eq!(deadline.abandon_at, None);
        deadline.update(Lifecycle::Draining, hour, now);
        deadline.update(Lifecycle::Draining, hour, now + hour);
        assert_eq!(deadline.abandon_at, Some(now + hour + FORCE_CLOSE_GRACE));
        deadline.update(Lifecycle::ForceClosing, hour, now);
        assert_eq!(deadline.abandon_at, Some(now + FORCE_CLOSE_GRACE));
    }

    #[test]
    fn a_shutdown_may_take_for_ever_until_it_is_cut() {
        let now = Instant::now();
        let mut deadline = ShutdownDeadline::default();
        deadline.update(Lifecycle::Draining, Duration::MAX, now);
        assert_eq!(deadline.abandon_at, None);
        deadline.update(Lifecycle::ForceClosing, Duration::MAX, now);
        assert_eq!(deadline.abandon_at, Some(now + FORCE_CLOSE_GRACE));
    }
}
