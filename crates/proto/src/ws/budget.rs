//! The budget that limits the work a peer can cause without a benefit.
//!
//! Control frames and nearly empty fragments are charged; transferred content and time are
//! credited. Honest peers earn more than they spend; a flood uses up the initial amount. RFC 6455
//! §10.4.

use super::error::WebSocketError;
use super::limits::Limits;

/// An action that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// A ping, which is answered.
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

/// A fragment of this size costs about as much as its bytes.
const FREE_FRAGMENT_BYTES_MIN: u64 = 16;
/// The credit for a message with content: as much as a ping costs.
const MESSAGE_CREDIT: u32 = 2;
/// The number of content bytes that earn 1.
const BYTES_PER_UNIT: u32 = 256;

/// The budget of one connection.
#[derive(Debug)]
pub(super) struct Budget {
    units_left: u32,
    /// Content bytes that have not earned anything yet.
    uncredited_bytes: u32,
    /// Answers written since the peer last read its output.
    pending_pongs: u16,
    /// Pings sent by this end that were not answered.
    expected_pongs: u16,
    /// The time up to which credit was given.
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

    /// Charges an action, or rejects it because too little is left.
    #[inline]
    pub(super) fn charge(&mut self, deed: Cost) -> Result<(), WebSocketError> {
        if deed == Cost::Pong && self.expected_pongs > 0 {
            self.expected_pongs -= 1;
            return Ok(());
        }
        self.units_left = self
            .units_left
            .checked_sub(deed.units())
            .ok_or(WebSocketError::AbuseBudgetExhausted)?;
        Ok(())
    }

    /// A ping was sent, so its pong is free for the peer.
    pub(super) const fn expect_pong(&mut self) {
        self.expected_pongs = self.expected_pongs.saturating_add(1);
    }

    /// Returns whether another answer may wait for the peer.
    pub(super) const fn can_queue_pong(&self, limits: &Limits) -> bool {
        self.pending_pongs < limits.pending_pongs_max
    }

    /// Counts an answer that the peer must read.
    pub(super) fn count_pong(&mut self, limits: &Limits) -> Result<(), WebSocketError> {
        if !self.can_queue_pong(limits) {
            return Err(WebSocketError::PendingPongsExceeded);
        }
        self.pending_pongs += 1;
        Ok(())
    }

    /// The peer has read all answers.
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
