//! One request that is worked on for many that wait.

use super::entry::Entry;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// What those that wait learn in the end.
#[derive(Clone, Debug)]
pub(crate) enum Landed {
    /// The response, which may be theirs too.
    Kept(Arc<Entry>),
    /// A response that is not for others, or a panic, which their requests may not bring about: each asks on its own.
    Passed,
    /// Nobody works on it any more: somebody else must.
    Abandoned,
}

/// The request that is worked on, as all see it: workers share it.
#[derive(Default)]
pub(crate) struct Flight(Mutex<State>);

#[derive(Default)]
struct State {
    landed: Option<Landed>,
    waiting: Vec<(u64, Waker)>,
    tickets: u64,
    /// What it fetches was changed since it began.
    is_void: bool,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in there panics between two changes that hang together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its end.
    pub(crate) async fn landed(self: Arc<Self>) -> Landed {
        let seat = Seat { flight: &self, ticket: self.ticket() };
        poll_fn(|context| {
            let mut state = self.lock();
            if let Some(landed) = &state.landed {
                return Poll::Ready(landed.clone());
            }
            let waker = context.waker().clone();
            match state.waiting.iter_mut().find(|(ticket, _)| *ticket == seat.ticket) {
                Some((_, place)) => *place = waker,
                None => state.waiting.push((seat.ticket, waker)),
            }
            Poll::Pending
        })
        .await
    }

    fn ticket(&self) -> u64 {
        let mut state = self.lock();
        state.tickets += 1;
        state.tickets
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// What it brings is not to be kept.
    pub(crate) fn void(&self) {
        self.lock().is_void = true;
    }

    pub(crate) fn is_void(&self) -> bool {
        self.lock().is_void
    }

    /// Tells all that wait, once.
    pub(crate) fn land(&self, landed: Landed) {
        let mut state = self.lock();
        if state.landed.is_some() {
            return;
        }
        state.landed = Some(landed);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A place among those that wait, which is free again when its owner leaves.
struct Seat<'f> {
    flight: &'f Flight,
    ticket: u64,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.flight.lock().waiting.retain(|(ticket, _)| *ticket != self.ticket);
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({} wait)", self.waiting())
    }
}
