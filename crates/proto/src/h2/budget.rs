//! The account of what a peer makes the server do for nothing.
//!
//! Each deed that costs the server something and brings the peer nothing is charged; completed
//! responses, content that moves, and time are credited. Honest use earns more than it spends,
//! however heavy it is; an attack spends what it is given and is told to calm down. RFC 9113 §10.5.
//!
//! One account covers all attacks. Streams that end early are also charged to a second one, which
//! earns less. The first one only weighs frames: a ping, or a request that is refused, costs the
//! server no more than the request that pays for it. A handler that was called in vain may cost far
//! more, or leave work behind that outlives it, so cheap requests must not pay for it one by one.

use super::limits::Limits;
use super::reject::Reject;

/// A deed that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// The client reset a stream whose response had not begun (CVE-2023-44487).
    Reset,
    /// The client reset a stream whose response had begun and was not complete.
    ResetWithin,
    /// The client broke a rule so that the server had to reset a stream (CVE-2025-8671).
    Fault,
    /// A request was refused: too many streams, too long, or malformed.
    Refused,
    /// A frame on a stream that is closed, except for content that was under way when the server ended it.
    Late,
    /// A DATA frame without content that ends nothing.
    EmptyData,
    /// Padding, in bytes.
    Padding(u32),
    /// A HEADERS frame that does not end its block, or a CONTINUATION frame.
    Fragment,
    /// A frame of a block that carries no byte of it.
    EmptyFragment,
    /// The fields of a block, in bytes.
    Fields(usize),
    /// SETTINGS, with the number of settings.
    Settings(usize),
    /// A PING.
    Ping,
    /// A deprecated priority.
    Priority,
    /// A new priority.
    PriorityUpdate,
    /// More window.
    WindowUpdate,
    /// GOAWAY.
    GoAway,
    /// An unknown frame, or an acknowledgement of nothing.
    Unknown,
}

impl Deed {
    /// The deed's cost. A completed response earns 10, and content 1 for each 256 bytes.
    fn cost(self) -> u32 {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        match self {
            Self::Reset | Self::ResetWithin | Self::Refused | Self::Settings(0..=15) => 10,
            Self::Fault => 20,
            Self::EmptyData | Self::Priority | Self::WindowUpdate | Self::Late => 1,
            Self::Padding(bytes) => bytes.div_ceil(64),
            Self::Ping | Self::PriorityUpdate | Self::Fragment | Self::Unknown => 2,
            Self::EmptyFragment => 10,
            // The largest head allowed by default costs less than a response earns.
            Self::Fields(bytes) => count(bytes) / 4096,
            Self::Settings(settings) => count(settings),
            Self::GoAway => 10,
        }
    }

    /// What the deed costs of the account of streams that end early. A completed response earns 2
    /// there, and content that was sent 1 for each 4 KiB.
    const fn early_end_cost(self) -> u32 {
        match self {
            Self::Reset => 10,
            Self::Fault => 20,
            // The handler has answered. Streams of events and of calls often end so.
            Self::ResetWithin => 5,
            _ => 0,
        }
    }
}

/// What a completed response earns.
const RESPONSE: u32 = 10;
/// What it earns for streams that end early: a client may reset one request of six for ever.
const RESPONSE_FOR_EARLY_ENDS: u32 = 2;
/// What sending a DATA frame earns: a client may answer it with a PING, to measure the round trip.
const DATA_SENT: u32 = 2;
/// The WINDOW_UPDATE frames that a client may answer it with: for the stream, and for the connection.
const UPDATES: u32 = 2;
/// How many bytes of content earn 1.
const BYTES_PER_UNIT: u32 = 256;
/// How many bytes of content that was sent earn 1 for streams that end early: downloads that are
/// cancelled half-way pay for themselves.
const SENT_PER_UNIT: u32 = 4096;

/// The accounts. None of them has more left than `limits.budget_max`.
#[derive(Debug)]
pub(super) struct Budget {
    left: u32,
    /// Bytes of content that have earned nothing yet.
    bytes: u32,
    /// What is left for streams that end early.
    early_ends: u32,
    /// Bytes of content that were sent and have earned nothing there yet.
    sent: u32,
    /// WINDOW_UPDATE frames that cost nothing, since they may answer DATA frames. They are counted
    /// apart: a burst of DATA frames finds the account full, and is answered when the burst is over.
    updates: u32,
    /// Bytes that may still come on streams that the server has ended.
    late: u32,
    /// Answers written since the peer was last seen to read.
    answers: u16,
    /// The time up to which credit was given.
    since_ms: Option<u64>,
}

