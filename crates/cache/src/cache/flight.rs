//! One request that others wait for.

use super::entry::Entry;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The outcome that waiting requests get.
#[derive(Clone, Debug)]
pub(crate) enum Landed {
    /// A response, which may fit their requests too.
    Kept(Arc<Entry>),
    /// A response that is not for others, or a panic, which must not spread: each waiting request
    /// calls the handler itself.
    Passed,
    /// The request was abandoned: one of the waiting requests must take over.
    Abandoned,
}

/// The request that others wait for, shared by all workers.
#[derive(Default)]
pub(crate) struct Flight(Mutex<State>);

#[derive(Default)]
struct State {
    landed: Option<Landed>,
    waiting: Vec<(u64, Waker)>,
    tickets: u64,
    /// Its target was changed meanwhile, so the response must not be stored.
    is_void: bool,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the outcome.
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

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Prevents the response from being stored.
    pub(crate) fn void(&self) {
        self.lock().is_void = true;
    }

    pub(crate) fn is_void(&self) -> bool {
        self.lock().is_void
    }

    /// Publishes the outcome; only the first call has an effect.
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

/// A waiting request, removed when it is dropped.
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
