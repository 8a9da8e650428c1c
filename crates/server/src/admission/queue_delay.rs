//! Detects overload by how long requests wait for the worker's thread.

use std::cell::Cell;
use std::time::Duration;

/// Measures the queue of one worker: the requests that were ready when the worker last polled the
/// kernel.
///
/// Based on CoDel (RFC 8289). A queue that is long only for a moment is a burst and does no harm. A
/// queue that stays long for a whole interval is a standing queue, which delays all requests
/// without any benefit. TCP senders slow down when a packet is dropped, so CoDel drops few packets.
/// HTTP clients do not slow down, so this code rejects all late requests while there is a standing
/// queue.
#[derive(Debug)]
pub(crate) struct QueueDelayMonitor {
    /// How long a request may wait after the poll that found it: half of the target, because it may
    /// have waited equally long before that poll.
    max_delay: Duration,
    interval: Duration,
    /// The time of the poll that found the requests that are now being handled.
    polled_at: Cell<Duration>,
    /// Whether any request found by that poll has been late so far.
    has_late_request: Cell<bool>,
    /// When the current series of polls began. Each poll of the series, up to the current one,
    /// directly followed a poll that found late requests. `None` if the previous poll found no late
    /// requests, or if no requests arrived for an interval after it.
    late_since: Cell<Option<Duration>>,
    /// When a request last left the queue, to be handled or rejected.
    last_dequeue: Cell<Duration>,
    /// When a late request was last rejected; `None` if late requests are not being rejected.
    last_shed_at: Cell<Option<Duration>>,
}

impl QueueDelayMonitor {
    pub(crate) fn new(target: Duration, interval: Duration) -> Self {
        Self {
            max_delay: target / 2,
            interval,
            polled_at: Cell::default(),
            has_late_request: Cell::default(),
            late_since: Cell::default(),
            last_dequeue: Cell::default(),
            last_shed_at: Cell::default(),
        }
    }

    /// A fast check. If this returns true, the request is not late, and
    /// [`should_shed`](Self::should_shed) need not be called. False does not mean that the request
    /// is late: the check also requires that the same poll found the previous request and that no
    /// requests are being rejected. Most requests meet these conditions.
    #[inline]
    pub(crate) fn is_clearly_on_time(&self, polled_at: Duration, now: Duration) -> bool {
        let is_on_time = self.polled_at.get() == polled_at
            && self.last_shed_at.get().is_none()
            && now.saturating_sub(polled_at) <= self.max_delay;
        if is_on_time {
            self.last_dequeue.set(now);
        }
        is_on_time
    }

    /// Returns whether to reject a request that the poll at `polled_at` found and that leaves the
    /// queue `now`.
    pub(crate) fn should_shed(&self, polled_at: Duration, now: Duration) -> bool {
        let is_late = now.saturating_sub(polled_at) > self.max_delay;
        let last_dequeue = self.last_dequeue.replace(now);
        if self.polled_at.replace(polled_at) != polled_at {
            // If no requests arrived for an interval, the queue was empty.
            let is_consecutive = polled_at.saturating_sub(last_dequeue) < self.interval;
            if !is_consecutive {
                self.last_shed_at.set(None);
            }
            let had_late_request = self.has_late_request.replace(false) && is_consecutive;
            let late_since = self.late_since.get().unwrap_or(polled_at);
            self.late_since.set(had_late_request.then_some(late_since));
        }
        self.has_late_request.set(self.has_late_request.get() || is_late);
        let has_lasted = |since: Duration| now.saturating_sub(since) >= self.interval;
        match self.last_shed_at.get() {
            None => {
                // Two consecutive long queues are not enough, so `since` must be an earlier poll
                // than this one: the first may be long because a handler blocked the thread, and
                // the second because of the requests that arrived meanwhile.
                let is_long_enough = |since: Duration| since != polled_at && has_lasted(since);
                let is_standing = self.late_since.get().is_some_and(is_long_enough);
                if is_late && is_standing {
                    self.last_shed_at.set(Some(now));
                }
                is_late && is_standing
            }
            Some(_) if is_late => {
                self.last_shed_at.set(Some(now));
                true
            }
            Some(last_shed_at) => {
                if has_lasted(last_shed_at) {
                    self.last_shed_at.set(None);
                }
                false
            }
        }
    }

