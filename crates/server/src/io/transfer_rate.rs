//! Measures whether a peer sends content, or receives a response, fast enough.

use crate::limits::MinRate;
use std::time::Duration;

/// During the grace, the server checks at least this often whether bytes have moved. The time of
/// the last byte is only known to the nearest check, so a peer may be silent for the grace plus the
/// time between two checks.
const CHECKS_PER_GRACE: u32 = 8;

/// Measures whether a peer keeps up with a minimum rate while the server waits for it.
///
/// A peer starts with the whole grace ([`MinRate::grace`]). Time in which the server waits for the
/// peer uses up the grace. Each byte that moves restores the time that one byte may take at the
/// minimum rate. The grace never exceeds its initial value, so a burst does not allow longer
/// silence. Time in which the server waits for something else does not count.
#[derive(Debug, Default)]
pub(crate) struct TransferRate {
    /// Bytes that had moved at the last check.
    last_bytes: u64,
    /// The current wait: when it started, or was last checked after bytes had moved, and when the
    /// grace will be used up.
    waiting: Option<(Duration, Duration)>,
    /// Grace used up by earlier waits.
    used_grace: Duration,
}

impl TransferRate {
    /// Creates a meter with the whole grace. `total_bytes` is the number of bytes moved so far.
    pub(crate) fn new(total_bytes: u64) -> Self {
        Self { last_bytes: total_bytes, ..Self::default() }
    }

    /// Starts or continues a wait for the peer. Returns when to check again. If the peer is too
    /// slow, the returned time has already passed.
    pub(crate) fn start(&mut self, now: Duration, total_bytes: u64, rate: MinRate) -> Duration {
        match self.update_deadline(now, total_bytes, rate) {
            Duration::MAX => Duration::MAX,
            deadline => deadline.min(now.saturating_add(rate.grace / CHECKS_PER_GRACE)),
        }
    }

    /// Credits the bytes that have moved since the last check, and starts or continues a wait.
    /// Returns when the grace will be used up if no more bytes move.
    fn update_deadline(&mut self, now: Duration, total_bytes: u64, rate: MinRate) -> Duration {
        if let Some((_, deadline)) = self.waiting
            && total_bytes == self.last_bytes
        {
            return deadline;
        }
        self.pause(now, total_bytes, rate);
        let deadline = now.saturating_add(rate.grace.saturating_sub(self.used_grace));
        self.waiting = Some((now, deadline));
        deadline
    }

    /// Ends the current wait, if there is one, and credits the bytes that have moved.
    pub(crate) fn pause(&mut self, now: Duration, total_bytes: u64, rate: MinRate) {
        if let Some((started_at, _)) = self.waiting.take() {
            self.used_grace = self.used_grace.saturating_add(now.saturating_sub(started_at));
        }
        let moved = total_bytes.saturating_sub(self.last_bytes);
        self.last_bytes = total_bytes;
        let credit = match (moved, rate.bytes_per_second) {
            (0, _) => Duration::ZERO,
            (_, 0) => Duration::MAX,
            (moved, bytes_per_second) => {
                Duration::from_secs_f64(moved as f64 / bytes_per_second as f64)
            }
        };
        self.used_grace = self.used_grace.saturating_sub(credit);
    }

