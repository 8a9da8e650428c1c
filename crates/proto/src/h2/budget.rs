//! The abuse budget: limits the wasted work that a peer can cause.
//!
//! Each action that makes the server work without a result for the peer is charged; completed
//! responses, transferred content, and time are credited. The credits of an honest client exceed
//! its costs, however active it is; an attacker uses up the initial amount and gets
//! ENHANCE_YOUR_CALM. RFC 9113 §10.5.
//!
//! One budget covers all attacks. Streams that end early are also charged to a second budget, which
//! is credited less. The first budget weighs frames only: a ping or a refused request costs the
//! server no more than the request whose credit pays for it. A handler that was called in vain may
//! cost far more, or start work that outlives the handler, so one cheap request must not pay for
//! one such call.

use super::error::Http2Error;
use super::limits::Limits;

/// An action that is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// The client reset a stream whose response had not begun (CVE-2023-44487).
    StreamReset,
    /// The client reset a stream whose response had begun and was not complete.
    StreamResetDuringResponse,
    /// The client violated a rule so that the server had to reset a stream (CVE-2025-8671).
    StreamError,
    /// A request was rejected: too many streams, too long, or malformed.
    RequestRefused,
    /// A frame on a closed stream, except for content in transit when the server ended the stream.
    FrameOnClosedStream,
    /// A DATA frame without content that does not end the stream.
    EmptyData,
    /// Padding, in bytes.
    Padding(u32),
    /// A HEADERS frame that does not end its block, or a CONTINUATION frame.
    Fragment,
    /// A frame of a block that contains no bytes of it.
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
    /// A WINDOW_UPDATE.
    WindowUpdate,
    /// GOAWAY.
    GoAway,
    /// An unknown frame, or an unsolicited acknowledgement.
    Unknown,
}

impl Cost {
    /// The action's cost. A completed response is credited with 10, content with 1 per 256 bytes.
    fn units(self) -> u32 {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        match self {
            Self::StreamReset
            | Self::StreamResetDuringResponse
            | Self::RequestRefused
            | Self::Settings(0..=15) => 10,
            Self::StreamError => 20,
            Self::EmptyData | Self::Priority | Self::WindowUpdate | Self::FrameOnClosedStream => 1,
            Self::Padding(bytes) => bytes.div_ceil(64),
            Self::Ping | Self::PriorityUpdate | Self::Fragment | Self::Unknown => 2,
            Self::EmptyFragment => 10,
            // The largest head allowed by default costs less than a response is credited.
            Self::Fields(bytes) => count(bytes) / 4096,
            Self::Settings(settings) => count(settings),
            Self::GoAway => 10,
        }
    }

    /// The cost for the budget of streams that end early. There, a completed response is credited
    /// with 2, sent content with 1 per 4 KiB.
    const fn reset_units(self) -> u32 {
        match self {
            Self::StreamReset => 10,
            Self::StreamError => 20,
            // The handler has responded. Event streams and gRPC calls often end this way.
            Self::StreamResetDuringResponse => 5,
            _ => 0,
        }
    }
}

/// The credit for a completed response.
const RESPONSE_CREDIT: u32 = 10;
/// The credit in the budget of streams that end early. As a reset costs 10, a client may reset one
/// of six requests indefinitely.
const RESPONSE_RESET_CREDIT: u32 = 2;
/// The credit for a sent DATA frame: a client may respond to it with a PING, to measure the round
/// trip.
const DATA_SENT_CREDIT: u32 = 2;
/// The number of free WINDOW_UPDATE frames per sent DATA frame: one for the stream, and one for the
/// connection.
const FREE_WINDOW_UPDATES: u32 = 2;
/// The number of content bytes that are credited with 1.
const BYTES_PER_UNIT: u32 = 256;
/// The number of sent content bytes that are credited with 1 in the budget of streams that end
/// early, so that a download pays for its own cancellation.
const SENT_PER_UNIT: u32 = 4096;

/// The budgets. Each is limited to `limits.abuse_budget_max`.
#[derive(Debug)]
pub(super) struct Budget {
    units_left: u32,
    /// Content bytes that were not credited yet.
    uncredited_bytes: u32,
    /// The remaining budget for streams that end early.
    reset_units_left: u32,
    /// Sent content bytes that were not credited to that budget yet.
    uncredited_sent_bytes: u32,
    /// WINDOW_UPDATE frames that are free, because they may acknowledge DATA frames. They are
    /// counted separately, because credits earned during a burst of DATA frames are lost when the
    /// budget is full, and the acknowledgements arrive later.
    free_window_updates: u32,
    /// Bytes that may still arrive on streams that the server has ended.
    late_bytes_allowed: u32,
    /// Acknowledgements and resets written since the output was last flushed.
    pending_control_frames: u16,
    /// The time up to which elapsed time was credited.
    last_refill_ms: Option<u64>,
}

