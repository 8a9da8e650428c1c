//! Work that nested applications leave to be done after the response.
//!
//! A response of the `http` crate cannot carry a future that is not `Send`. So the mount or the
//! layer that polls a nested application collects this work through a thread-local.

use crate::body_channel::{Errand, poll_with_errand};
use peregrine_web::response::Rest;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

thread_local! {
    /// The work left in the current poll; `None` if nothing collects it.
    static LEFT: Cell<Option<Vec<Rest>>> = const { Cell::new(None) };
}

/// Runs `poll`, and adds the work that a nested application leaves to `left`.
pub(crate) fn collect<T>(left: &mut Vec<Rest>, poll: impl FnOnce() -> T) -> T {
    struct Collecting<'l> {
        left: &'l mut Vec<Rest>,
        outer: Option<Vec<Rest>>,
    }
    impl Drop for Collecting<'_> {
        fn drop(&mut self) {
            *self.left = LEFT.replace(self.outer.take()).unwrap_or_default();
        }
    }
    let outer = LEFT.replace(Some(std::mem::take(left)));
    let _collecting = Collecting { left, outer };
    poll()
}

/// Leaves `rest` to the mount or layer that collects it. Under another server nothing collects it,
/// and it is dropped.
pub(crate) fn leave(rest: Rest) {
    if let Some(mut left) = LEFT.take() {
        left.push(rest);
        LEFT.set(Some(left));
    }
}

/// Does all of `rests`, which may wait for `errand`, and then the remaining work of `errand`.
pub(crate) async fn run(mut errand: Option<impl Errand>, mut rests: Vec<Rest>) {
    poll_fn(|context| {
        poll_with_errand(&mut errand, context, |context| {
            rests.retain_mut(|rest| rest.as_mut().poll(context).is_pending());
            if rests.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
    })
    .await;
    if let Some(errand) = errand {
        errand.run().await;
    }
}
