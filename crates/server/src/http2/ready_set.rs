//! The set of streams that were woken since the last turn.
//!
//! Each stream has its own waker, so a turn polls only the streams that were woken. The first
//! stream that is woken after a turn also wakes the connection.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The numbers of woken streams, and the connection's waker. A stream may be woken from any thread.
#[derive(Default)]
pub(super) struct ReadySet(Mutex<ReadySetInner>);

#[derive(Default)]
struct ReadySetInner {
    /// One bit per stream number.
    words: Vec<u64>,
    is_any: bool,
    /// The waker to call when the first bit is set; `None` during a turn.
    connection: Option<Waker>,
}

impl ReadySet {
    /// The waker of a stream.
    pub(super) fn waker(self: &Arc<Self>, number: u32) -> Waker {
        Waker::from(Arc::new(StreamWaker { ready_set: Arc::clone(self), number }))
    }

    /// Begins a turn: moves the numbers of woken streams to `numbers`.
    pub(super) fn take(&self, numbers: &mut Vec<u32>) {
        let mut set = self.lock();
        set.connection = None;
        if !take(&mut set.is_any) {
            return;
        }
        for (index, word) in (0..).zip(&mut set.words) {
            let mut word = take(word);
            while word != 0 {
                numbers.push(index * u64::BITS + word.trailing_zeros());
                word &= word - 1;
            }
        }
    }

    /// Ends a turn: when the next stream is woken, it wakes `connection`. Returns false if a stream
    /// was woken already.
    pub(super) fn arm(&self, connection: &Waker) -> bool {
        let mut set = self.lock();
        if set.is_any {
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
            set.is_any = false;
            set.connection.take()
        };
        drop(connection);
    }

    /// Marks a stream as woken.
    pub(super) fn wake(&self, number: u32) {
        let connection = {
            let mut set = self.lock();
            let word = (number / u64::BITS) as usize;
            if set.words.len() <= word {
                set.words.resize(word + 1, 0);
            }
            set.words[word] |= 1 << (number % u64::BITS);
            set.is_any = true;
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
    number: u32,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.ready_set.wake(self.number);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready_set.wake(self.number);
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
        for number in [3, 64, 200, 3] {
            ready.wake(number);
        }
        assert!(!ready.arm(&connection.waker(7)));
        let (mut numbers, mut connections) = (Vec::new(), Vec::new());
        ready.take(&mut numbers);
        connection.take(&mut connections);
        assert_eq!((numbers, connections), (vec![3, 64, 200], vec![7]));
        let mut again = Vec::new();
        ready.take(&mut again);
        assert!(again.is_empty());
    }
}
