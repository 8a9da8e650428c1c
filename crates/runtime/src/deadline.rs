//! How long a shutdown waits for workers before it abandons those that do not end.

use peregrine_server::Lifecycle;
use std::time::{Duration, Instant};

/// How long the server waits for workers after all connections were cut, because the shutdown
/// timeout expired or a forced close was requested. Only a handler that blocks its thread makes a
/// worker take longer.
pub(crate) const FORCE_CLOSE_GRACE: Duration = Duration::from_secs(5);

/// How long a shutdown takes before the server reports what it is waiting for.
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
    /// When to report what the shutdown is waiting for; `None` before a shutdown, once it was
    /// reported, and after a forced close.
    report_at: Option<Instant>,
}

impl ShutdownDeadline {
    /// Updates the deadlines for a new lifecycle state. A deadline that is set can only move
    /// earlier.
    pub(crate) fn update(
        &mut self,
        lifecycle: Lifecycle,
        shutdown_timeout: Duration,
        now: Instant,
    ) {
        if lifecycle <= self.lifecycle {
            return;
        }
        // The server as a whole is never in `LameDuck`, which only workers enter.
        let was_draining = self.lifecycle > Lifecycle::Serving;
        self.lifecycle = lifecycle;
        match lifecycle {
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
        let timeout = if lifecycle == Lifecycle::ForceClosing {
            FORCE_CLOSE_GRACE
        } else {
            shutdown_timeout.saturating_add(FORCE_CLOSE_GRACE)
        };
        // A time beyond the range of `Instant` means no deadline.
        self.abandon_at = self.abandon_at.into_iter().chain(now.checked_add(timeout)).min();
    }

    /// Returns how long the caller may wait for an event, before a report is due or the deadline
    /// has passed. `Some(None)` means without a limit; `None` means that the deadline has passed.
    pub(crate) fn next_wait(&self, now: Instant) -> Option<Option<Duration>> {
        let Some(abandon_at) = self.abandon_at else {
            return Some(self.report_at.map(|at| at.saturating_duration_since(now)));
        };
        let remaining = abandon_at.checked_duration_since(now)?;
        let until_report = self.report_at.map(|at| at.saturating_duration_since(now));
        Some(Some(until_report.map_or(remaining, |report| report.min(remaining))))
    }

    /// Returns true once, when a shutdown has lasted for [`REPORT_AFTER`].
    pub(crate) fn take_report_due(&mut self, now: Instant) -> bool {
        self.report_at.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_unlimited_before_a_shutdown_and_end_at_its_deadline() {
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
    fn a_long_shutdown_is_reported_once() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = ShutdownDeadline::default();
        assert!(!deadline.take_report_due(now + hour));
        deadline.update(Lifecycle::Draining, hour, now);
        assert!(!deadline.take_report_due(now));
        assert!(deadline.take_report_due(now + REPORT_AFTER));
        assert!(!deadline.take_report_due(now + REPORT_AFTER));
    }

    #[test]
    fn a_force_close_moves_the_deadline_earlier_and_never_later() {
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
    fn an_unlimited_shutdown_ends_when_it_is_force_closed() {
        let now = Instant::now();
        let mut deadline = ShutdownDeadline::default();
        deadline.update(Lifecycle::Draining, Duration::MAX, now);
        assert_eq!(deadline.abandon_at, None);
        deadline.update(Lifecycle::ForceClosing, Duration::MAX, now);
        assert_eq!(deadline.abandon_at, Some(now + FORCE_CLOSE_GRACE));
    }
}
