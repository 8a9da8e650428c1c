//! The generic cell rate algorithm, in whole nanoseconds.
//!
//! ITU-T I.371 (2004), annex A.1, "virtual scheduling": each key has one number, the *theoretical
//! arrival time* (TAT) of its next request if all requests came at the even rate. A request may
//! come earlier than that by at most the tolerance, and moves the TAT by one interval:
//!
//! ```text
//! TAT' = max(TAT, now) + interval
//! the request conforms if TAT' - now <= burst * interval; then TAT := TAT', else nothing changes
//! ```
//!
//! This is equivalent to a bucket of `burst` tokens that gains one token per interval, but needs no
//! timer to refill it. `TAT - now` is called the *debt* here: the time until the key is in the
//! state of one that never sent a request.

use std::time::Duration;

/// How far the clock may go back and count as standing still, in nanoseconds.
const SLACK: u64 = 1_000_000_000;

/// How often requests of a key are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// The time per request, in nanoseconds. More than zero.
    pub(crate) interval: u64,
    /// How many requests may come at once. More than zero.
    pub(crate) burst: u32,
}

/// The result for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    /// How long the request should have waited, in nanoseconds; 0 if it conforms.
    pub(crate) wait: u64,
    /// How many more requests may come at once now, after this one if it conforms.
    pub(crate) remaining: u32,
    /// When the burst is fully available again, in nanoseconds.
    pub(crate) full_in: u64,
}

impl Decision {
    pub(crate) fn conforms(&self) -> bool {
        self.wait == 0
    }
}

impl Rate {
    /// `count` requests per `period`. The interval is rounded up to a whole nanosecond, so the rate
    /// is never exceeded. `None` if the interval would be zero or exceed the range of the clock.
    pub(crate) fn new(count: u32, period: Duration) -> Option<Self> {
        let period = u64::try_from(period.as_nanos()).ok()?;
        // A burst of these must fit into the clock's 584 years in addition to the current time.
        let is_fit = count > 0 && period >= u64::from(count) && period <= u64::MAX / 8;
        is_fit.then(|| Self { interval: period.div_ceil(u64::from(count)), burst: count })
    }

    /// The maximum debt of a key; `None` if it exceeds the range of the clock.
    pub(crate) fn depth(&self) -> Option<u64> {
        let depth = self.interval.checked_mul(u64::from(self.burst))?;
        (depth <= u64::MAX / 4).then_some(depth)
    }

    fn depth_or_all(&self) -> u64 {
        self.depth().unwrap_or(u64::MAX / 4)
    }

    /// Corrects a stored TAT, which rarely changes it. No key owes more than a whole burst: a later
    /// TAT was written before the clock was set back, and clients must not wait for that. [`SLACK`]
    /// allows for threads that read the clock in one order and count in the other.
    pub(crate) fn settled(&self, kept: u64, now: u64) -> u64 {
        let latest = now.saturating_add(self.depth_or_all());
        if kept > latest.saturating_add(SLACK) { latest } else { kept }
    }

    /// The TAT that applies, given the stored one.
    fn tat(&self, kept: u64, now: u64) -> u64 {
        self.settled(kept, now).max(now)
    }

    /// Judges a request at `now`. Returns the decision and the TAT to store if the request is let
    /// through.
    pub(crate) fn judge(&self, kept: u64, now: u64) -> (Decision, u64) {
        let depth = self.depth_or_all();
        let tat = self.tat(kept, now);
        let next = tat.saturating_add(self.interval);
        let wait = (next - now).saturating_sub(depth);
        let debt = if wait == 0 { next - now } else { tat - now };
        (Decision { wait, remaining: self.remaining(debt), full_in: debt }, next)
    }

    /// The state of a key that is not charged because another limit rejected the request.
    pub(crate) fn look(&self, kept: u64, now: u64) -> Decision {
        let debt = self.tat(kept, now) - now;
        Decision { wait: 0, remaining: self.remaining(debt), full_in: debt }
    }

