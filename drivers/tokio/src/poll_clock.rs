//! Finds out when the runtime polled the kernel for the current work, and so how long that work may
//! have waited.
//!
//! tokio takes a limited number of sockets from the kernel at a time, and the others wait there. So
//! the queue of ready tasks does not show how long a newly ready socket has to wait. A *marker*
//! does: a byte on a socket pair of the worker, which is queued behind everything that is ready at
//! that time, both in the kernel and on this thread. Everything that runs after the marker is
//! received became ready after the marker was sent.
//!
//! A worker that sleeps regularly needs no markers: when it wakes up, nothing has waited. On
//! systems without socket pairs, every poll of the kernel counts as a sleep, which underestimates
//! the wait.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A worker that has been awake for this long sends a marker, so a worker with little work never
/// sends one.
const MARKER_INTERVAL: Duration = Duration::from_millis(1);

/// When the runtime polled the kernel for the current work.
pub(crate) struct PollClock {
    start: Instant,
    /// How often the thread has slept, or polled the kernel because no task was ready.
    parks: Arc<AtomicU64>,
    /// The value of `parks` at the last call of `polled_at`.
    seen_parks: Cell<u64>,
    polled_at: Cell<Duration>,
    marker: marker::Marker,
}

impl PollClock {
    pub(crate) fn new(start: Instant, parks: Arc<AtomicU64>) -> Self {
        let (seen_parks, polled_at) = (Cell::default(), Cell::default());
        Self { start, parks, seen_parks, polled_at, marker: marker::Marker::default() }
    }

    /// Returns when the runtime polled the kernel for the current work.
    pub(crate) fn polled_at(&self) -> Duration {
        let now = self.start.elapsed();
        let parks = self.parks.load(Ordering::Relaxed);
        let has_slept = self.seen_parks.replace(parks) != parks;
        match self.marker.state() {
            // The thread cannot sleep before it has received the marker, so if `parks` has changed,
            // the kernel was only polled.
            marker::MarkerState::Sent => {}
            // If `parks` has changed soon after the marker was received, the kernel may only have
            // been polled. Later, the thread must have slept.
            marker::MarkerState::Received { sent, at } => {
                let is_sleep = has_slept && now.saturating_sub(at) >= MARKER_INTERVAL;
                self.polled_at.set(if is_sleep { now } else { sent });
            }
            marker::MarkerState::None if has_slept => self.polled_at.set(now),
            marker::MarkerState::None => {}
        }
        if now.saturating_sub(self.polled_at.get()) >= MARKER_INTERVAL {
            self.marker.send(now, self.start);
        }
        self.polled_at.get()
    }

    /// The number of runtime tasks that the clock itself uses.
    pub(crate) fn tasks(&self) -> usize {
        self.marker.tasks()
    }
}

/// Counts a sleep or a poll of the kernel. Called only on the worker's thread.
pub(crate) fn count_park(parks: &AtomicU64) {
    parks.store(parks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

#[cfg(unix)]
mod marker {
    use std::cell::{Cell, OnceCell};
    use std::rc::Rc;
    use std::time::{Duration, Instant};
    use tokio::net::UnixStream;

    /// The state of a marker.
    #[derive(Clone, Copy, Default)]
    pub(super) enum MarkerState {
        #[default]
        None,
        Sent,
        /// Received, but not reported by [`Marker::state`] yet.
        Received {
            sent: Duration,
            at: Duration,
        },
    }

    #[derive(Default)]
    pub(super) struct Marker {
        /// The sending end; `None` if no descriptor was available.
        sender: OnceCell<Option<UnixStream>>,
        shared: Rc<MarkerShared>,
    }

    #[derive(Default)]
    struct MarkerShared {
        sent: Cell<Option<Duration>>,
        state: Cell<MarkerState>,
    }

    impl Marker {
        /// Returns the state of the marker. Reports each received marker only once.
        pub(super) fn state(&self) -> MarkerState {
            let state = self.shared.state.get();
            if matches!(state, MarkerState::Received { .. }) {
                self.shared.state.set(MarkerState::None);
            }
            state
        }

        /// Sends a marker, unless one is in flight.
        pub(super) fn send(&self, now: Duration, start: Instant) {
            if self.shared.sent.get().is_some() {
                return;
            }
            let sender = self.sender.get_or_init(|| spawn_receiver(&self.shared, start));
            if sender.as_ref().is_some_and(|sender| sender.try_write(&[0]).is_ok()) {
                self.shared.sent.set(Some(now));
                self.shared.state.set(MarkerState::Sent);
            }
        }

        pub(super) fn tasks(&self) -> usize {
            usize::from(matches!(self.sender.get(), Some(Some(_))))
        }
    }

    /// Starts a task that receives markers.
    fn spawn_receiver(shared: &Rc<MarkerShared>, start: Instant) -> Option<UnixStream> {
        let (sender, receiver) = UnixStream::pair().ok()?;
        let shared = Rc::clone(shared);
        tokio::task::spawn_local(async move {
            let mut bytes = [0; 8];
            while receiver.readable().await.is_ok() {
                match receiver.try_read(&mut bytes) {
                    Ok(0) => return,
                    Ok(_) => {
                        if let Some(sent) = shared.sent.take() {
                            shared.state.set(MarkerState::Received { sent, at: start.elapsed() });
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
mod marker {
    use std::time::{Duration, Instant};

    #[derive(Clone, Copy)]
    #[expect(dead_code, reason = "markers are not supported here")]
    pub(super) enum MarkerState {
        None,
        Sent,
        Received { sent: Duration, at: Duration },
    }

    #[derive(Default)]
    pub(super) struct Marker;

    impl Marker {
        pub(super) fn state(&self) -> MarkerState {
            MarkerState::None
        }

        pub(super) fn send(&self, _: Duration, _: Instant) {}

        pub(super) fn tasks(&self) -> usize {
            0
        }
    }
}
