//! The set of streams that were woken since the last turn.
//!
//! Each stream has its own waker, so a turn polls only the streams that were woken. The first
//! stream that is woken after a turn also wakes the connection.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The slots of woken streams, and the connection's waker. Any thread can wake a stream.
#[derive(Default)]
pub(super) struct ReadySet(Mutex<ReadySetInner>);

#[derive(Default)]
struct ReadySetInner {
    /// One bit per slot.
    words: Vec<u64>,
    has_woken: bool,
    /// The waker to call when the first bit is set. `None` during a turn.
    connection: Option<Waker>,
}

impl ReadySet {
    /// Creates the waker of a stream.
    pub(super) fn waker(self: &Arc<Self>, slot: u32) -> Waker {
        Waker::from(Arc::new(StreamWaker { ready_set: Arc::clone(self), slot }))
    }

    /// Begins a turn: moves the slots of woken streams to `slots`.
    pub(super) fn take_woken(&self, slots: &mut Vec<u32>) {
        let mut set = self.lock();
        set.connection = None;
        if !take(&mut set.has_woken) {
            return;
        }
        for (index, word) in (0..).zip(&mut set.words) {
            let mut word = take(word);
            while word != 0 {
                slots.push(index * u64::BITS + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }

    /// Ends a turn: the next stream that is woken also wakes `connection`. If a stream has been
    /// woken during the turn, does nothing and returns false.
    pub(super) fn arm(&self, connection: &Waker) -> bool {
        let mut set = self.lock();
        if set.has_woken {
            return false;
        }
        set.connection = Some(connection.clone());
        true
    }

    /// Clears the connection's waker and all wake-ups.
    pub(super) fn clear(&self) {
        let connection = {
            let mut set = self.lock();
            set.words.fill(0);
            set.has_woken = false;
            set.connection.take()
        };
        drop(connection);
    }

    /// Marks a stream as woken.
    pub(super) fn wake(&self, slot: u32) {
        let connection = {
            let mut set = self.lock();
            let word = (slot / u64::BITS) as usize;
            if set.words.len() <= word {
                set.words.resize(word + 1, 0);
            }
            set.words[word] |= 1 << (slot % u64::BITS);
            set.has_woken = true;
            set.connection.take()
        };
        if let Some(connection) = connection {
            connection.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReadySetInner> {
        // No code that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes one stream.
struct StreamWaker {
    ready_set: Arc<ReadySet>,
    slot: u32,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.ready_set.wake(self.slot);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready_set.wake(self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_each_woken_stream_once_and_wakes_the_connection_once() {
        let ready = Arc::new(ReadySet::default());
        let connection = Arc::new(ReadySet::default());
        assert!(ready.arm(&connection.waker(7)));
        for slot in [3, 64, 200, 3] {
            ready.wake(slot);
        }
        assert!(!ready.arm(&connection.waker(7)));
        let (mut slots, mut connection_wakes) = (Vec::new(), Vec::new());
        ready.take_woken(&mut slots);
        connection.take_woken(&mut connection_wakes);
        assert_eq!((slots, connection_wakes), (vec![3, 64, 200], vec![7]));
        let mut again = Vec::new();
        ready.take_woken(&mut again);
        assert!(again.is_empty());
    }
}
