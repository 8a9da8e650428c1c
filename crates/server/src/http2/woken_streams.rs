//! The set of streams that were woken since the last turn.
//!
//! Each stream has its own waker, so a turn polls only the streams that were woken. The first
//! stream that is woken after a turn also wakes the connection.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The slots of woken streams, and the connection's waker. Any thread can wake a stream.
#[derive(Default)]
pub(super) struct WokenStreams(Mutex<WokenStreamsInner>);

#[derive(Default)]
struct WokenStreamsInner {
    /// One bit per slot, set if the stream was woken.
    words: Vec<u64>,
    /// Whether any bit is set.
    has_woken: bool,
    /// The waker to call when the first bit is set. `None` during a turn.
    connection_waker: Option<Waker>,
}

impl WokenStreams {
    /// Creates the waker of a stream.
    pub(super) fn waker(self: &Arc<Self>, slot: u32) -> Waker {
        Waker::from(Arc::new(StreamWaker { woken_streams: Arc::clone(self), slot }))
    }

    /// Begins a turn: moves the slots of woken streams to `slots`.
    pub(super) fn take_woken(&self, slots: &mut Vec<u32>) {
        let mut set = self.lock();
        set.connection_waker = None;
        if !take(&mut set.has_woken) {
            return;
        }
        for (index, word) in (0..).zip(&mut set.words) {
            let mut bits = take(word);
            while bits != 0 {
                slots.push(index * u64::BITS + bits.trailing_zeros());
                // Clears the lowest bit that is set.
                bits &= bits - 1;
            }
        }
    }

    /// Ends a turn: the next stream that is woken also calls `connection_waker`. If a stream has
    /// been woken during the turn, does not store the waker, and returns false.
    pub(super) fn arm(&self, connection_waker: &Waker) -> bool {
        let mut set = self.lock();
        if set.has_woken {
            return false;
        }
        set.connection_waker = Some(connection_waker.clone());
        true
    }

    /// Clears the connection's waker and all wake-ups.
    pub(super) fn clear(&self) {
        let mut set = self.lock();
        set.words.fill(0);
        set.has_woken = false;
        set.connection_waker = None;
    }

    /// Marks a stream as woken.
    pub(super) fn wake(&self, slot: u32) {
        let connection_waker = {
            let mut set = self.lock();
            let word_index = (slot / u64::BITS) as usize;
            if set.words.len() <= word_index {
                set.words.resize(word_index + 1, 0);
            }
            set.words[word_index] |= 1 << (slot % u64::BITS);
            set.has_woken = true;
            set.connection_waker.take()
        };
        if let Some(connection_waker) = connection_waker {
            connection_waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, WokenStreamsInner> {
        // The only other code that runs under the lock is `clone` and `drop` of the connection's
        // waker. The set is consistent even if one of them panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one stream.
struct StreamWaker {
    woken_streams: Arc<WokenStreams>,
    slot: u32,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.woken_streams.wake(self.slot);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken_streams.wake(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_each_woken_stream_once_and_wakes_the_connection_once() {
        let streams = Arc::new(WokenStreams::default());
        // Another set records the wake-ups of the connection, as slot 7.
        let wake_recorder = Arc::new(WokenStreams::default());
        assert!(streams.arm(&wake_recorder.waker(7)));
        for slot in [3, 64, 200, 3] {
            streams.wake(slot);
        }
        assert!(!streams.arm(&wake_recorder.waker(7)));
        let (mut slots, mut connection_wakes) = (Vec::new(), Vec::new());
        streams.take_woken(&mut slots);
        wake_recorder.take_woken(&mut connection_wakes);
        assert_eq!((slots, connection_wakes), (vec![3, 64, 200], vec![7]));
        let mut again = Vec::new();
        streams.take_woken(&mut again);
        assert!(again.is_empty());
    }
}
