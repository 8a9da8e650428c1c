//! Whether there is more to do than can be done, by how long requests wait for their turn.

use std::cell::Cell;
use std::time::Duration;

/// The queue of one worker: what was ready when it last looked.
///
/// After CoDel's idea (RFC 8289): a queue that is long for a moment is a burst, and does no harm; one that
/// is never short within an interval is standing, and makes everybody late for nothing. CoDel's
/// senders slow down when a packet is dropped, so that it drops few. Those who send requests do not,
/// so that here all are refused that are late, for as long as some are.
#[derive(Debug)]
pub(crate) struct Queue {
    /// How long a request may wait since the look that found it. It may have waited as long before.
    wait_max: Duration,
    interval: Duration,
    /// The look that found what is worked on.
    look: Cell<Duration>,
    /// Was somebody late whom it found?
    is_long: Cell<bool>,
    /// The second of the looks that one after the other found somebody who was late.
    long_since: Cell<Option<Duration>>,
    /// When a request had its turn last.
    last: Cell<Duration>,
    /// When somebody was late last, while late ones are refused.
    refused_at: Cell<Option<Duration>>,
}

impl Queue {
    pub(crate) fn new(target: Duration, interval: Duration) -> Self {
        Self {
            wait_max: target / 2,
            interval,
            look: Cell::default(),
            is_long: Cell::default(),
            long_since: Cell::default(),
            last: Cell::default(),
            refused_at: Cell::default(),
        }
    }

    /// Is that certain without more thought? Most requests are found by the same look as the one before, are not
    /// late, and come while nobody is refused. It is noted as [`refuses`](Self::refuses) would note it, which says no.
    #[inline]
    pub(crate) fn is_short(&self, look: Duration, now: Duration) -> bool {
        let is_short = self.look.get() == look
            && self.refused_at.get().is_none()
            && now.saturating_sub(look) <= self.wait_max;
        if is_short {
            self.last.set(now);
        }
        is_short
    }

    /// Is a request to be refused that the look at that time found, and that has its turn `now`?
    pub(crate) fn refuses(&self, look: Duration, now: Duration) -> bool {
        let is_late = now.saturating_sub(look) > self.wait_max;
        let last = self.last.replace(now);
        if self.look.replace(look) != look {
            // In a pause without requests the queue was empty.
            let is_next = look.saturating_sub(last) < self.interval;
            if !is_next {
                self.refused_at.set(None);
            }
            let was_long = self.is_long.replace(false) && is_next;
            self.long_since.set(was_long.then(|| self.long_since.get().unwrap_or(look)));
        }
        self.is_long.set(self.is_long.get() || is_late);
        let has_lasted = |since: Duration| now.saturating_sub(since) >= self.interval;
        match self.refused_at.get() {
            None => {
                // The first look may have been long because a handler kept the thread, and the second
                // because of all that came meanwhile.
                let is_standing = |since: &Duration| *since != look && has_lasted(*since);
                let is_standing = self.long_since.get().as_ref().is_some_and(is_standing);
                if is_late && is_standing {
                    self.refused_at.set(Some(now));
                }
                is_late && is_standing
            }
            Some(_) if is_late => {
                self.refused_at.set(Some(now));
                true
            }
            Some(last) => {
                if has_lasted(last) {
                    self.refused_at.set(None);
                }
                false
            }
        }
    }

    /// When the queue has been empty for an interval, if nobody asks until then.
    pub(crate) fn quiet_at(&self) -> Duration {
        self.last.get().saturating_add(self.interval)
    }

    /// Are late requests refused?
    pub(crate) fn is_refusing(&self) -> bool {
        self.refused_at.get().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker with handlers of one millisecond, and the clock.
    struct Bench {
        queue: Queue,
        now: u64,
    }

    impl Bench {
        fn new() -> Self {
            let ms = Duration::from_millis;
            Self { queue: Queue::new(ms(10), ms(100)), now: 1000 }
        }

        /// Works on so many requests that one look found. How many were refused.
        fn turn(&mut self, requests: u64) -> u64 {
            let look = self.now;
            let mut refused = 0;
            for _ in 0..requests {
                let (look, now) = [look, self.now].map(Duration::from_millis).into();
                if !self.queue.is_short(look, now) && self.queue.refuses(look, now) {
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
        assert!(!bench.queue.is_refusing());
    }

    #[test]
    fn a_queue_that_stands_for_an_interval_is_cut_to_the_target() {
        let mut bench = Bench::new();
        let refused: Vec<_> = (0..7).map(|_| bench.turn(40)).collect();
        // From the second turn of 40 ms on the interval counts, and ends in the midst of the fourth.
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
        assert!(bench.queue.is_refusing());
        // A single late one goes on being refused.
        assert_eq!((bench.turn(6), bench.turn(7), bench.turn(7)), (0, 1, 1));
        for _ in 0..25 {
            assert_eq!(bench.turn(5), 0);
        }
        assert!(!bench.queue.is_refusing());
        assert_eq!(bench.turn(40), 0);
    }

    #[test]
    fn a_pause_ends_refusing_even_if_the_first_afterwards_is_late() {
        let mut bench = Bench::new();
        while bench.turn(40) == 0 {}
        bench.turn(40);
        bench.now += 1000;
        let look = Duration::from_millis(bench.now);
        assert!(!bench.queue.refuses(look, look + Duration::from_millis(20)));
        assert!(!bench.queue.is_refusing());
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