    /// When the queue will have been empty for a whole interval, if no request arrives until then.
    pub(crate) fn idle_at(&self) -> Duration {
        self.last_dequeue.get().saturating_add(self.interval)
    }

    /// Returns whether late requests are currently being rejected.
    pub(crate) fn is_shedding(&self) -> bool {
        self.last_shed_at.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker whose handlers take one millisecond, and its clock in milliseconds.
    struct SimulatedWorker {
        queue: QueueDelayMonitor,
        now: u64,
    }

    impl SimulatedWorker {
        fn new() -> Self {
            let ms = Duration::from_millis;
            Self { queue: QueueDelayMonitor::new(ms(10), ms(100)), now: 1000 }
        }

        /// Handles this many requests that one poll found, and returns how many were rejected.
        fn run_iteration(&mut self, requests: u64) -> u64 {
            let polled_at = self.now;
            let mut rejected = 0;
            for _ in 0..requests {
                let (polled_at, now) = [polled_at, self.now].map(Duration::from_millis).into();
                if !self.queue.is_clearly_on_time(polled_at, now)
                    && self.queue.should_shed(polled_at, now)
                {
                    rejected += 1;
                } else {
                    self.now += 1;
                }
            }
            rejected
        }
    }

    #[test]
    fn large_burst_is_not_rejected() {
        let mut worker = SimulatedWorker::new();
        assert_eq!(worker.run_iteration(1000), 0);
        assert_eq!(worker.run_iteration(3), 0);
        assert_eq!(worker.run_iteration(1000), 0);
        assert!(!worker.queue.is_shedding());
    }

    #[test]
    fn standing_queue_is_cut_to_the_target() {
        let mut worker = SimulatedWorker::new();
        let rejected: Vec<_> = (0..7).map(|_| worker.run_iteration(40)).collect();
        // The interval starts with the second iteration of 40 ms and ends in the middle of the
        // fourth.
        assert_eq!(rejected[..3], [0, 0, 0]);
        assert!(rejected[3] > 0 && rejected[3] < 34, "{rejected:?}");
        assert_eq!(rejected[4..], [34, 34, 34]);
    }

    #[test]
    fn queue_that_is_short_in_some_iterations_is_not_a_standing_queue() {
        let mut worker = SimulatedWorker::new();
        for _ in 0..50 {
            assert_eq!(
                worker.run_iteration(40) + worker.run_iteration(40) + worker.run_iteration(5),
                0
            );
        }
    }

    #[test]
    fn shedding_ends_after_an_interval_without_late_requests() {
        let mut worker = SimulatedWorker::new();
        while worker.run_iteration(40) == 0 {}
        assert!(worker.queue.is_shedding());
        // Single late requests are still rejected.
        assert_eq!(
            (worker.run_iteration(6), worker.run_iteration(7), worker.run_iteration(7)),
            (0, 1, 1)
        );
        for _ in 0..25 {
            assert_eq!(worker.run_iteration(5), 0);
        }
        assert!(!worker.queue.is_shedding());
        assert_eq!(worker.run_iteration(40), 0);
    }

    #[test]
    fn shedding_ends_after_a_pause_even_if_the_next_request_is_late() {
        let mut worker = SimulatedWorker::new();
        while worker.run_iteration(40) == 0 {}
        worker.run_iteration(40);
        worker.now += 1000;
        let polled_at = Duration::from_millis(worker.now);
        assert!(!worker.queue.should_shed(polled_at, polled_at + Duration::from_millis(20)));
        assert!(!worker.queue.is_shedding());
    }

    #[test]
    fn blocked_worker_rejects_no_requests() {
        let mut worker = SimulatedWorker::new();
        worker.run_iteration(1);
        for _ in 0..3 {
            worker.now += 60_000;
            assert_eq!((worker.run_iteration(40), worker.run_iteration(1000)), (0, 0));
        }
        assert_eq!(worker.run_iteration(3), 0);
    }
}
