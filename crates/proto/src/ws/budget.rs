//! The budget that limits the work a peer can cause without a benefit.
//!
//! Control frames and nearly empty fragments are charged; transferred content and time are
//! credited. Honest peers earn more than they spend; a flood uses up the initial amount. RFC 6455
//! §10.4.

use super::limits::Limits;
use super::reject::Reject;

/// An action that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// A ping, which is answered.
    Ping,
    /// An unsolicited pong.
    Pong,
    /// A frame that does not end its message, with this many bytes.
    Fragment(u64),
}

impl Deed {
    fn cost(self) -> u32 {
        match self {
            Self::Ping => 2,
            Self::Pong => 1,
            Self::Fragment(0) => 10,
            Self::Fragment(bytes) if bytes < FRAGMENT_BYTES_FAIR => 1,
            Self::Fragment(_) => 0,
        }
    }
}

/// A fragment of this size costs about as much as its bytes.
const FRAGMENT_BYTES_FAIR: u64 = 16;
/// The credit for a message with content: as much as a ping costs.
const MESSAGE: u32 = 2;
/// The number of content bytes that earn 1.
const BYTES_PER_UNIT: u32 = 256;

/// The account.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    /// Content bytes that have not earned anything yet.
    bytes: u32,
    /// Answers written since the peer last read its output.
    answers: u16,
    /// Pings sent by this end that were not answered.
    asked: u16,
    /// The time up to which credit was given.
    since_ms: Option<u64>,
}

impl Budget {
    pub(super) const fn new(limits: &Limits) -> Self {
        Self { left: limits.budget_max, bytes: 0, answers: 0, asked: 0, since_ms: None }
    }

    /// Charges an action, or rejects it because too little is left.
    #[inline]
    pub(super) fn charge(&mut self, deed: Deed) -> Result<(), Reject> {
        if deed == Deed::Pong && self.asked > 0 {
            self.asked -= 1;
            return Ok(());
        }
        self.left = self.left.checked_sub(deed.cost()).ok_or(Reject::BudgetSpent)?;
        Ok(())
    }

    /// A ping was sent, so its pong is free for the peer.
    pub(super) const fn ask(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// Returns whether another answer may wait for the peer.
    pub(super) const fn may_answer(&self, limits: &Limits) -> bool {
        self.answers < limits.answers_max
    }

    /// Counts an answer that the peer must read.
    pub(super) fn answer(&mut self, limits: &Limits) -> Result<(), Reject> {
        if !self.may_answer(limits) {
            return Err(Reject::AnswersUnread);
        }
        self.answers += 1;
        Ok(())
    }

    /// The peer has read all answers.
    pub(super) const fn answers_read(&mut self) {
        self.answers = 0;
    }

    /// Credits bytes of content.
    #[inline]
    pub(super) fn received(&mut self, limits: &Limits, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(self.bytes);
        self.bytes = bytes % BYTES_PER_UNIT;
        self.earn(limits, bytes / BYTES_PER_UNIT);
    }

    /// Credits a message that has content.
    #[inline]
    pub(super) fn message(&mut self, limits: &Limits) {
        self.earn(limits, MESSAGE);
    }

    /// Credits the elapsed time, by a monotonic clock.
    pub(super) fn tick(&mut self, limits: &Limits, now_ms: u64) {
        let rate = u64::from(limits.budget_per_second);
        let Some(since) = self.since_ms.filter(|_| rate > 0) else {
            self.since_ms = Some(now_ms);
            return;
        };
        let units = now_ms.saturating_sub(since).saturating_mul(rate) / 1000;
        if units > 0 {
            self.since_ms = Some(since + units * 1000 / rate);
            self.earn(limits, u32::try_from(units).unwrap_or(u32::MAX));
        }
    }

    #[inline]
    fn earn(&mut self, limits: &Limits, units: u32) {
        self.left = self.left.saturating_add(units).min(limits.budget_max);
    }
}
