//! The queue of lines from one worker to the thread that writes them.

use super::metrics::AccessLogMetrics;
use super::sink::Sink;
use peregrine_server::AccessLogSink;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;

/// The maximum capacity of a buffer that is reused after its lines are written.
pub(super) const RETAINED_BYTES_MAX: usize = 64 * 1024;

/// How many times a worker tries to lock a slot. Two attempts can both fail if the writer thread
/// moves from the first slot to the second between them. The writer thread then pauses before it
/// returns to the first slot, so further attempts succeed.
const LOCK_ATTEMPTS: usize = 4;

/// The lines of one worker that wait to be written.
#[derive(Debug)]
pub(super) struct LineQueue {
    /// The index of the worker.
    worker: usize,
    /// The maximum size of the lines in each slot, so both together can hold twice as much.
    bytes_max: usize,
    /// The worker uses the second slot only while the writer thread has locked the first one. The
    /// writer thread locks one slot at a time, and only to remove its contents. So one of the two
    /// slots is always free, and a worker never waits, even if the writer thread is preempted while
    /// it holds a lock; see [`LOCK_ATTEMPTS`].
    slots: [Mutex<Vec<u8>>; 2],
    signal: Arc<WriterSignal>,
    metrics: Arc<AccessLogMetrics>,
}

impl LineQueue {
    pub(super) fn new(
        worker: usize,
        bytes_max: usize,
        signal: &Arc<WriterSignal>,
        metrics: &Arc<AccessLogMetrics>,
    ) -> Self {
        let (signal, metrics) = (Arc::clone(signal), Arc::clone(metrics));
        Self { worker, bytes_max, slots: Default::default(), signal, metrics }
    }

    /// Removes and returns the lines of one slot, and stores the buffer `empty` in their place.
    pub(super) fn take(&self, slot: usize, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty(), "its lines would be written twice");
        let mut lines = self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *lines, empty)
    }

    pub(super) const SLOTS: usize = 2;
}

/// The worker's end of a queue.
pub(super) struct Producer(pub(super) Arc<LineQueue>);

impl AccessLogSink for Producer {
    fn write_line(&self, line: &[u8]) {
        self.0.push(line);
    }
}

impl LineQueue {
    /// Queues a line. If the queue is full, drops the line and counts it. Only the queue's worker
    /// calls this.
    pub(super) fn push(&self, line: &[u8]) {
        let counters = self.metrics.worker(self.worker);
        for slot in self.slots.iter().cycle().take(LOCK_ATTEMPTS) {
            let mut lines = match slot.try_lock() {
                Ok(lines) => lines,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let len_before = lines.len();
            if len_before + line.len() > self.bytes_max {
                break;
            }
            lines.extend_from_slice(line);
            drop(lines);
            counters.accepted.add(1);
            // Only the line that crosses the half wakes the thread urgently.
            let half = self.bytes_max / 2;
            let becomes_half_full = len_before < half && len_before + line.len() >= half;
            return self.signal.notify(becomes_half_full);
        }
        counters.dropped.add(1);
    }
}

/// Wakes the writer thread.
#[derive(Debug, Default)]
pub(super) struct WriterSignal {
    /// Whether the thread has been woken, for lines or a change of the output, and has not begun to
    /// handle them. A worker that reads false after queueing a line wakes the thread. The thread
    /// clears this flag before it removes lines from a slot. The slot's lock orders the two
    /// accesses.
    is_set: AtomicBool,
    /// Whether a queue has become half full, so that the thread must not wait for more lines.
    is_urgent: AtomicBool,
    is_reopen_requested: AtomicBool,
    /// The output to switch to.
    next_sink: Mutex<Option<Sink>>,
    /// A [`WriterState`].
    state: AtomicU8,
    thread: OnceLock<Thread>,
}

/// The state of the writer thread. States only advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterState {
    Running,
    /// The thread ends when all workers have ended and all lines are written.
    Detached,
    /// The thread ends when all lines are written.
    Flushing,
}

impl WriterSignal {
    pub(super) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
        // Earlier wake-ups had no effect, because the thread was not known.
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Wakes the thread for a queued line, if it has not been woken yet. `is_urgent` means that the
    /// queue has become half full.
    #[inline]
    fn notify(&self, is_urgent: bool) {
        if is_urgent {
            self.is_urgent.store(true, Ordering::Release);
        }
        let must_wake = !self.is_set() && !self.is_set.swap(true, Ordering::AcqRel);
        if must_wake || is_urgent {
            self.wake();
        }
    }

    /// Acknowledges the wake-up. Must be called before lines are removed from a slot.
    pub(super) fn clear(&self) {
        self.is_set.swap(false, Ordering::AcqRel);
        self.is_urgent.swap(false, Ordering::AcqRel);
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Acquire)
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    pub(super) fn request_reopen(&self) {
        self.is_reopen_requested.store(true, Ordering::Release);
        self.is_set.store(true, Ordering::Release);
        self.wake();
    }

    /// Switches to another output. The last call wins.
    pub(super) fn switch(&self, sink: Sink) {
        *self.next_sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
        self.is_set.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether there is an output to switch to, or a reopen was requested.
    pub(super) fn wants_other_sink(&self) -> bool {
        self.is_reopen_requested.load(Ordering::Acquire) || self.has_next_sink()
    }

    fn has_next_sink(&self) -> bool {
        self.next_sink.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(super) fn take_next_sink(&self) -> Option<Sink> {
        self.next_sink.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn take_reopen(&self) -> bool {
        self.is_reopen_requested.swap(false, Ordering::AcqRel)
    }

    pub(super) fn flush(&self) {
        self.set_state(WriterState::Flushing);
    }

    pub(super) fn detach(&self) {
        self.set_state(WriterState::Detached);
    }

    fn set_state(&self, state: WriterState) {
        self.state.fetch_max(state as u8, Ordering::AcqRel);
        self.wake();
    }

    pub(super) fn state(&self) -> WriterState {
        match self.state.load(Ordering::Acquire) {
            0 => WriterState::Running,
            1 => WriterState::Detached,
            _ => WriterState::Flushing,
        }
    }
}
