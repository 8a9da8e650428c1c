//! Measures how long ready tasks have waited: when did the runtime poll the kernel for them?
//!
//! tokio takes a limited number of sockets from the kernel at a time, and the others wait there. So
//! the queue of ready tasks does not show how long a newly ready socket has to wait. A *mark* does:
//! a byte on a socket pair of the worker, which is queued behind everything that is ready at that
//! time, both in the kernel and on this thread. When the mark is received, all later work became
//! ready after the mark was sent.
//!
//! A worker that sleeps regularly needs no marks: when it wakes up, nothing has waited. On systems
//! without socket pairs, every poll of the kernel counts as a sleep, which underestimates the wait.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A worker that has been awake for this long sends a mark. Workers with little work send none.
const AWAKE_MIN: Duration = Duration::from_millis(1);

/// When the runtime polled the kernel for the current work.
pub(crate) struct Look {
    start: Instant,
    /// How often the thread has slept, or polled the kernel because no task was ready.
    sleeps: Arc<AtomicU64>,
    /// The value of `sleeps` at the last call, or when the last mark was received.
    seen: Cell<u64>,
    began: Cell<Duration>,
    mark: mark::Mark,
}

impl Look {
    pub(crate) fn new(start: Instant, sleeps: Arc<AtomicU64>) -> Self {
        let (seen, began) = (Cell::default(), Cell::default());
        Self { start, sleeps, seen, began, mark: mark::Mark::default() }
    }

    /// Returns when the runtime polled the kernel for the current work.
    pub(crate) fn began(&self) -> Duration {
        let now = self.start.elapsed();
        let slept = self.sleeps.load(Ordering::Relaxed);
        let has_slept = self.seen.replace(slept) != slept;
        match self.mark.state() {
            // A thread does not sleep before it has received the mark.
            mark::State::Sent => {}
            // A poll of the kernel after that may not have been a sleep, but then it was short.
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

    /// The number of runtime tasks used for this.
    pub(crate) fn tasks(&self) -> usize {
        self.mark.tasks()
    }
}

/// Counts a sleep. Called on the worker's thread.
pub(crate) fn slept(sleeps: &AtomicU64) {
    sleeps.store(sleeps.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cfg(unix)]
mod mark {
    use std::cell::{Cell, OnceCell};
    use std::rc::Rc;
    use std::time::{Duration, Instant};
    use tokio::net::UnixStream;

    /// The state of a mark.
    #[derive(Clone, Copy, Default)]
    pub(super) enum State {
        #[default]
        None,
        Sent,
        /// It was received, and this was not reported yet.
        Came {
            sent: Duration,
            at: Duration,
        },
    }

    #[derive(Default)]
    pub(super) struct Mark {
        /// The sending end; `None` if no descriptor was available.
        sender: OnceCell<Option<UnixStream>>,
        shared: Rc<Shared>,
    }

    #[derive(Default)]
    struct Shared {
        sent: Cell<Option<Duration>>,
        state: Cell<State>,
    }

    impl Mark {
        /// Returns the state of the mark. Reports only once that it was received.
        pub(super) fn state(&self) -> State {
            let state = self.shared.state.get();
            if matches!(state, State::Came { .. }) {
                self.shared.state.set(State::None);
            }
            state
        }

        /// Sends a mark, unless one is in flight.
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

    /// Starts a task that receives marks.
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
                    // `readable` arranges the next wake-up.
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
    #[expect(dead_code, reason = "marks are not supported here")]
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