    /// Starts or continues a wait, and returns whether the grace is used up.
    pub(crate) fn is_too_slow(&mut self, now: Duration, total_bytes: u64, rate: MinRate) -> bool {
        self.update_deadline(now, total_bytes, rate) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinRate = MinRate { bytes_per_second: 100, grace: Duration::from_secs(30) };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the second at which a peer that moves `burst` bytes every `pause` seconds is too
    /// slow; `None` if it is fast enough for a day.
    fn late_at(burst: u64, pause: u64, rate: MinRate) -> Option<u64> {
        let mut meter = TransferRate::default();
        let mut is_late = |tenth: u64| {
            let now = Duration::from_millis(tenth * 100);
            meter.is_too_slow(now, burst * (tenth / 10 / pause), rate)
        };
        (0..864_000).find(|tenth| is_late(*tenth)).map(|tenth| tenth / 10)
    }

    #[test]
    fn peer_at_the_minimum_rate_is_never_too_slow_even_in_bursts() {
        for pause in [1, 2, 10, 29] {
            assert_eq!(late_at(100 * pause, pause, RATE), None, "every {pause} s");
        }
        assert_eq!(late_at(1_000_000, 29, RATE), None);
    }

    #[test]
    fn silent_peer_is_too_slow_after_the_grace() {
        assert_eq!(late_at(0, 1, RATE), Some(30));
        // Also after a burst.
        assert_eq!(late_at(1_000_000, 50_000, RATE), Some(30));
    }

    #[test]
    fn slow_peer_is_too_slow_once_the_grace_is_used_up() {
        // At 59 s, 29.5 s of the grace are used up. The rest is used up before the next bytes move.
        assert_eq!(late_at(50, 1, RATE), Some(59));
        assert_eq!(late_at(90, 1, RATE), Some(291));
    }

    #[test]
    fn bytes_since_the_last_check_do_not_excuse_a_peer_that_is_already_too_slow() {
        let mut meter = TransferRate::default();
        let (mut now, mut total_bytes) = (Duration::ZERO, 0);
        while now < seconds(100) {
            // The check is made when requested, one tick late, and another byte has arrived by
            // then.
            let deadline = meter.start(now, total_bytes, RATE);
            if deadline <= now {
                break;
            }
            (now, total_bytes) = (deadline + Duration::from_millis(100), total_bytes + 1);
        }
        assert!(now < seconds(32), "{now:?}");
    }

    #[test]
    fn without_a_minimum_rate_any_byte_restores_the_grace() {
        let rate = MinRate { bytes_per_second: 0, ..RATE };
        assert_eq!(late_at(1, 29, rate), None);
        assert_eq!(late_at(1, 31, rate), Some(30));
    }

    #[test]
    fn deadline_does_not_move_while_no_bytes_move() {
        let mut meter = TransferRate::default();
        let deadline = meter.update_deadline(seconds(1), 0, RATE);
        for now in 2..100 {
            assert_eq!(meter.update_deadline(seconds(now), 0, RATE), deadline);
        }
    }

    #[test]
    fn paused_time_does_not_count_against_the_peer() {
        let mut meter = TransferRate::default();
        let mut now = seconds(0);
        for _ in 0..20 {
            meter.start(now, 0, RATE);
            now += seconds(1);
            meter.pause(now, 0, RATE);
            now += seconds(1000);
        }
        assert_eq!(meter.update_deadline(now, 0, RATE), now + seconds(10));
    }

    #[test]
    fn silence_is_detected_within_one_check_interval() {
        for rate in [RATE, MinRate { bytes_per_second: 0, ..RATE }] {
            for last in 1..=90_u32 {
                let last = Duration::from_millis(u64::from(last) * 333);
                let mut meter = TransferRate::default();
                let (mut now, mut checks) = (Duration::ZERO, 0);
                // Checks are made only when the meter requests them.
                while !meter.is_too_slow(now, if now < last { 0 } else { 1_000_000 }, rate) {
                    now = meter.start(now, if now < last { 0 } else { 1_000_000 }, rate);
                    checks += 1;
                }
                let silence = now - last;
                assert!(silence >= rate.grace, "{silence:?} after {last:?}");
                assert!(
                    silence <= rate.grace + rate.grace / CHECKS_PER_GRACE,
                    "{silence:?} after {last:?}"
                );
                assert!(checks <= 2 * (CHECKS_PER_GRACE + 1), "{checks} checks");
            }
        }
    }

    #[test]
    fn unlimited_grace_needs_no_checks() {
        let rate = MinRate { bytes_per_second: 0, grace: Duration::MAX };
        assert_eq!(TransferRate::default().start(seconds(7), 1, rate), Duration::MAX);
    }
}