    fn remaining(&self, debt: u64) -> u32 {
        let left = self.depth_or_all().saturating_sub(debt) / self.interval;
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The equivalent bucket of tokens, each worth one interval, that fills over time.
    struct Bucket {
        level: u128,
        depth: u128,
        at: u128,
    }

    impl Bucket {
        fn take(&mut self, rate: &Rate, now: u64) -> (bool, u128) {
            self.level = self.depth.min(self.level + u128::from(now) - self.at);
            self.at = u128::from(now);
            let is_let_in = self.level >= u128::from(rate.interval);
            if is_let_in {
                self.level -= u128::from(rate.interval);
            }
            (is_let_in, self.level)
        }
    }

    proptest! {
        #[test]
        fn it_decides_as_a_bucket_of_tokens_does(
            interval in 1_u64..2_000,
            burst in 1_u32..20,
            steps in prop::collection::vec(0_u64..4_000, 1..200),
        ) {
            let rate = Rate { interval, burst };
            let depth = u128::from(rate.depth().unwrap());
            let mut bucket = Bucket { level: depth, depth, at: 0 };
            let (mut kept, mut now) = (0, 0);
            for step in steps {
                now += step;
                let (decision, next) = rate.judge(kept, now);
                let (is_let_in, level) = bucket.take(&rate, now);
                prop_assert_eq!(decision.conforms(), is_let_in);
                prop_assert_eq!(u128::from(decision.remaining), level / u128::from(interval));
                prop_assert_eq!(u128::from(decision.full_in), depth - level);
                if decision.conforms() {
                    kept = next;
                } else {
                    // One nanosecond before the reported time the request is rejected; at that time
                    // it conforms.
                    prop_assert!(!rate.judge(kept, now + decision.wait - 1).0.conforms());
                    prop_assert!(rate.judge(kept, now + decision.wait).0.conforms());
                }
            }
        }

        #[test]
        fn in_no_window_are_there_more_than_the_burst_and_the_rate(
            count in 1_u32..50,
            period in 50_u64..100_000,
            steps in prop::collection::vec(0_u64..3_000, 1..200),
        ) {
            let rate = Rate::new(count, Duration::from_nanos(period)).unwrap();
            let (mut kept, mut now, mut times) = (0, 0, Vec::new());
            for step in steps {
                now += step;
                let (decision, next) = rate.judge(kept, now);
                if decision.conforms() {
                    kept = next;
                    times.push(now);
                }
            }
            for (number, begin) in times.iter().enumerate() {
                for (more, end) in times[number..].iter().enumerate() {
                    let most = u64::from(rate.burst) + (end - begin) * u64::from(count) / period;
                    prop_assert!((more as u64) < most);
                }
            }
        }

        #[test]
        fn whatever_was_kept_nobody_waits_longer_than_a_burst(
            interval in 1_u64..2_000, burst in 1_u32..20, kept: u64, now in 0..u64::MAX / 2,
        ) {
            let rate = Rate { interval, burst };
            let (decision, next) = rate.judge(kept, now);
            let depth = rate.depth().unwrap();
            prop_assert!(decision.wait <= interval + SLACK && decision.full_in <= depth + SLACK);
            prop_assert!(next <= now + depth + interval + SLACK);
        }
    }

    #[test]
    fn a_clock_that_is_set_back_costs_a_burst_at_most() {
        let rate = Rate { interval: 10, burst: 3 };
        let (_, kept) = rate.judge(0, 5 * SLACK);
        let (decision, _) = rate.judge(kept, 500);
        assert_eq!((decision.wait, decision.full_in), (10, 30), "as if the burst was just used up");
        let settled = rate.settled(kept, 500);
        assert_eq!(settled, 530);
        assert!(rate.judge(settled, 510).0.conforms(), "the debt decreases with the new clock");
        assert_eq!(
            rate.settled(kept, 5 * SLACK - 1),
            kept,
            "a small difference is due to threads, not the clock"
        );
    }

    #[test]
    fn rates_that_are_none_are_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(Rate::new(3, second), Some(Rate { interval: 333_333_334, burst: 3 }));
        assert_eq!(Rate::new(0, second), None);
        assert_eq!(Rate::new(1, Duration::ZERO), None);
        assert_eq!(Rate::new(2, Duration::from_nanos(1)), None);
        assert_eq!(Rate::new(1, Duration::MAX), None);
        let slow = Rate { burst: u32::MAX, ..Rate::new(1, Duration::from_secs(86_400)).unwrap() };
        assert_eq!(slow.depth(), None);
        assert!(slow.judge(0, 5).0.conforms());
    }
}
