//! Detects overload by how long requests wait for the worker's thread.

use std::cell::Cell;
use std::time::Duration;

/// Measures the queue of one worker: the requests that were ready when the worker last polled the
/// kernel.
///
/// Based on CoDel (RFC 8289). A queue that is long for a moment is a burst and does no harm. A
/// queue that is never short within an interval is a standing queue, which delays all requests
/// without any benefit. TCP senders slow down when a packet is dropped, so CoDel drops few packets.
/// HTTP clients do not slow down, so this code rejects all late requests while the queue stands.
#[derive(Debug)]
pub(crate) struct QueueDelayMonitor {
    /// How long a request may wait after the poll that found it: half of the target, because it may
    /// have waited equally long before that poll.
    max_delay: Duration,
    interval: Duration,
    /// The time of the poll that found the requests that are now being handled.
    polled_at: Cell<Duration>,
    /// Whether any request found by that poll was late.
    is_above_target: Cell<bool>,
    /// When consecutive polls have found late requests: the time of the second of these polls.
    above_target_since: Cell<Option<Duration>>,
    /// When a request was last handled.
    last_dequeue: Cell<Duration>,
    /// When a late request was last rejected; `None` if late requests are not being rejected.
    last_above_target: Cell<Option<Duration>>,
}

impl QueueDelayMonitor {
    pub(crate) fn new(target: Duration, interval: Duration) -> Self {
        Self {
            max_delay: target / 2,
            interval,
            polled_at: Cell::default(),
            is_above_target: Cell::default(),
            above_target_since: Cell::default(),
            last_dequeue: Cell::default(),
            last_above_target: Cell::default(),
        }
    }

    /// A fast check. True means that [`should_shed`](Self::should_shed) would return false and need
    /// not be called. This is the case for most requests: the poll that found them is that of the
    /// previous request, they are not late, and no requests are being rejected.
    #[inline]
    pub(crate) fn is_below_target(&self, look: Duration, now: Duration) -> bool {
        let is_short = self.polled_at.get() == look
            && self.last_above_target.get().is_none()
            && now.saturating_sub(look) <= self.max_delay;
        if is_short {
            self.last_dequeue.set(now);
        }
        is_short
    }

    /// Returns whether to reject a request that the poll at time `look` found and that is handled
    /// `now`.
    pub(crate) fn should_shed(&self, look: Duration, now: Duration) -> bool {
        let is_late = now.saturating_sub(look) > self.max_delay;
        let last = self.last_dequeue.replace(now);
        if self.polled_at.replace(look) != look {
            // If no requests arrived for an interval, the queue was empty.
            let is_next = look.saturating_sub(last) < self.interval;
            if !is_next {
                self.last_above_target.set(None);
            }
            let was_long = self.is_above_target.replace(false) && is_next;
            self.above_target_since
                .set(was_long.then(|| self.above_target_since.get().unwrap_or(look)));
        }
        self.is_above_target.set(self.is_above_target.get() || is_late);
        let has_lasted = |since: Duration| now.saturating_sub(since) >= self.interval;
        match self.last_above_target.get() {
            None => {
                // Two long queues are not enough: the first poll may find one because a handler
                // blocked the thread, and the second poll because of the requests that arrived
                // meanwhile.
                let is_standing = |since: &Duration| *since != look && has_lasted(*since);
                let is_standing = self.above_target_since.get().as_ref().is_some_and(is_standing);
                if is_late && is_standing {
                    self.last_above_target.set(Some(now));
                }
                is_late && is_standing
            }
            Some(_) if is_late => {
                self.last_above_target.set(Some(now));
                true
            }
            Some(last) => {
                if has_lasted(last) {
                    self.last_above_target.set(None);
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
        self.last_above_target.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker whose handlers take one millisecond, and the clock.
    struct Bench {
        queue: QueueDelayMonitor,
        now: u64,
    }

    impl Bench {
        fn new() -> Self {
            let ms = Duration::from_millis;
            Self { queue: QueueDelayMonitor::new(ms(10), ms(100)), now: 1000 }
        }

        /// Handles this many requests that one poll found, and returns how many were rejected.
        fn turn(&mut self, requests: u64) -> u64 {
            let look = self.now;
            let mut refused = 0;
            for _ in 0..requests {
                let (look, now) = [look, self.now].map(Duration::from_millis).into();
                if !self.queue.is_below_target(look, now) && self.queue.should_shed(look, now) {
                    refused += 1;
                } else {
                    self.now += 1;
                }
            }
            refused
        }
    }

    #[test]
    fn a_burst_is_worked_off_however_large() {
        let mut bench = Bench::new();
        assert_eq!(bench.turn(1000), 0);
        assert_eq!(bench.turn(3), 0);
        assert_eq!(bench.turn(1000), 0);
        assert!(!bench.queue.is_shedding());
    }

    #[test]
    fn a_queue_that_stands_for_an_interval_is_cut_to_the_target() {
        let mut bench = Bench::new();
        let refused: Vec<_> = (0..7).map(|_| bench.turn(40)).collect();
        // The interval starts with the second iteration of 40 ms and ends in the middle of the
        // fourth.
        assert_eq!(refused[..3], [0, 0, 0]);
        assert!(refused[3] > 0 && refused[3] < 34, "{refused:?}");
        assert_eq!(refused[4..], [34, 34, 34]);
    }

    #[test]
    fn turns_that_are_short_again_and_again_are_no_standing_queue() {
        let mut bench = Bench::new();
        for _ in 0..50 {
            assert_eq!(bench.turn(40) + bench.turn(40) + bench.turn(5), 0);
        }
    }

    #[test]
    fn refusing_ends_when_nobody_was_late_for_an_interval() {
        let mut bench = Bench::new();
        while bench.turn(40) == 0 {}
        assert!(bench.queue.is_shedding());
        // Single late requests are still rejected.
        assert_eq!((bench.turn(6), bench.turn(7), bench.turn(7)), (0, 1, 1));
        for _ in 0..25 {
            assert_eq!(bench.turn(5), 0);
        }
        assert!(!bench.queue.is_shedding());
        assert_eq!(bench.turn(40), 0);
    }

    #[test]
    fn a_pause_ends_refusing_even_if_the_first_afterwards_is_late() {
        let mut bench = Bench::new();
        while bench.turn(40) == 0 {}
        bench.turn(40);
        bench.now += 1000;
        let look = Duration::from_millis(bench.now);
        assert!(!bench.queue.should_shed(look, look + Duration::from_millis(20)));
        assert!(!bench.queue.is_shedding());
    }

    #[test]
    fn a_worker_that_stood_still_refuses_nobody_for_that() {
        let mut bench = Bench::new();
        bench.turn(1);
        for _ in 0..3 {
            bench.now += 60_000;
            assert_eq!((bench.turn(40), bench.turn(1000)), (0, 0));
        }
        assert_eq!(bench.turn(3), 0);
    }
}
