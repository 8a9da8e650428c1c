//! The clock of the thread that runs an application. Its timers are for bodies that send a
//! keep-alive while their producer is idle, and for protocols that check that their peers respond.
//!
//! A worker of the server registers its own clock, so the time is the driver's time, and a timer is
//! only an entry of the worker's timer wheel. The test client registers a clock while it polls.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The clock of a worker or of the test client, which creates timers.
pub trait TimerSource {
    /// Creates a timer that is not set; `None` if the worker has ended.
    fn new_timer(&self) -> Option<Box<dyn Timer>>;
}

/// Fires after a set time, and reports that the worker drains: that it shuts down gracefully.
pub trait Timer {
    /// Sets the timer to fire after this time, and replaces an earlier setting.
    fn reset(&mut self, after: Duration);

    /// Ready when the timer fires; a timer that is not set does not fire. If it returns `Pending`,
    /// the caller is woken when the timer fires or when the worker begins to drain.
    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// The time since an arbitrary fixed moment, by the clock that the timer uses.
    fn now(&self) -> Duration;

    /// Whether the worker is draining, or has ended. A response that would not end by itself should
    /// then end.
    fn is_server_draining(&self) -> bool;
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn TimerSource>>> = const { RefCell::new(None) };
}

/// Registers `clock` for this thread.
pub fn install(clock: Rc<dyn TimerSource>) {
    drop(CURRENT.replace(Some(clock)));
}

/// The clock of this thread, if it has one.
#[must_use]
pub fn current() -> Option<Rc<dyn TimerSource>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Removes the clock of this thread.
pub fn uninstall() {
    drop(CURRENT.replace(None));
}

/// Creates a timer on this thread's clock; `None` if there is no clock or its worker has ended.
#[must_use]
pub fn new_timer() -> Option<Box<dyn Timer>> {
    current()?.new_timer()
}

/// Calls `run` with `clock` as the thread's clock, then restores the previous one.
pub(crate) fn with_current<T>(clock: &Rc<dyn TimerSource>, run: impl FnOnce() -> T) -> T {
    struct RestoreGuard(Option<Rc<dyn TimerSource>>);
    impl Drop for RestoreGuard {
        fn drop(&mut self) {
            drop(CURRENT.replace(self.0.take()));
        }
    }
    let _guard = RestoreGuard(CURRENT.replace(Some(Rc::clone(clock))));
    run()
}
