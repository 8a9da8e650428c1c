//! Panics of the application's own code, caught where they happen.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tracing::Span;

/// Who hears of panics.
pub type Listener = Rc<dyn Fn(&str)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Tells `listener` of each panic of the application that is caught on this thread from now on. Who heard of them before
/// is given back.
pub fn hear(listener: Option<Listener>) -> Option<Listener> {
    LISTENER.replace(listener)
}

/// A panic with this message was caught.
pub fn tell(message: &str) {
    let listener = LISTENER.with_borrow(Clone::clone);
    if let Some(listener) = listener {
        listener(message);
    }
}

/// Calls `code`, which belongs to the application. `None` if it panics; the panic is then in the log.
/// Values that the code had borrowed mutably stay as the panic left them.
pub fn guarded<T>(what: &'static str, code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(value) => Some(value),
        Err(payload) => {
            note(what, payload);
            None
        }
    }
}

/// Logs something where a panic would end what serves others. A subscriber may panic: the one of `tracing-subscriber` does when it can
/// write nowhere, as to a pipe that nobody reads any more.
pub fn contained(log: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(log)) {
        discard(payload);
    }
}

/// Drops what somebody panicked with. That may panic as well, and so may what it panics with, which is left where it is.
pub fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        let _: &mut (dyn Any + Send) = Box::leak(another);
    }
}

/// Runs something in a span. A subscriber may panic when one is entered or left, also while a panic of the application goes by.
pub fn inside<T>(span: &Span, run: impl FnOnce() -> T) -> T {
    let mut entered = None;
    contained(|| entered = Some(span.enter()));
    if entered.is_none() {
        // A part of it may have been entered.
        contained(|| {
            span.with_subscriber(|(id, subscriber)| subscriber.exit(id));
        });
    }
    let outcome = catch_unwind(AssertUnwindSafe(run));
    contained(|| drop(entered));
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// What comes of `work`, or what it panicked with.
///
/// # Errors
/// It panicked.
pub async fn or_panic<T>(work: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Tells the log, and who listens, of a panic that was caught.
pub fn note(what: &'static str, payload: Box<dyn Any + Send>) {
    let text = message(&*payload);
    contained(|| tracing::error!(target: "peregrine", panic = text, "{what} panicked"));
    tell(text);
    discard(payload);
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("", String::as_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics when it is dropped, with another one, so many times.
    struct Evil(u32);

    impl Drop for Evil {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn what_panics_when_it_is_dropped_goes_no_further() {
        for times in 0..4 {
            discard(Box::new(Evil(times)));
            contained(|| panic_any(Evil(times)));
            assert!(guarded("a handler", || panic_any(Evil(times))).is_none());
        }
    }
}
