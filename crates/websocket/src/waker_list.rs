//! Tasks that wait for the same event.

use std::task::{Context, Waker};

/// Wakers by waiter ID. A waiter that stops waiting removes its waker: a WebSocket can stay open
/// for days and have a new waiting task for each message.
#[derive(Default)]
pub(crate) struct WakerList(Vec<(u64, Waker)>);

impl WakerList {
    /// Registers a waker. Returns true if the ID is new.
    pub(crate) fn register(&mut self, waiter_id: u64, cx: &Context<'_>) -> bool {
        match self.0.iter_mut().find(|(id, _)| *id == waiter_id) {
            Some((_, waker)) => {
                waker.clone_from(cx.waker());
                false
            }
            None => {
                self.0.push((waiter_id, cx.waker().clone()));
                true
            }
        }
    }

    pub(crate) fn remove(&mut self, waiter_id: u64) {
        self.0.retain(|(id, _)| *id != waiter_id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns all wakers.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.0).into_iter().map(|(_, waker)| waker)
    }
}

/// Stores the caller's waker in `slot`.
pub(crate) fn store_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *slot = Some(cx.waker().clone()),
    }
}
