//! Flow control: how much the client may send. RFC 9113 §5.2, §6.9.

use super::limits::{Limits, WINDOW_DEFAULT};

/// The increment for a WINDOW_UPDATE: the content consumed since the last one plus the growth of
/// the window, or `None` if that is less than half the window. `window` is how much the peer may
/// still send (negative if the window has shrunk), `unreleased` is how much arrived and was not
/// consumed.
///
/// So an endpoint sends one WINDOW_UPDATE for each half window, no matter in what portions the
/// content arrives and is consumed.
#[inline]
pub(super) fn window_increment(target: u32, window: i32, unreleased: u32) -> Option<u32> {
    let increment = i64::from(target) - i64::from(window) - i64::from(unreleased);
    let increment = u32::try_from(increment).ok()?;
    if increment > 0 && increment >= target / 2 { Some(increment) } else { None }
}

/// The connection's window, and the target sizes of the windows of the connection and its streams.
///
/// A window that is filled within a round trip is too small. The round trip is measured without a
/// clock, by a PING: the content that arrives until its acknowledgement is the bandwidth-delay
/// product of the path.
#[derive(Debug)]
pub(super) struct ReceiveFlow {
    /// How much content the client may still send.
    pub(super) window: u32,
    /// Content that arrived and was not consumed yet.
    pub(super) unreleased: u32,
    /// The target size of the connection's window.
    pub(super) target: u32,
    /// The target size of streams' windows.
    pub(super) stream_target: u32,
    /// Content received since the last measuring PING was sent or acknowledged.
    bdp_bytes: u32,
    /// How much content must arrive before the next measuring PING.
    bdp_interval: u32,
    /// Whether a measuring PING has not been acknowledged yet.
    rtt_ping_pending: bool,
}

impl ReceiveFlow {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            window: WINDOW_DEFAULT,
            unreleased: 0,
            target: limits.initial_connection_window.max(WINDOW_DEFAULT),
            stream_target: limits.initial_stream_window,
            bdp_bytes: 0,
            bdp_interval: (limits.initial_stream_window / 2).max(BDP_INTERVAL_BYTES_MIN),
            rtt_ping_pending: false,
        }
    }

    /// Opens the window if half of it was consumed, and returns the increment.
    #[inline]
    pub(super) fn take_window_update(&mut self) -> Option<u32> {
        let increment = window_increment(self.target, self.window.cast_signed(), self.unreleased)?;
        self.window += increment;
        Some(increment)
    }

    /// Counts content that arrived. Returns whether to send a PING that measures the round trip.
    #[inline]
    pub(super) fn on_data(&mut self, limits: &Limits, bytes: u32) -> bool {
        self.bdp_bytes = self.bdp_bytes.saturating_add(bytes);
        let should_ping =
            !self.rtt_ping_pending && self.bdp_bytes >= self.bdp_interval && self.can_grow(limits);
        if should_ping {
            self.rtt_ping_pending = true;
            self.bdp_bytes = 0;
        }
        should_ping
    }

    fn can_grow(&self, limits: &Limits) -> bool {
        self.stream_target < limits.stream_window_max || self.target < limits.connection_window_max
    }

    /// Returns whether a measuring PING has not been acknowledged yet.
    pub(super) const fn is_measuring(&self) -> bool {
        self.rtt_ping_pending
    }

    /// Processes the acknowledgement of the measuring PING.
    pub(super) fn on_rtt_pong(&mut self, limits: &Limits) {
        self.rtt_ping_pending = false;
        let bytes = std::mem::take(&mut self.bdp_bytes);
        let grow = |window: u32, window_max: u32| match bytes >= window / 2 {
            true => window.saturating_mul(2).min(window_max.max(window)),
            false => window,
        };
        let previous = (self.target, self.stream_target);
        self.stream_target = grow(self.stream_target, limits.stream_window_max);
        self.target = grow(self.target, limits.connection_window_max);
        // A path whose windows no longer grow is measured less and less often.
        self.bdp_interval = match previous == (self.target, self.stream_target) {
            true => self.bdp_interval.saturating_mul(2),
            false => (self.stream_target / 2).max(BDP_INTERVAL_BYTES_MIN),
        };
    }
}

/// The minimum amount of content for a measurement, in bytes.
const BDP_INTERVAL_BYTES_MIN: u32 = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::{ReceiveFlow, window_increment};
    use crate::h2::Limits;

    #[test]
    fn a_window_update_is_sent_for_each_consumed_half() {
        assert_eq!(window_increment(100, 100, 0), None);
        assert_eq!(window_increment(100, 51, 0), None);
        assert_eq!(window_increment(100, 50, 0), Some(50));
        assert_eq!(window_increment(100, 0, 51), None);
        assert_eq!(window_increment(100, 0, 50), Some(50));
        assert_eq!(window_increment(100, 150, 50), None);
        assert_eq!(window_increment(0, 0, 0), None);
    }

    #[test]
    fn only_windows_filled_within_a_round_trip_grow() {
        let limits = Limits::DEFAULT;
        let mut flow = ReceiveFlow::new(&limits);
        let mut pings = 0;
        for _ in 0..10_000 {
            if flow.on_data(&limits, 16_384) {
                pings += 1;
                flow.on_data(&limits, flow.target);
                flow.on_rtt_pong(&limits);
            }
        }
        assert_eq!(flow.target, limits.connection_window_max);
        assert_eq!(flow.stream_target, limits.stream_window_max);
        assert!(pings < 10, "{pings}");

        let mut flow = ReceiveFlow::new(&limits);
        let mut pings = 0;
        for _ in 0..10_000 {
            if flow.on_data(&limits, 16_384) {
                pings += 1;
                flow.on_rtt_pong(&limits);
            }
        }
        assert_eq!(flow.stream_target, limits.initial_stream_window);
        assert!(pings < 20, "{pings}");
    }
}
