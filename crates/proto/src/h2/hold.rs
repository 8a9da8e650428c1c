//! Holds back small fragments of content when a window has little room left.
//!
//! A client that acknowledges each DATA frame opens a full window by the size of one frame at a
//! time. A server that always fills the window would cut its content into ever smaller fragments,
//! each of which is acknowledged separately (the silly window syndrome, RFC 9293 §3.8.6.2.1). So a
//! fragment waits while the client still has bytes to acknowledge, which will open the window
//! further. It is sent after [`HOLD_MS`] in any case, because a client may not acknowledge anything
//! before it has received more.
//!
//! Content that fits into the window is never held back.

use super::connection::Connection;
use super::limits::Limits;
use super::streams::{Stream, StreamKey, Streams};

/// The maximum time for which a fragment is held back, in milliseconds.
const HOLD_MS: u64 = 50;

/// A fragment of at least this size is worth a frame, and is not held back.
const FRAGMENT_BYTES_MIN: u32 = 1024;

/// [`Stream::capacity_min`] of a stream whose fragment was held back long enough.
const RELEASED: u16 = 1;

/// The part of the available content that goes into one DATA frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FramePart {
    pub(super) len: usize,
    /// How much the frame would contain if the windows did not limit it.
    pub(super) unlimited_len: usize,
}

impl FramePart {
    /// Returns whether a window has cut the content.
    #[inline]
    pub(super) const fn is_fragment(self) -> bool {
        self.len < self.unlimited_len
    }
}

/// The streams whose next DATA frame waits for a larger window: those whose `capacity_min` is
/// larger than [`RELEASED`].
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldFragments {
    /// The number of such streams.
    count: u16,
    /// The time at which all of them are released.
    release_at_ms: u64,
    /// The time of the last call of `refill_budget`.
    now_ms: u64,
}

impl HeldFragments {
    pub(super) const NONE: Self = Self { count: 0, release_at_ms: 0, now_ms: 0 };

    /// Removes a stream. Returns whether its fragment had been released after `HOLD_MS`.
    #[inline]
    pub(super) fn remove(&mut self, stream: &mut Stream) -> bool {
        let capacity_min = std::mem::take(&mut stream.capacity_min);
        self.count -= u16::from(capacity_min > RELEASED);
        capacity_min == RELEASED
    }

    /// Checks all invariants.
    pub(super) fn assert_invariants(&self, streams: &Streams) {
        let held = streams.all().filter(|stream| stream.capacity_min > RELEASED);
        assert_eq!(held.count(), usize::from(self.count), "held streams are counted");
    }
}

impl Connection {
    /// Sets the time, in milliseconds of a monotonic clock: refills the budget, and releases
    /// content that was held back long enough. Call it once per turn, once per minute while the
    /// connection is idle, and at [`Self::next_release_at`].
    pub fn refill_budget(&mut self, limits: &Limits, now_ms: u64) {
        self.budget.refill(limits, now_ms);
        self.release_if_due(now_ms);
    }

    /// When [`refill_budget`](Self::refill_budget) must be called because content is held back, by
    /// the clock of that call. `None` if nothing is held back.
    #[must_use]
    pub fn next_release_at(&self) -> Option<u64> {
        (self.held_fragments.count > 0).then_some(self.held_fragments.release_at_ms)
    }

    /// Returns whether a stream has content for which its own window has no room, or so little room
    /// that the content is held back. For the connection's window, see
    /// [`is_connection_window_exhausted`](Self::is_connection_window_exhausted).
    #[must_use]
    pub fn is_stream_window_exhausted(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_some_and(|state| state.has_data && !state.may_send())
    }

    /// Returns whether there is content for which the connection's window has no room, or so little
    /// room that the content is held back.
    #[must_use]
    pub fn is_connection_window_exhausted(&self) -> bool {
        self.queues.next().is_some_and(|slot| !self.streams.at(slot).fits(self.send_window))
    }

    /// Returns whether a DATA frame must not be sent yet, because it would be a small fragment of
    /// the available content. The stream then waits until there is more room, or until it is
    /// released.
    pub(super) fn hold_back_fragment(&mut self, key: StreamKey, part: FramePart) -> bool {
        if !part.is_fragment() {
            return false;
        }
        let stream = self.streams.at(key.slot);
        let (window, unacknowledged) = if stream.send_window <= self.send_window {
            (stream.send_window, stream.unacknowledged)
        } else {
            (self.send_window, self.unacknowledged)
        };
        if window <= 0 || unacknowledged == 0 || stream.capacity_min == RELEASED {
            return false;
        }
        // A client with a small window may never open it further, so half of it is enough.
        let full_window = window.cast_unsigned().saturating_add(unacknowledged);
        let fragment_min = FRAGMENT_BYTES_MIN.min(full_window / 2) as usize;
        let capacity_min = part.unlimited_len.min(fragment_min);
        if part.len >= capacity_min {
            return false;
        }
        let capacity_min = u16::try_from(capacity_min).expect("at most FRAGMENT_BYTES_MIN");
        self.hold_stream(key, capacity_min);
        true
    }

    fn hold_stream(&mut self, key: StreamKey, capacity_min: u16) {
        if self.held_fragments.count == 0 {
            self.held_fragments.release_at_ms = self.held_fragments.now_ms.saturating_add(HOLD_MS);
        }
        let stream = self.streams.at_mut(key.slot);
        self.held_fragments.remove(stream);
        (stream.capacity_min, stream.has_data) = (capacity_min, true);
        self.held_fragments.count += 1;
        self.requeue(key.slot);
    }

    /// Releases the streams that are held back, if their time has come.
    #[inline]
    pub(super) fn release_if_due(&mut self, now_ms: u64) {
        self.held_fragments.now_ms = now_ms;
        if self.held_fragments.count > 0 && now_ms >= self.held_fragments.release_at_ms {
            self.release_all();
        }
    }

    #[cold]
    fn release_all(&mut self) {
        for slot in 0..self.streams.slots() {
            let stream = self.streams.at_mut(slot);
            if stream.id != 0 && stream.capacity_min > RELEASED {
                stream.capacity_min = RELEASED;
                self.requeue(slot);
            }
        }
        self.held_fragments.count = 0;
    }
}
