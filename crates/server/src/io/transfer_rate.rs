//! Measures whether a peer sends content, or receives a response, fast enough.

use crate::limits::MinRate;
use std::time::Duration;

/// The server checks at least this often in the time of the slack whether bytes have moved. Silence
/// counts from the check that finds it, so a peer may be silent for the slack plus the time between
/// two checks.
const CHECKS_PER_GRACE: u32 = 8;

/// Limits how long a peer may take, by the number of bytes that moved while the server waited for
/// it.
///
/// A peer starts with the whole slack. The time in which the server waits for the peer uses it up.
/// Each byte restores the time that one byte may take at the minimum rate. The slack never exceeds
/// its initial value, so a burst does not allow longer silence. Time in which the server waits for
/// something else does not count.
#[derive(Debug, Default)]
pub(crate) struct TransferRate {
    /// Bytes that had moved at the last check.
    last_bytes: u64,
    /// The current wait: the time from which it counts, and the time when the slack will be used
    /// up.
    waiting: Option<(Duration, Duration)>,
    /// Slack used up by earlier waits.
    used_grace: Duration,
}

impl TransferRate {
    /// Makes a meter that starts at `count` bytes.
    pub(crate) fn new(count: u64) -> Self {
        Self { last_bytes: count, ..Self::default() }
    }

    /// Must be called while the server waits for the peer. Returns when to check again. If the peer
    /// is late, the returned time has already passed. `count` is the total number of bytes moved so
    /// far.
    pub(crate) fn start(&mut self, now: Duration, count: u64, rate: MinRate) -> Duration {
        match self.deadline(now, count, rate) {
            Duration::MAX => Duration::MAX,
            until => until.min(now.saturating_add(rate.grace / CHECKS_PER_GRACE)),
        }
    }

    /// When the slack will be used up if no byte moves.
    fn deadline(&mut self, now: Duration, count: u64, rate: MinRate) -> Duration {
        if let Some((_, until)) = self.waiting
            && count == self.last_bytes
        {
            return until;
        }
        self.pause(now, count, rate);
        let until = now.saturating_add(rate.grace.saturating_sub(self.used_grace));
        self.waiting = Some((now, until));
        until
    }

    /// Stops the current wait: the server no longer waits for the peer.
    pub(crate) fn pause(&mut self, now: Duration, count: u64, rate: MinRate) {
        if let Some((since, _)) = self.waiting.take() {
            self.used_grace = self.used_grace.saturating_add(now.saturating_sub(since));
        }
        let moved = count.saturating_sub(self.last_bytes);
        self.last_bytes = count;
        let earned = match (moved, rate.bytes_per_second) {
            (0, _) => Duration::ZERO,
            (_, 0) => Duration::MAX,
            (moved, min) => Duration::from_secs_f64(moved as f64 / min as f64),
        };
        self.used_grace = self.used_grace.saturating_sub(earned);
    }

    /// Returns whether the slack is used up.
    pub(crate) fn is_too_slow(&mut self, now: Duration, count: u64, rate: MinRate) -> bool {
        self.deadline(now, count, rate) <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: MinRate = MinRate { bytes_per_second: 100, grace: Duration::from_secs(30) };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the second at which a peer that moves `lump` bytes every `pause` seconds is late;
    /// `None` if it is not late within a day.
    fn late_at(lump: u64, pause: u64, rate: MinRate) -> Option<u64> {
        let mut meter = TransferRate::default();
        let mut is_late = |tenth: u64| {
            let now = Duration::from_millis(tenth * 100);
            meter.is_too_slow(now, lump * (tenth / 10 / pause), rate)
        };
        (0..864_000).find(|tenth| is_late(*tenth)).map(|tenth| tenth / 10)
    }

    #[test]
    fn a_peer_at_the_least_rate_is_never_late_however_its_bytes_are_lumped() {
        for pause in [1, 2, 10, 29] {
            assert_eq!(late_at(100 * pause, pause, RATE), None, "every {pause} s");
        }
        assert_eq!(late_at(1_000_000, 29, RATE), None);
    }

    #[test]
    fn a_silent_peer_is_late_after_the_slack() {
        assert_eq!(late_at(0, 1, RATE), Some(30));
        // Also after a burst.
        assert_eq!(late_at(1_000_000, 50_000, RATE), Some(30));
    }

    #[test]
    fn a_slow_peer_is_late_when_it_has_fallen_behind_by_the_slack() {
        // With the next bytes, the peer would have been 30 s behind.
        assert_eq!(late_at(50, 1, RATE), Some(59));
        assert_eq!(late_at(90, 1, RATE), Some(291));
    }

    #[test]
    fn bytes_that_came_since_the_last_look_do_not_excuse_who_is_late_already() {
        let mut meter = TransferRate::default();
        let (mut now, mut count) = (Duration::ZERO, 0);
        while now < seconds(100) {
            // The check is made when requested, one tick late, and another byte has arrived by
            // then.
            let until = meter.start(now, count, RATE);
            if until <= now {
                break;
            }
            (now, count) = (until + Duration::from_millis(100), count + 1);
        }
        assert!(now < seconds(32), "{now:?}");
    }

    #[test]
    fn without_a_rate_any_byte_will_do() {
        let rate = MinRate { bytes_per_second: 0, ..RATE };
        assert_eq!(late_at(1, 29, rate), None);
        assert_eq!(late_at(1, 31, rate), Some(30));
    }

    #[test]
    fn the_time_stands_still_while_nothing_moves() {
        let mut meter = TransferRate::default();
        let until = meter.deadline(seconds(1), 0, RATE);
        for now in 2..100 {
            assert_eq!(meter.deadline(seconds(now), 0, RATE), until);
        }
    }

    #[test]
    fn time_in_which_the_server_does_not_wait_is_not_the_peers() {
        let mut meter = TransferRate::default();
        let mut now = seconds(0);
        for _ in 0..20 {
            meter.start(now, 0, RATE);
            now += seconds(1);
            meter.pause(now, 0, RATE);
            now += seconds(1000);
        }
        assert_eq!(meter.deadline(now, 0, RATE), now + seconds(10));
    }

    #[test]
    fn silence_is_noticed_a_part_of_the_slack_late_at_the_most() {
        for rate in [RATE, MinRate { bytes_per_second: 0, ..RATE }] {
            for last in 1..=90_u32 {
                let last = Duration::from_millis(u64::from(last) * 333);
                let mut meter = TransferRate::default();
                let (mut now, mut looks) = (Duration::ZERO, 0);
                // Checks are made only when the meter requests them.
                while !meter.is_too_slow(now, if now < last { 0 } else { 1_000_000 }, rate) {
                    now = meter.start(now, if now < last { 0 } else { 1_000_000 }, rate);
                    looks += 1;
                }
                let silence = now - last;
                assert!(silence >= rate.grace, "{silence:?} after {last:?}");
                assert!(
                    silence <= rate.grace + rate.grace / CHECKS_PER_GRACE,
                    "{silence:?} after {last:?}"
                );
                assert!(looks <= 2 * (CHECKS_PER_GRACE + 1), "{looks} looks");
            }
        }
    }

    #[test]
    fn who_may_be_silent_for_ever_is_not_looked_at() {
        let rate = MinRate { bytes_per_second: 0, grace: Duration::MAX };
        assert_eq!(TransferRate::default().start(seconds(7), 1, rate), Duration::MAX);
    }
}
