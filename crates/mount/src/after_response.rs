//! Runs the work that nested applications continue after their response.
//!
//! This work is a future that is not `Send`, so an `http::Response` cannot carry it. A nested
//! application stores the future in a thread-local, and the mount or layer that polls the
//! application collects it from there.

use crate::body_channel::{LocalTask, poll_with_task};
use peregrine_web::response::AfterResponse;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

thread_local! {
    /// The futures that nested applications stored during the current poll; `None` if no mount or
    /// layer collects them.
    static DEFERRED: Cell<Option<Vec<AfterResponse>>> = const { Cell::new(None) };
}

/// Runs `poll`, and appends to `left` the work that a nested application stores meanwhile.
pub(crate) fn collect<T>(left: &mut Vec<AfterResponse>, poll: impl FnOnce() -> T) -> T {
    struct Collecting<'l> {
        deferred: &'l mut Vec<AfterResponse>,
        outer: Option<Vec<AfterResponse>>,
    }
    impl Drop for Collecting<'_> {
        fn drop(&mut self) {
            *self.deferred = DEFERRED.replace(self.outer.take()).unwrap_or_default();
        }
    }
    let outer = DEFERRED.replace(Some(std::mem::take(left)));
    let _collecting = Collecting { deferred: left, outer };
    poll()
}

/// Stores `rest` for the mount or layer that polls this application. Under another server no mount
/// or layer collects `rest`, so this function drops it.
pub(crate) fn defer(rest: AfterResponse) {
    if let Some(mut left) = DEFERRED.take() {
        left.push(rest);
        DEFERRED.set(Some(left));
    }
}

/// Runs all of `rests` to completion. Polls `errand` meanwhile, because `rests` may wait for its
/// work. Then runs `errand` to completion.
pub(crate) async fn run_after_response(
    mut errand: Option<impl LocalTask>,
    mut rests: Vec<AfterResponse>,
) {
    poll_fn(|cx| {
        poll_with_task(&mut errand, cx, |cx| {
            rests.retain_mut(|rest| rest.as_mut().poll(cx).is_pending());
            if rests.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
    })
    .await;
    if let Some(errand) = errand {
        errand.run_to_completion().await;
    }
}
