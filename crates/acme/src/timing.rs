//! Computes when renewals and retries are due. It has no clock or randomness; `jitter` is a random
//! number from 0 to 1.

use std::time::{Duration, SystemTime};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// The maximum delay that an authority may request.
const RETRY_AFTER_MAX: Duration = DAY;

/// Returns when a certificate is renewed if its authority suggests nothing: after two thirds of its
/// lifetime, spread over the next 1/24.
pub(crate) fn default_renewal_time(
    not_before: SystemTime,
    not_after: SystemTime,
    jitter: f64,
) -> SystemTime {
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    not_before + lifetime.mul_f64(2.0 / 3.0 + jitter.clamp(0.0, 1.0) / 24.0)
}

/// Returns the latest start of a renewal, regardless of what the authority suggests: 1/24 of the
/// lifetime before the end.
pub(crate) fn latest_renewal_time(not_before: SystemTime, not_after: SystemTime) -> SystemTime {
    let lifetime = not_after.duration_since(not_before).unwrap_or_default();
    not_after - lifetime / 24
}

/// Picks a time within the window suggested by the authority.
// RFC 9773 §4.2: a uniform random time within the suggested window.
pub(crate) fn pick_in_window(
    start: SystemTime,
    end: SystemTime,
    jitter: f64,
) -> Option<SystemTime> {
    // RFC 9773 §4.2: the end must be after the start.
    let length = end.duration_since(start).ok().filter(|length| !length.is_zero())?;
    Some(start + length.mul_f64(jitter.clamp(0.0, 1.0)))
}

/// Returns how long to wait before requesting the window from the authority again.
// RFC 9773 §4.3.2: Retry-After within reasonable limits, such as a minute and a day.
pub(crate) fn ari_interval(requested: Duration) -> Duration {
    requested.clamp(MINUTE, DAY)
}

/// Returns how long to wait before requesting the window again, after this many failed requests.
pub(crate) fn ari_backoff(failures: u32) -> Duration {
    exponential(Duration::from_secs(3_600), failures, DAY)
}

/// Returns the delay after this many consecutive failures: between half and all of a time that
/// doubles with each failure.
pub(crate) fn backoff(failures: u32, first: Duration, max: Duration, jitter: f64) -> Duration {
    exponential(first, failures, max.max(first)).mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

/// Returns how long to wait if the authority requests a delay until `until`.
pub(crate) fn retry_after_delay(until: SystemTime, now: SystemTime) -> Duration {
    until.duration_since(now).unwrap_or_default().min(RETRY_AFTER_MAX)
}

fn exponential(first: Duration, failures: u32, max: Duration) -> Duration {
    let factor = 2_u32.saturating_pow(failures.saturating_sub(1).min(31));
    first.checked_mul(factor).unwrap_or(max).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn day(number: u64) -> SystemTime {
        UNIX_EPOCH + DAY * u32::try_from(number).expect("the number is small")
    }

    fn jitters() -> impl Iterator<Item = f64> {
        (0..=1000).map(|thousandth| f64::from(thousandth) / 1000.0)
    }

    #[test]
    fn default_renewal_time_is_between_two_thirds_and_three_quarters() {
        let (start, end) = (day(1000), day(1090));
        assert_eq!(default_renewal_time(start, end, 0.0), day(1060));
        for jitter in jitters() {
            let at = default_renewal_time(start, end, jitter);
            assert!(at >= day(1060) && at <= day(1064), "{jitter}");
            assert!(at < latest_renewal_time(start, end));
        }
        // Six days, as for short-lived certificates.
        let at = default_renewal_time(day(1), day(7), 1.0);
        assert!(at >= day(5) && at < day(6));
        // A certificate that ends before it begins is due immediately.
        assert!(default_renewal_time(day(2), day(1), 0.5) <= day(2));
    }

    #[test]
    fn pick_in_window_stays_within_the_window() {
        let (start, end) = (day(10), day(12));
        assert_eq!(pick_in_window(start, end, 0.0), Some(start));
        assert_eq!(pick_in_window(start, end, 0.5), Some(day(11)));
        for jitter in jitters() {
            let at = pick_in_window(start, end, jitter).expect("the window is valid");
            assert!(at >= start && at <= end, "{jitter}");
        }
        assert_eq!(pick_in_window(end, start, 0.5), None, "the window ends before it begins");
        assert_eq!(pick_in_window(start, start, 0.5), None, "the window is empty");
        for jitter in [-1.0, 2.0, f64::NAN] {
            assert!(
                pick_in_window(start, end, if jitter.is_nan() { 0.0 } else { jitter }).is_some()
            );
        }
    }

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let (first, max) = (MINUTE, Duration::from_secs(6 * 3_600));
        let mut delay_max = first;
        for failures in 1..100 {
            for jitter in jitters() {
                let delay = backoff(failures, first, max, jitter);
                assert!(
                    delay >= delay_max / 2 && delay <= delay_max,
                    "{failures} {jitter} {delay:?}"
                );
            }
            delay_max = (delay_max * 2).min(max);
        }
        assert_eq!(backoff(u32::MAX, first, max, 1.0), max);
        // A first delay above the maximum applies.
        assert_eq!(backoff(1, max, first, 1.0), max);
    }

    #[test]
    fn requested_delays_are_clamped() {
        for (requested, expected) in [
            (Duration::ZERO, MINUTE),
            (Duration::from_secs(6 * 3_600), Duration::from_secs(6 * 3_600)),
            (DAY * 365, DAY),
        ] {
            assert_eq!(ari_interval(requested), expected);
        }
        assert_eq!(retry_after_delay(day(30), day(10)), DAY);
        assert_eq!(retry_after_delay(day(10), day(30)), Duration::ZERO);
        assert_eq!(ari_backoff(1), Duration::from_secs(3_600));
        assert_eq!(ari_backoff(50), DAY);
    }
}
