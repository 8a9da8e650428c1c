//! The way of lines from one worker to the thread that writes them.

use super::metrics::Figures;
use super::sink::Sink;
use peregrine_server::Lines;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;

/// What a slot keeps of its memory when it was emptied.
pub(super) const KEPT_BYTES_MAX: usize = 64 * 1024;

/// How often a worker looks for a slot that is free. Two tries can both fail, if the other side goes on to the second
/// slot between them. After that it pauses before it comes back to the first.
const TRIES: usize = 4;

/// Lines of one worker that wait to be written.
#[derive(Debug)]
pub(super) struct Queue {
    number: usize,
    bytes_max: usize,
    /// The other side holds one lock at a time, and only to take what is there. So one of the two is always free,
    /// and a worker never waits, not even for a thread that has a lock and no CPU: see [`TRIES`].
    slots: [Mutex<Vec<u8>>; 2],
    bell: Arc<Bell>,
    figures: Arc<Figures>,
}

impl Queue {
    pub(super) fn new(
        number: usize,
        bytes_max: usize,
        bell: &Arc<Bell>,
        figures: &Arc<Figures>,
    ) -> Self {
        let (bell, figures) = (Arc::clone(bell), Arc::clone(figures));
        Self { number, bytes_max, slots: Default::default(), bell, figures }
    }

    /// Takes what waits in one of the slots, and leaves `empty` in its place.
    pub(super) fn take(&self, slot: usize, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty(), "what is in it would be written twice");
        let mut waiting = self.slots[slot].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *waiting, empty)
    }

    pub(super) const SLOTS: usize = 2;
}

/// The end of a queue that its worker has.
pub(super) struct Producer(pub(super) Arc<Queue>);

impl Lines for Producer {
    fn push(&self, line: &[u8]) {
        self.0.push(line);
    }
}

impl Queue {
    /// Takes a line, or drops and counts it. Called by its worker only.
    pub(super) fn push(&self, line: &[u8]) {
        let figures = self.figures.of(self.number);
        for slot in self.slots.iter().cycle().take(TRIES) {
            let mut waiting = match slot.try_lock() {
                Ok(waiting) => waiting,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let before = waiting.len();
            if before + line.len() > self.bytes_max {
                break;
            }
            waiting.extend_from_slice(line);
            drop(waiting);
            figures.taken.add(1);
            let half = self.bytes_max / 2;
            return self.bell.ring(before < half && before + line.len() >= half);
        }
        figures.dropped.add(1);
    }
}

/// What wakes the thread that writes.
#[derive(Debug, Default)]
pub(super) struct Bell {
    /// Something waits, and the thread knows. Whoever finds it unset after handing something over wakes the
    /// thread; the thread unsets it before it takes what waits. The lock of the slot puts the two in order.
    is_rung: AtomicBool,
    /// There will soon be no room for more.
    is_urgent: AtomicBool,
    is_to_reopen: AtomicBool,
    /// Where lines are to go from now on.
    next: Mutex<Option<Sink>>,
    /// Where the log is in its life: see [`Life`].
    life: AtomicU8,
    thread: OnceLock<Thread>,
}

/// Where a log is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It goes on.
    On,
    /// It ends when no worker is left.
    Leaving,
    /// It ends when everything is written.
    Ending,
}

impl Bell {
    pub(super) fn wakes(&self, thread: Thread) {
        let _ = self.thread.set(thread);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Something waits; and it is `urgent` if there will soon be no room for more.
    #[inline]
    fn ring(&self, is_urgent: bool) {
        if is_urgent {
            self.is_urgent.store(true, Ordering::Release);
        }
        let is_news = !self.is_rung() && !self.is_rung.swap(true, Ordering::AcqRel);
        if is_news || is_urgent {
            self.wake();
        }
    }

    /// It is heard. To be called before what waits is taken.
    pub(super) fn answer(&self) {
        self.is_rung.swap(false, Ordering::AcqRel);
        self.is_urgent.swap(false, Ordering::AcqRel);
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.is_urgent.load(Ordering::Acquire)
    }

    pub(super) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Acquire)
    }

    pub(super) fn reopen(&self) {
        self.is_to_reopen.store(true, Ordering::Release);
        self.is_rung.store(true, Ordering::Release);
        self.wake();
    }

    /// The last one that is said counts.
    pub(super) fn switch(&self, sink: Sink) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
        self.is_rung.store(true, Ordering::Release);
        self.wake();
    }

    /// Is there a place to write to in place of the present one, or is that to be opened again?
    pub(super) fn wants_another(&self) -> bool {
        self.is_to_reopen.load(Ordering::Acquire) || self.has_next()
    }

    fn has_next(&self) -> bool {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(super) fn takes_next(&self) -> Option<Sink> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn takes_reopen(&self) -> bool {
        self.is_to_reopen.swap(false, Ordering::AcqRel)
    }

    pub(super) fn end(&self) {
        self.go(Life::Ending);
    }

    pub(super) fn leave(&self) {
        self.go(Life::Leaving);
    }

    fn go(&self, life: Life) {
        self.life.fetch_max(life as u8, Ordering::AcqRel);
        self.wake();
    }

    pub(super) fn life(&self) -> Life {
        match self.life.load(Ordering::Acquire) {
            0 => Life::On,
            1 => Life::Leaving,
            _ => Life::Ending,
        }
    }
}
