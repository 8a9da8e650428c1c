//! Tasks that wait for the same event.

use std::task::{Context, Waker};

/// Wakers by waiter number. A waiter that stops waiting removes its waker: a WebSocket may live for
/// days and have one task per message.
#[derive(Default)]
pub(crate) struct WakerList(Vec<(u64, Waker)>);

impl WakerList {
    /// Registers a waker. Returns true if the number is new.
    pub(crate) fn register(&mut self, number: u64, context: &Context<'_>) -> bool {
        match self.0.iter_mut().find(|(known, _)| *known == number) {
            Some((_, waker)) => {
                waker.clone_from(context.waker());
                false
            }
            None => {
                self.0.push((number, context.waker().clone()));
                true
            }
        }
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.0.retain(|(known, _)| *known != number);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns all wakers.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.0).into_iter().map(|(_, waker)| waker)
    }
}

/// Stores the caller's waker in `place`.
pub(crate) fn store_waker(place: &mut Option<Waker>, context: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(context.waker()) => {}
        _ => *place = Some(context.waker().clone()),
    }
}
