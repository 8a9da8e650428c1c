//! When the runtime looked for what it works on now.
//!
//! tokio takes a few sockets from the kernel at a time, and the others wait there. So the queue of ready
//! tasks does not tell how long what becomes ready has to wait. A *mark* does: a byte on a socket pair of
//! the worker's own, behind all that is ready when it is sent, with the kernel and on this thread. When it
//! comes up, what is worked on from then on became ready after the mark was sent.
//!
//! A worker that sleeps now and then needs no marks: when it wakes up, nothing has waited. Where there are
//! no socket pairs, every look at the kernel counts as a sleep, which tells of less than there is.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a worker is awake before it sends a mark: those that have little to do send none.
const AWAKE_MIN: Duration = Duration::from_millis(1);

/// When the runtime looked for what it works on now.
pub(crate) struct Look {
    start: Instant,
    /// How often the thread has slept, or looked at the kernel because nothing was ready.
    sleeps: Arc<AtomicU64>,
    /// How often it had when somebody asked last, or when the last mark came up.
    seen: Cell<u64>,
    began: Cell<Duration>,
    mark: mark::Mark,
}

impl Look {
    pub(crate) fn new(start: Instant, sleeps: Arc<AtomicU64>) -> Self {
        let (seen, began) = (Cell::default(), Cell::default());
        Self { start, sleeps, seen, began, mark: mark::Mark::default() }
    }

    /// When the runtime looked for what it works on now.
    pub(crate) fn began(&self) -> Duration {
        let now = self.start.elapsed();
        let slept = self.sleeps.load(Ordering::Relaxed);
        let has_slept = self.seen.replace(slept) != slept;
        match self.mark.state() {
            // A thread does not sleep before it has seen the mark.
            mark::State::Sent => {}
            // After it, a look at the kernel may have been no sleep, but it was a short one then.
            mark::State::Came { sent, at } => {
                let is_sleep = has_slept && now.saturating_sub(at) >= AWAKE_MIN;
                self.began.set(if is_sleep { now } else { sent });
            }
            mark::State::None if has_slept => self.began.set(now),
            mark::State::None => {}
        }
        if now.saturating_sub(self.began.get()) >= AWAKE_MIN {
            self.mark.send(now, self.start);
        }
        self.began.get()
    }

    /// How many tasks of the runtime are for this.
    pub(crate) fn tasks(&self) -> usize {
        self.mark.tasks()
    }
}

/// Counts a sleep, on the worker's thread.
pub(crate) fn slept(sleeps: &AtomicU64) {
    sleeps.store(sleeps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cfg(unix)]
mod mark {
    use std::cell::{Cell, OnceCell};
    use std::rc::Rc;
    use std::time::{Duration, Instant};
    use tokio::net::UnixStream;

    /// How far a mark is.
    #[derive(Clone, Copy, Default)]
    pub(super) enum State {
        #[default]
        None,
        Sent,
        /// It came up, and nobody has asked since.
        Came {
            sent: Duration,
            at: Duration,
        },
    }

    #[derive(Default)]
    pub(super) struct Mark {
        /// Where marks are sent; none if there was no descriptor for that.
        sender: OnceCell<Option<UnixStream>>,
        shared: Rc<Shared>,
    }

    #[derive(Default)]
    struct Shared {
        sent: Cell<Option<Duration>>,
        state: Cell<State>,
    }

    impl Mark {
        /// How far the mark is. That it came up is told once.
        pub(super) fn state(&self) -> State {
            let state = self.shared.state.get();
            if matches!(state, State::Came { .. }) {
                self.shared.state.set(State::None);
            }
            state
        }

        /// Sends a mark, unless one is on its way.
        pub(super) fn send(&self, now: Duration, start: Instant) {
            if self.shared.sent.get().is_some() {
                return;
            }
            let sender = self.sender.get_or_init(|| receive(&self.shared, start));
            if sender.as_ref().is_some_and(|sender| sender.try_write(&[0]).is_ok()) {
                self.shared.sent.set(Some(now));
                self.shared.state.set(State::Sent);
            }
        }

        pub(super) fn tasks(&self) -> usize {
            usize::from(matches!(self.sender.get(), Some(Some(_))))
        }
    }

    /// Begins to receive marks.
    fn receive(shared: &Rc<Shared>, start: Instant) -> Option<UnixStream> {
        let (sender, receiver) = UnixStream::pair().ok()?;
        let shared = Rc::clone(shared);
        tokio::task::spawn_local(async move {
            let mut bytes = [0; 8];
            while receiver.readable().await.is_ok() {
                match receiver.try_read(&mut bytes) {
                    Ok(0) => return,
                    Ok(_) => {
                        if let Some(sent) = shared.sent.take() {
                            shared.state.set(State::Came { sent, at: start.elapsed() });
                        }
                    }
                    // It asks to be woken now.
                    Err(_) => {}
                }
            }
        });
        Some(sender)
    }
}

#[cfg(not(unix))]
mod mark {
    use std::time::{Duration, Instant};

    #[derive(Clone, Copy)]
    #[expect(dead_code, reason = "there are no marks here")]
    pub(super) enum State {
        None,
        Sent,
        Came { sent: Duration, at: Duration },
    }

    #[derive(Default)]
    pub(super) struct Mark;

    impl Mark {
        pub(super) fn state(&self) -> State {
            State::None
        }

        pub(super) fn send(&self, _: Duration, _: Instant) {}

        pub(super) fn tasks(&self) -> usize {
            0
        }
    }
}