impl Budget {
    pub(super) const fn new(limits: &Limits) -> Self {
        Self {
            units_left: limits.abuse_budget_max,
            uncredited_bytes: 0,
            reset_units_left: limits.abuse_budget_max,
            uncredited_sent_bytes: 0,
            free_window_updates: 0,
            late_bytes_allowed: 0,
            pending_control_frames: 0,
            last_refill_ms: None,
        }
    }

    /// Charges an action. Fails if a budget is too small for it.
    #[inline]
    pub(super) fn charge(&mut self, cost: Cost) -> Result<(), Http2Error> {
        let units_left = self.units_left.checked_sub(cost.units());
        let reset_units_left = self.reset_units_left.checked_sub(cost.reset_units());
        (self.units_left, self.reset_units_left) =
            units_left.zip(reset_units_left).ok_or(Http2Error::AbuseBudgetExhausted)?;
        Ok(())
    }

    /// Charges a WINDOW_UPDATE, unless it may acknowledge a DATA frame.
    #[inline]
    pub(super) fn charge_window_update(&mut self) -> Result<(), Http2Error> {
        match self.free_window_updates.checked_sub(1) {
            Some(updates) => self.free_window_updates = updates,
            None => self.charge(Cost::WindowUpdate)?,
        }
        Ok(())
    }

    /// Records that the server has reset a stream. Until the peer receives the reset, it may send
    /// as much as the stream's window; all content in transit fits into the connection's window.
    pub(super) fn on_stream_reset(
        &mut self,
        initial_stream_window: u32,
        initial_connection_window: u32,
    ) {
        self.late_bytes_allowed = self
            .late_bytes_allowed
            .saturating_add(initial_stream_window)
            .min(initial_connection_window);
    }

    /// Charges a DATA frame on a closed stream, unless it may have been in transit when the server
    /// ended the stream. Empty ones are always charged: they are not limited by a window.
    pub(super) fn charge_late_data(&mut self, length: u32) -> Result<(), Http2Error> {
        match self.late_bytes_allowed.checked_sub(length).filter(|_| length > 0) {
            Some(allowed) => self.late_bytes_allowed = allowed,
            None => self.charge(Cost::FrameOnClosedStream)?,
        }
        Ok(())
    }

    /// Counts an acknowledgement or a reset that the peer has to read.
    pub(super) fn count_control_frame(&mut self, limits: &Limits) -> Result<(), Http2Error> {
        if self.pending_control_frames >= limits.pending_control_frames_max {
            return Err(Http2Error::PendingControlFramesExceeded);
        }
        self.pending_control_frames += 1;
        Ok(())
    }

    /// Records that all output was flushed.
    pub(super) fn control_frames_flushed(&mut self) {
        self.pending_control_frames = 0;
    }

    /// Credits a complete response.
    #[inline]
    pub(super) fn credit_response(&mut self, limits: &Limits) {
        self.credit(limits, RESPONSE_CREDIT);
        self.credit_resets(limits, RESPONSE_RESET_CREDIT);
    }

    /// Credits transferred content.
    #[inline]
    pub(super) fn credit_received(&mut self, limits: &Limits, bytes: u32) {
        let bytes = self.uncredited_bytes + bytes;
        self.uncredited_bytes = bytes % BYTES_PER_UNIT;
        self.credit(limits, bytes / BYTES_PER_UNIT);
    }

    /// Credits a sent DATA frame, whatever its size: a client may acknowledge each of them. For a
    /// small fragment only the bytes are credited, unless it was held back before (`hold.rs`): such
    /// a fragment is sent immediately only if the client's whole window is small, and a client that
    /// opens such a window byte by byte is charged for each update.
    #[inline]
    pub(super) fn credit_sent(&mut self, limits: &Limits, bytes: u32, is_fragment: bool) {
        self.credit_received(limits, bytes);
        let sent = self.uncredited_sent_bytes + bytes;
        self.uncredited_sent_bytes = sent % SENT_PER_UNIT;
        self.credit_resets(limits, sent / SENT_PER_UNIT);
        if bytes >= BYTES_PER_UNIT || !is_fragment {
            self.credit(limits, DATA_SENT_CREDIT);
            self.free_window_updates = self.free_window_updates.saturating_add(FREE_WINDOW_UPDATES);
        }
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
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            self.credit(limits, units);
            self.credit_resets(limits, units);
        }
    }

    pub(super) fn units_left(&self) -> u32 {
        self.units_left.min(self.reset_units_left)
    }

    #[inline]
    fn credit(&mut self, limits: &Limits, units: u32) {
        self.units_left = self.units_left.saturating_add(units).min(limits.abuse_budget_max);
    }

    #[inline]
    fn credit_resets(&mut self, limits: &Limits, units: u32) {
        self.reset_units_left =
            self.reset_units_left.saturating_add(units).min(limits.abuse_budget_max);
    }
}
