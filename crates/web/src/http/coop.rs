//! Lets futures that have more work to do yield to other tasks and to I/O.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// Schedules the current task to be polled again after the worker has polled its sockets, its
/// timers and all other tasks that are ready. For bodies and other futures that have more work to
/// do but have done enough for one poll: call it, then return `Poll::Pending`. A task that only
/// wakes itself may be polled hundreds of times before the sockets are.
///
/// In `async` code, use `tokio::task::yield_now().await`.
#[doc(alias = "yield")]
pub fn yield_now(cx: &mut Context<'_>) {
    YIELD_REQUESTED.set(true);
    if SELF_WAKE_YIELDS.get() {
        return cx.waker().wake_by_ref();
    }
    // The first poll of Tokio's `yield_now` defers the task's wake-up until the runtime has polled
    // its drivers. Outside a runtime it wakes the task immediately.
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

thread_local! {
    /// Whether a task of this thread that wakes itself is polled only after all others and after
    /// the kernel was polled for events. Then waking itself suffices to yield.
    static SELF_WAKE_YIELDS: Cell<bool> = const { Cell::new(false) };
    /// Whether a future has requested to yield since the last [`take_yield_request`].
    static YIELD_REQUESTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a future has requested to yield since the last call; clears the request. For code that
/// polls several futures in one task.
#[doc(hidden)]
pub fn take_yield_request() -> bool {
    YIELD_REQUESTED.replace(false)
}

/// Whether a future has requested to yield since the last [`take_yield_request`]. Such a future
/// does not wait for an event; it is polled again soon.
#[doc(hidden)]
#[must_use]
pub fn has_yield_request() -> bool {
    YIELD_REQUESTED.get()
}

/// Sets whether a task of this thread that wakes itself is polled only after all others and after
/// the kernel was polled for events.
#[doc(hidden)]
pub fn set_self_wake_yields(yields: bool) {
    SELF_WAKE_YIELDS.set(yields);
}
