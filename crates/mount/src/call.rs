//! Calls of a tower layer to what comes next, which are polled where they began.

use crate::body::SendBody;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::oneshot;

pub(crate) type Reply = oneshot::Sender<Outcome>;

/// The outcome of a call: a response, or a handler's panic, which the layer should see.
pub(crate) type Outcome = std::thread::Result<http::Response<SendBody>>;

/// A call to what comes next.
pub(crate) type Call<'n> = Pin<Box<dyn Future<Output = http::Response<SendBody>> + 'n>>;

/// Polls a call whose response goes elsewhere. False when there is nothing left to do.
pub(crate) fn go_on(
    call: &mut Call<'_>,
    reply: &mut Option<Reply>,
    context: &mut Context<'_>,
) -> bool {
    let Some(asker) = reply else { return false };
    // A call that the layer gave up is dropped, as it would be with its peer.
    if asker.poll_closed(context).is_ready() {
        return false;
    }
    let outcome = match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context))) {
        Ok(Poll::Pending) => return true,
        Ok(Poll::Ready(response)) => Ok(response),
        Err(panic) => Err(panic),
    };
    // If nobody waits any more, the response is dropped here.
    if let Some(asker) = reply.take() {
        let _ = asker.send(outcome);
    }
    false
}
