//! The clock of whoever runs an application on this thread: alarms for bodies that have something to
//! say after a while without a word from their producer, and for protocols that watch their peers.
//!
//! A worker of the server announces its own, so that time is the driver's time on every driver, and an
//! alarm costs a number on the worker's wheel. The test client has one for as long as it polls.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Makes alarms.
pub trait Clock {
    /// A new alarm that does not ring until it is set; `None` when the worker has ended.
    fn alarm(&self) -> Option<Box<dyn Alarm>>;
}

/// Rings after a while, and tells of a drain.
pub trait Alarm {
    /// Lets it ring after this time, instead of when it was set for before.
    fn set(&mut self, after: Duration);

    /// Ready when it rings. Registers the caller for that and for the beginning of a drain.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// The time since some moment, by the clock that the alarm rings by.
    fn now(&self) -> Duration;

    /// Does the worker drain? A response that has no end of its own should come to one then.
    fn is_draining(&self) -> bool;
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<dyn Clock>>> = const { RefCell::new(None) };
}

/// Makes `clock` the one of this thread.
pub fn announce(clock: Rc<dyn Clock>) {
    drop(CURRENT.replace(Some(clock)));
}

/// The clock of this thread, if there is one.
#[must_use]
pub fn current() -> Option<Rc<dyn Clock>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Leaves the thread without a clock.
pub fn forget() {
    drop(CURRENT.replace(None));
}

/// An alarm of this thread's clock, if there is one.
#[must_use]
pub fn alarm() -> Option<Box<dyn Alarm>> {
    current()?.alarm()
}

/// Runs `run` with `clock`, and gives the thread back the one that it had.
pub(crate) fn within<T>(clock: &Rc<dyn Clock>, run: impl FnOnce() -> T) -> T {
    struct Before(Option<Rc<dyn Clock>>);
    impl Drop for Before {
        fn drop(&mut self) {
            drop(CURRENT.replace(self.0.take()));
        }
    }
    let _before = Before(CURRENT.replace(Some(Rc::clone(clock))));
    run()
}
