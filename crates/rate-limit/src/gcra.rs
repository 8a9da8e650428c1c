//! The generic cell rate algorithm, in whole nanoseconds.
//!
//! ITU-T I.371 (2004), annex A.1, "virtual scheduling": each key has one number, the *theoretical
//! arrival time* (TAT) of its next request if all requests came at an even rate. A request may
//! arrive earlier than that by at most the tolerance, and moves the TAT by one interval:
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

/// How far the clock may go back, in nanoseconds, before stored TATs are corrected.
const CLOCK_SKEW_TOLERANCE: u64 = 1_000_000_000;

/// How often requests of a key are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// The time per request, in nanoseconds. More than zero.
    pub(crate) emission_interval: u64,
    /// How many requests are allowed in immediate succession. More than zero.
    pub(crate) burst: u32,
}

/// The result for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GcraDecision {
    /// How long the request should have waited, in nanoseconds; 0 if it conforms.
    pub(crate) retry_after: u64,
    /// How many more requests are allowed immediately, after this one if it conforms.
    pub(crate) remaining: u32,
    /// When the burst is fully available again, in nanoseconds.
    pub(crate) reset_after: u64,
}

impl GcraDecision {
    pub(crate) fn conforms(&self) -> bool {
        self.retry_after == 0
    }
}

impl Quota {
    /// `count` requests per `period`. The interval is rounded up to a whole nanosecond, so the rate
    /// is never exceeded. `None` if the interval would be zero or exceed the range of the clock.
    pub(crate) fn new(count: u32, period: Duration) -> Option<Self> {
        let period = u64::try_from(period.as_nanos()).ok()?;
        // A burst of these must fit into the clock's 584 years in addition to the current time.
        let is_valid = count > 0 && period >= u64::from(count) && period <= u64::MAX / 8;
        is_valid
            .then(|| Self { emission_interval: period.div_ceil(u64::from(count)), burst: count })
    }

    /// The maximum debt of a key; `None` if it exceeds the range of the clock.
    pub(crate) fn burst_tolerance(&self) -> Option<u64> {
        let tolerance = self.emission_interval.checked_mul(u64::from(self.burst))?;
        (tolerance <= u64::MAX / 4).then_some(tolerance)
    }

    fn burst_tolerance_or_max(&self) -> u64 {
        self.burst_tolerance().unwrap_or(u64::MAX / 4)
    }

    /// Returns a stored TAT, corrected if it is too late. No key has a debt of more than a whole
    /// burst: a later TAT was written before the clock was set back, and clients must not wait for
    /// that. [`CLOCK_SKEW_TOLERANCE`] allows for threads that read the clock in one order and count
    /// in the other.
    pub(crate) fn clamp_tat(&self, stored_tat: u64, now: u64) -> u64 {
        let latest = now.saturating_add(self.burst_tolerance_or_max());
        if stored_tat > latest.saturating_add(CLOCK_SKEW_TOLERANCE) { latest } else { stored_tat }
    }

    /// The TAT that applies, given the stored one.
    fn tat(&self, stored_tat: u64, now: u64) -> u64 {
        self.clamp_tat(stored_tat, now).max(now)
    }

    /// Checks a request at `now`. Returns the decision and the TAT to store if the request is
    /// allowed.
    pub(crate) fn check(&self, stored_tat: u64, now: u64) -> (GcraDecision, u64) {
        let tolerance = self.burst_tolerance_or_max();
        let tat = self.tat(stored_tat, now);
        let next = tat.saturating_add(self.emission_interval);
        let retry_after = (next - now).saturating_sub(tolerance);
        let debt = if retry_after == 0 { next - now } else { tat - now };
        (GcraDecision { retry_after, remaining: self.remaining(debt), reset_after: debt }, next)
    }

    /// Returns the state of a key that is not charged because another limit rejected the request.
    pub(crate) fn peek(&self, stored_tat: u64, now: u64) -> GcraDecision {
        let debt = self.tat(stored_tat, now) - now;
        GcraDecision { retry_after: 0, remaining: self.remaining(debt), reset_after: debt }
    }

