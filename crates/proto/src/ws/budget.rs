//! The account of what a peer makes an endpoint do for nothing.
//!
//! Control frames, and fragments that carry next to nothing, are charged; content that moves, and time,
//! are credited. Honest use earns more than it spends; a flood spends what it is given. RFC 6455 §10.4.

use super::limits::Limits;
use super::reject::Reject;

/// A deed that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// A ping, which is answered.
    Ping,
    /// A pong that nobody asked for.
    Pong,
    /// A frame that does not end its message, with so many bytes.
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

/// A fragment of that size costs about as much as its bytes do.
const FRAGMENT_BYTES_FAIR: u64 = 16;
/// What a message with content earns: as much as a ping costs.
const MESSAGE: u32 = 2;
/// How many bytes of content earn 1.
const BYTES_PER_UNIT: u32 = 256;

/// The account.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    /// Bytes of content that have earned nothing yet.
    bytes: u32,
    /// Answers written since the peer was last seen to read.
    answers: u16,
    /// Pongs that this end has asked for.
    asked: u16,
    /// The time up to which credit was given.
    since_ms: Option<u64>,
}

impl Budget {
    pub(super) const fn new(limits: &Limits) -> Self {
        Self { left: limits.budget_max, bytes: 0, answers: 0, asked: 0, since_ms: None }
    }

    /// Charges a deed, or refuses it because too little is left.
    #[inline]
    pub(super) fn charge(&mut self, deed: Deed) -> Result<(), Reject> {
        if deed == Deed::Pong && self.asked > 0 {
            self.asked -= 1;
            return Ok(());
        }
        self.left = self.left.checked_sub(deed.cost()).ok_or(Reject::BudgetSpent)?;
        Ok(())
    }

    /// Notes that a pong is asked for, which costs the peer nothing.
    pub(super) const fn ask(&mut self) {
        self.asked = self.asked.saturating_add(1);
    }

    /// Whether another answer may wait for the peer.
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

    /// Notes that the peer has read all answers.
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

    /// Credits the time that has passed, by a monotonic clock.
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
