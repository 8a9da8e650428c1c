//! A tower layer's calls to its inner service, polled on the request's thread.

use crate::body::SendBody;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

pub(crate) type CallReply = oneshot::Sender<CallOutcome>;

/// The outcome of a call: a response, or the handler's panic, which resumes in the layer.
pub(crate) type CallOutcome = std::thread::Result<http::Response<SendBody>>;

/// A call to the layer's inner service.
pub(crate) type LocalCall<'n> = Pin<Box<dyn Future<Output = http::Response<SendBody>> + 'n>>;

/// Polls a call. When it has completed, sends its outcome to `reply`, which is `None` from then on.
/// Returns whether the call must be polled again.
pub(crate) fn poll_call(
    call: &mut LocalCall<'_>,
    reply: &mut Option<CallReply>,
    cx: &mut Context<'_>,
) -> bool {
    let Some(sender) = reply else { return false };
    // The layer cancels a call by dropping the receiver. The handler is then dropped, as if the
    // peer had disconnected.
    if sender.poll_closed(cx).is_ready() {
        return false;
    }
    let outcome = match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx))) {
        Ok(Poll::Pending) => return true,
        Ok(Poll::Ready(response)) => Ok(response),
        Err(panic) => Err(panic),
    };
    // If the receiver was dropped, `send` drops the outcome.
    if let Some(sender) = reply.take() {
        let _ = sender.send(outcome);
    }
    false
}