    fn remaining(&self, debt: u64) -> u32 {
        let requests = self.burst_tolerance_or_max().saturating_sub(debt) / self.emission_interval;
        u32::try_from(requests).unwrap_or(u32::MAX)
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
        fn take(&mut self, quota: &Quota, now: u64) -> (bool, u128) {
            self.level = self.depth.min(self.level + u128::from(now) - self.at);
            self.at = u128::from(now);
            let is_allowed = self.level >= u128::from(quota.emission_interval);
            if is_allowed {
                self.level -= u128::from(quota.emission_interval);
            }
            (is_allowed, self.level)
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_token_bucket(
            interval in 1_u64..2_000,
            burst in 1_u32..20,
            steps in prop::collection::vec(0_u64..4_000, 1..200),
        ) {
            let quota = Quota { emission_interval: interval, burst };
            let depth = u128::from(quota.burst_tolerance().unwrap());
            let mut bucket = Bucket { level: depth, depth, at: 0 };
            let (mut tat, mut now) = (0, 0);
            for step in steps {
                now += step;
                let (decision, next) = quota.check(tat, now);
                let (is_allowed, level) = bucket.take(&quota, now);
                prop_assert_eq!(decision.conforms(), is_allowed);
                prop_assert_eq!(u128::from(decision.remaining), level / u128::from(interval));
                prop_assert_eq!(u128::from(decision.reset_after), depth - level);
                if decision.conforms() {
                    tat = next;
                } else {
                    // One nanosecond before the reported time the request is rejected; at that time
                    // it conforms.
                    prop_assert!(!quota.check(tat, now + decision.retry_after - 1).0.conforms());
                    prop_assert!(quota.check(tat, now + decision.retry_after).0.conforms());
                }
            }
        }

        #[test]
        fn no_window_exceeds_the_burst_plus_the_rate(
            count in 1_u32..50,
            period in 50_u64..100_000,
            steps in prop::collection::vec(0_u64..3_000, 1..200),
        ) {
            let quota = Quota::new(count, Duration::from_nanos(period)).unwrap();
            let (mut tat, mut now, mut times) = (0, 0, Vec::new());
            for step in steps {
                now += step;
                let (decision, next) = quota.check(tat, now);
                if decision.conforms() {
                    tat = next;
                    times.push(now);
                }
            }
            for (number, start) in times.iter().enumerate() {
                for (count_before, end) in times[number..].iter().enumerate() {
                    let accrued = (end - start) * u64::from(count) / period;
                    let allowed = u64::from(quota.burst) + accrued;
                    prop_assert!((count_before as u64) < allowed);
                }
            }
        }

        #[test]
        fn no_stored_tat_delays_a_key_by_more_than_a_burst(
            interval in 1_u64..2_000, burst in 1_u32..20, tat: u64, now in 0..u64::MAX / 2,
        ) {
            let quota = Quota { emission_interval: interval, burst };
            let (decision, next) = quota.check(tat, now);
            let depth = quota.burst_tolerance().unwrap();
            prop_assert!(decision.retry_after <= interval + CLOCK_SKEW_TOLERANCE && decision.reset_after <= depth + CLOCK_SKEW_TOLERANCE);
            prop_assert!(next <= now + depth + interval + CLOCK_SKEW_TOLERANCE);
        }
    }

    #[test]
    fn setting_the_clock_back_costs_at_most_a_burst() {
        let quota = Quota { emission_interval: 10, burst: 3 };
        let (_, tat) = quota.check(0, 5 * CLOCK_SKEW_TOLERANCE);
        let (decision, _) = quota.check(tat, 500);
        assert_eq!(
            (decision.retry_after, decision.reset_after),
            (10, 30),
            "as if the burst was just used up"
        );
        let corrected = quota.clamp_tat(tat, 500);
        assert_eq!(corrected, 530);
        assert!(quota.check(corrected, 510).0.conforms(), "the debt decreases with the new clock");
        assert_eq!(
            quota.clamp_tat(tat, 5 * CLOCK_SKEW_TOLERANCE - 1),
            tat,
            "a small difference is due to threads, not the clock"
        );
    }

    #[test]
    fn invalid_rates_are_rejected() {
        let second = Duration::from_secs(1);
        assert_eq!(Quota::new(3, second), Some(Quota { emission_interval: 333_333_334, burst: 3 }));
        assert_eq!(Quota::new(0, second), None);
        assert_eq!(Quota::new(1, Duration::ZERO), None);
        assert_eq!(Quota::new(2, Duration::from_nanos(1)), None);
        assert_eq!(Quota::new(1, Duration::MAX), None);
        let slow = Quota { burst: u32::MAX, ..Quota::new(1, Duration::from_secs(86_400)).unwrap() };
        assert_eq!(slow.burst_tolerance(), None);
        assert!(slow.check(0, 5).0.conforms());
    }
}