impl Budget {
    pub(super) const fn new(limits: &Limits) -> Self {
        Self {
            left: limits.budget_max,
            bytes: 0,
            early_ends: limits.budget_max,
            sent: 0,
            updates: 0,
            late: 0,
            answers: 0,
            since_ms: None,
        }
    }

    /// Charges a deed, or refuses it because too little is left.
    #[inline]
    pub(super) fn charge(&mut self, deed: Deed) -> Result<(), Reject> {
        let left = self.left.checked_sub(deed.cost());
        let early_ends = self.early_ends.checked_sub(deed.early_end_cost());
        (self.left, self.early_ends) = left.zip(early_ends).ok_or(Reject::BudgetSpent)?;
        Ok(())
    }

    /// Charges a WINDOW_UPDATE, unless it may answer a DATA frame.
    #[inline]
    pub(super) fn window_update(&mut self) -> Result<(), Reject> {
        match self.updates.checked_sub(1) {
            Some(updates) => self.updates = updates,
            None => self.charge(Deed::WindowUpdate)?,
        }
        Ok(())
    }

    /// Notes that the server has ended a stream on which the peer may send as much as the stream's
    /// window before it knows. All that is under way fits the connection's window.
    pub(super) fn ended_early(&mut self, stream_window: u32, connection_window: u32) {
        self.late = self.late.saturating_add(stream_window).min(connection_window);
    }

    /// Charges a DATA frame on a closed stream, unless it may have been under way when the server ended
    /// it. An empty one takes nothing of a window, so that as many could come as a peer likes.
    pub(super) fn late_data(&mut self, length: u32) -> Result<(), Reject> {
        match self.late.checked_sub(length).filter(|_| length > 0) {
            Some(late) => self.late = late,
            None => self.charge(Deed::Late)?,
        }
        Ok(())
    }

    /// Counts an answer that the peer must read.
    pub(super) fn answer(&mut self, limits: &Limits) -> Result<(), Reject> {
        if self.answers >= limits.answers_max {
            return Err(Reject::AnswersUnread);
        }
        self.answers += 1;
        Ok(())
    }

    /// Notes that the peer has read all answers.
    pub(super) fn answers_read(&mut self) {
        self.answers = 0;
    }

    /// Credits a complete response.
    #[inline]
    pub(super) fn response(&mut self, limits: &Limits) {
        self.earn(limits, RESPONSE);
        self.earn_early_ends(limits, RESPONSE_FOR_EARLY_ENDS);
    }

    /// Credits content that moved.
    #[inline]
    pub(super) fn received(&mut self, limits: &Limits, bytes: u32) {
        let bytes = self.bytes + bytes;
        self.bytes = bytes % BYTES_PER_UNIT;
        self.earn(limits, bytes / BYTES_PER_UNIT);
    }

    /// Credits a DATA frame that was sent, whatever its size: a client may acknowledge each of
    /// them. A small fragment earns only for its bytes, unless it was held back before (`hold.rs`):
    /// it is sent at once only where all of the client's window is small, and a client that opens
    /// such a window byte by byte pays for each update.
    #[inline]
    pub(super) fn sent(&mut self, limits: &Limits, bytes: u32, is_fragment: bool) {
        self.received(limits, bytes);
        let sent = self.sent + bytes;
        self.sent = sent % SENT_PER_UNIT;
        self.earn_early_ends(limits, sent / SENT_PER_UNIT);
        if bytes >= BYTES_PER_UNIT || !is_fragment {
            self.earn(limits, DATA_SENT);
            self.updates = self.updates.saturating_add(UPDATES);
        }
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
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            self.earn(limits, units);
            self.earn_early_ends(limits, units);
        }
    }

    pub(super) fn left(&self) -> u32 {
        self.left.min(self.early_ends)
    }

    #[inline]
    fn earn(&mut self, limits: &Limits, units: u32) {
        self.left = self.left.saturating_add(units).min(limits.budget_max);
    }

    #[inline]
    fn earn_early_ends(&mut self, limits: &Limits, units: u32) {
        self.early_ends = self.early_ends.saturating_add(units).min(limits.budget_max);
    }
}
