//! How long a shutdown waits for workers before it abandons those that do not end.

use peregrine_server::Order;
use std::time::{Duration, Instant};

/// How long after the shutdown timeout a worker may take to end before the server stops waiting for
/// it. Only a handler that blocks its thread makes a worker take longer.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// How long a shutdown may take before the server prints what it is waiting for.
const SILENCE: Duration = Duration::from_secs(1);

/// The deadlines of a shutdown.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    order: Order,
    /// When the server stops waiting for its workers.
    at: Option<Instant>,
    /// When connections are cut.
    cut_at: Option<Instant>,
    /// Whether there was an order to cut before `cut_at`.
    pub(crate) is_cut_ordered: bool,
    /// When to print what the shutdown is waiting for; `None` if there is no need.
    tell_at: Option<Instant>,
}

impl Deadline {
    /// Updates the deadlines for an order. Deadlines only ever move earlier.
    pub(crate) fn follow(&mut self, order: Order, shutdown_timeout: Duration, now: Instant) {
        if order <= self.order {
            return;
        }
        let was_draining = self.order > Order::Serve;
        self.order = order;
        match order {
            Order::Wait | Order::Serve | Order::LameDuck => return,
            Order::Leave | Order::Drain if was_draining => return,
            Order::Leave | Order::Drain => {
                self.tell_at = Some(now + SILENCE);
                self.cut_at = now.checked_add(shutdown_timeout);
            }
            Order::Cut => {
                self.tell_at = None;
                self.is_cut_ordered = self.cut_at.is_none_or(|at| now < at);
            }
        }
        let patience =
            if order == Order::Cut { GRACE } else { shutdown_timeout.saturating_add(GRACE) };
        // A time beyond the range of `Instant` means no deadline.
        self.at = self.at.into_iter().chain(now.checked_add(patience)).min();
    }

    /// How long the caller may wait: `Some(None)` means without a limit, `None` that the deadline
    /// has passed.
    pub(crate) fn next(&self, now: Instant) -> Option<Option<Duration>> {
        let Some(at) = self.at else {
            return Some(self.tell_at.map(|at| at.saturating_duration_since(now)));
        };
        let left = at.checked_duration_since(now)?;
        Some(Some(self.tell_at.map_or(left, |at| at.saturating_duration_since(now).min(left))))
    }

    /// True once, when a shutdown has taken long enough to need an explanation.
    pub(crate) fn is_silent_too_long(&mut self, now: Instant) -> bool {
        self.tell_at.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_has_no_end_before_an_order_and_none_is_left_after_the_deadline() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = Deadline::default();
        assert_eq!(deadline.next(now), Some(None));
        deadline.follow(Order::Drain, hour, now);
        assert_eq!(deadline.next(now), Some(Some(SILENCE)));
        assert!(deadline.is_silent_too_long(now + SILENCE));
        assert_eq!(deadline.next(now), Some(Some(hour + GRACE)));
        assert_eq!(deadline.next(now + hour + GRACE + SILENCE), None);
    }

    #[test]
    fn a_long_shutdown_is_told_of_once() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = Deadline::default();
        assert!(!deadline.is_silent_too_long(now + hour));
        deadline.follow(Order::Drain, hour, now);
        assert!(!deadline.is_silent_too_long(now));
        assert!(deadline.is_silent_too_long(now + SILENCE));
        assert!(!deadline.is_silent_too_long(now + SILENCE));
    }

    #[test]
    fn an_order_to_cut_brings_the_end_nearer_and_nothing_moves_it_away() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        let mut deadline = Deadline::default();
        deadline.follow(Order::Serve, hour, now);
        assert_eq!(deadline.at, None);
        deadline.follow(Order::Drain, hour, now);
        deadline.follow(Order::Drain, hour, now + hour);
        assert_eq!(deadline.at, Some(now + hour + GRACE));
        deadline.follow(Order::Cut, hour, now);
        assert_eq!(deadline.at, Some(now + GRACE));
    }

    #[test]
    fn a_shutdown_may_take_for_ever_until_it_is_cut() {
        let now = Instant::now();
        let mut deadline = Deadline::default();
        deadline.follow(Order::Drain, Duration::MAX, now);
        assert_eq!(deadline.at, None);
        deadline.follow(Order::Cut, Duration::MAX, now);
        assert_eq!(deadline.at, Some(now + GRACE));
    }
}
