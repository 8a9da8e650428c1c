//! A flight: one fetch of a response that concurrent requests for the same response wait for.

use super::entry::CacheEntry;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The outcome that waiting requests receive.
#[derive(Clone, Debug)]
pub(crate) enum FlightOutcome {
    /// A response that may be stored. Each waiting request checks whether it may use the response.
    Stored(Arc<CacheEntry>),
    /// The response is not shareable, or the handler panicked, which must fail only one request:
    /// each waiting request calls the handler itself.
    Uncacheable,
    /// The leading request was dropped before it completed: a waiting request must take over.
    Abandoned,
}

/// A fetch that other requests wait for, on any worker.
#[derive(Default)]
pub(crate) struct Flight(Mutex<FlightState>);

#[derive(Default)]
struct FlightState {
    outcome: Option<FlightOutcome>,
    waiting: Vec<(u64, Waker)>,
    last_waiter_id: u64,
    /// The target was invalidated during the fetch, so the response must not be stored.
    is_invalidated: bool,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, FlightState> {
        // No code under this lock panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the outcome.
    pub(crate) async fn wait(self: Arc<Self>) -> FlightOutcome {
        let waiter = FlightWaiter { flight: &self, waiter_id: self.next_waiter_id() };
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(outcome) = &state.outcome {
                return Poll::Ready(outcome.clone());
            }
            let waker = cx.waker().clone();
            match state.waiting.iter_mut().find(|(id, _)| *id == waiter.waiter_id) {
                Some((_, registered)) => *registered = waker,
                None => state.waiting.push((waiter.waiter_id, waker)),
            }
            Poll::Pending
        })
        .await
    }

    fn next_waiter_id(&self) -> u64 {
        let mut state = self.lock();
        state.last_waiter_id += 1;
        state.last_waiter_id
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiter_count(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Prevents the response from being stored.
    pub(crate) fn invalidate(&self) {
        self.lock().is_invalidated = true;
    }

    pub(crate) fn is_invalidated(&self) -> bool {
        self.lock().is_invalidated
    }

    /// Publishes the outcome; only the first call has an effect.
    pub(crate) fn complete(&self, outcome: FlightOutcome) {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }
}

/// A waiting request, removed when it is dropped.
struct FlightWaiter<'f> {
    flight: &'f Flight,
    waiter_id: u64,
}

impl Drop for FlightWaiter<'_> {
    fn drop(&mut self) {
        self.flight.lock().waiting.retain(|(id, _)| *id != self.waiter_id);
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flight({} waiting)", self.waiter_count())
    }
}
