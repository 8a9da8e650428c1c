//! Runs the work that nested applications leave to be done after their response.
//!
//! For example, a service inside the nested application may have spawned a task that still reads
//! the request's body. The work is a future that is not `Send`, so an `http::Response` cannot carry
//! it. The nested application stores the future in a thread-local, and the mount or layer that
//! polls the application collects it from there.

use crate::body_channel::{LocalProvider, poll_with_provider};
use peregrine_web::response::AfterResponse;
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

thread_local! {
    /// The futures that nested applications of the current mount or layer have stored so far.
    /// `None` if no mount or layer collects them.
    static DEFERRED: Cell<Option<Vec<AfterResponse>>> = const { Cell::new(None) };
}

/// Calls `poll`, and appends to `deferred` the work that nested applications store during the call.
pub(crate) fn collect<T>(deferred: &mut Vec<AfterResponse>, poll: impl FnOnce() -> T) -> T {
    struct Collecting<'l> {
        deferred: &'l mut Vec<AfterResponse>,
        /// The futures of the mount or layer that is being polled around this one, if there is one.
        outer: Option<Vec<AfterResponse>>,
    }
    impl Drop for Collecting<'_> {
        fn drop(&mut self) {
            *self.deferred = DEFERRED.replace(self.outer.take()).unwrap_or_default();
        }
    }
    let outer = DEFERRED.replace(Some(std::mem::take(deferred)));
    let _collecting = Collecting { deferred, outer };
    poll()
}

/// Stores `work` for the mount or layer that polls this application. Under another server there is
/// no mount or layer to collect the work, so it is dropped.
pub(crate) fn defer(work: AfterResponse) {
    if let Some(mut deferred) = DEFERRED.take() {
        deferred.push(work);
        DEFERRED.set(Some(deferred));
    }
}

/// Runs `nested_after_response` to completion, and polls `provider` meanwhile, because these
/// futures may wait for it. Then runs `provider` to completion.
pub(crate) async fn run(
    mut provider: Option<impl LocalProvider>,
    mut nested_after_response: Vec<AfterResponse>,
) {
    poll_fn(|cx| {
        poll_with_provider(&mut provider, cx, |cx| {
            nested_after_response.retain_mut(|work| work.as_mut().poll(cx).is_pending());
            if nested_after_response.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
    })
    .await;
    if let Some(provider) = provider {
        provider.run_to_completion().await;
    }
}
