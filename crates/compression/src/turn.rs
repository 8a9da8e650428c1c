//! Letting others have their turn.

use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// Has the task polled again when the worker has looked for what its sockets and timers have, and everybody else has had
/// their turn. A task that only wakes itself may be polled a hundred times before that.
pub(crate) fn others_first(context: &mut Context<'_>) {
    // Polled once, it has asked for that.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}
