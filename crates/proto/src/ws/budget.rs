//! The abuse budget: limits the wasted work that a peer can cause.
//!
//! Control frames and nearly empty fragments are charged; transferred content and time are
//! credited. The credits of an honest peer exceed its costs; a flood uses up the initial amount.
//! RFC 6455 §10.4.

use super::error::WebSocketError;
use super::limits::Limits;

/// An action that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// A ping, which causes a pong.
    Ping,
    /// An unsolicited pong.
    Pong,
    /// A frame that does not end its message, with this many bytes.
    Fragment(u64),
}

impl Cost {
    fn units(self) -> u32 {
        match self {
            Self::Ping => 2,
            Self::Pong => 1,
            Self::Fragment(0) => 10,
            Self::Fragment(bytes) if bytes < FREE_FRAGMENT_BYTES_MIN => 1,
            Self::Fragment(_) => 0,
        }
    }
}

/// The smallest fragment that is free: the overhead of a frame is then small compared to its bytes.
const FREE_FRAGMENT_BYTES_MIN: u64 = 16;
/// The credit for a message with content: as much as a ping costs.
const MESSAGE_CREDIT: u32 = 2;
/// The number of content bytes that are credited with 1.
const BYTES_PER_UNIT: u32 = 256;

/// The budget of one connection.
#[derive(Debug)]
pub(super) struct Budget {
    units_left: u32,
    /// Content bytes that were not credited yet.
    uncredited_bytes: u32,
    /// Pongs written since the output was last flushed.
    pending_pongs: u16,
    /// Pings sent by this end whose pong has not arrived.
    expected_pongs: u16,
    /// The time up to which elapsed time was credited.
    last_refill_ms: Option<u64>,
}

impl Budget {
    pub(super) const fn new(limits: &Limits) -> Self {
        Self {
            units_left: limits.abuse_budget_max,
            uncredited_bytes: 0,
            pending_pongs: 0,
            expected_pongs: 0,
            last_refill_ms: None,
        }
    }

    /// Charges an action. Fails if the budget is too small for it.
    #[inline]
    pub(super) fn charge(&mut self, cost: Cost) -> Result<(), WebSocketError> {
        if cost == Cost::Pong && self.expected_pongs > 0 {
            self.expected_pongs -= 1;
            return Ok(());
        }
        self.units_left = self
            .units_left
            .checked_sub(cost.units())
            .ok_or(WebSocketError::AbuseBudgetExhausted)?;
        Ok(())
    }

    /// Records that a ping was sent, so that its pong is free.
    pub(super) const fn expect_pong(&mut self) {
        self.expected_pongs = self.expected_pongs.saturating_add(1);
    }

    /// Returns whether another pong may be pending.
    pub(super) const fn can_queue_pong(&self, limits: &Limits) -> bool {
        self.pending_pongs < limits.pending_pongs_max
    }

    /// Counts a pong that the peer has to read.
    pub(super) fn count_pong(&mut self, limits: &Limits) -> Result<(), WebSocketError> {
        if !self.can_queue_pong(limits) {
            return Err(WebSocketError::PendingPongsExceeded);
        }
        self.pending_pongs += 1;
        Ok(())
    }

    /// Records that all output was flushed.
    pub(super) const fn pongs_flushed(&mut self) {
        self.pending_pongs = 0;
    }

    /// Credits bytes of content.
    #[inline]
    pub(super) fn credit_received(&mut self, limits: &Limits, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(self.uncredited_bytes);
        self.uncredited_bytes = bytes % BYTES_PER_UNIT;
        self.credit(limits, bytes / BYTES_PER_UNIT);
    }

    /// Credits a message that has content.
    #[inline]
    pub(super) fn credit_message(&mut self, limits: &Limits) {
        self.credit(limits, MESSAGE_CREDIT);
    }

    /// Credits the elapsed time, by a monotonic clock.
    pub(super) fn refill(&mut self, limits: &Limits, now_ms: u64) {
        let rate = u64::from(limits.abuse_budget_per_second);
        let Some(since) = self.last_refill_ms.filter(|_| rate > 0) else {
            self.last_refill_ms = Some(now_ms);
            return;
        };
        let units = now_ms.saturating_sub(since).saturating_mul(rate) / 1000;
        if units > 0 {
            self.last_refill_ms = Some(since + units * 1000 / rate);
            self.credit(limits, u32::try_from(units).unwrap_or(u32::MAX));
        }
    }

    #[inline]
    fn credit(&mut self, limits: &Limits, units: u32) {
        self.units_left = self.units_left.saturating_add(units).min(limits.abuse_budget_max);
    }
}
