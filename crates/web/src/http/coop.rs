//! Letting others have their turn.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::Context;

/// Has the task polled again when its worker has looked for what its sockets and timers have, and everybody else has had
/// their turn: for bodies and other futures that have more to do, and have done enough at a time. Return `Poll::Pending` after
/// it. A task that only wakes itself may be polled hundreds of times before that.
///
/// In `async` code it is `tokio::task::yield_now().await`.
pub fn others_first(context: &mut Context<'_>) {
    ASKED.set(true);
    if IS_FAIR.get() {
        return context.waker().wake_by_ref();
    }
    // Polled once, it has asked for that. Without a runtime it wakes the task at once.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

thread_local! {
    /// A task of this thread that wakes itself is polled after all others.
    static IS_FAIR: Cell<bool> = const { Cell::new(false) };
    /// Somebody has asked for others' turn.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Has somebody asked for others' turn since the last call? For who polls more than that one in a task.
#[doc(hidden)]
pub fn take_asked() -> bool {
    ASKED.replace(false)
}

/// Has somebody asked for others' turn since the last [`take_asked`]? Then it is not waiting, and
/// is polled again.
#[doc(hidden)]
#[must_use]
pub fn is_asked() -> bool {
    ASKED.get()
}

/// Notes whether a task of this thread that wakes itself is polled after all others, and after a look for what the kernel has.
#[doc(hidden)]
pub fn set_fair(is_fair: bool) {
    IS_FAIR.set(is_fair);
}
