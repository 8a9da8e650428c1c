//! Catches panics in application code where they happen.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tracing::Span;

/// A callback that gets the message of each caught panic.
pub type Listener = Rc<dyn Fn(&str)>;

thread_local! {
    static LISTENER: RefCell<Option<Listener>> = const { RefCell::new(None) };
}

/// Sets the listener for panics of the application that are caught on this thread from now on, and
/// returns the previous listener.
pub fn hear(listener: Option<Listener>) -> Option<Listener> {
    LISTENER.replace(listener)
}

/// Passes the message of a caught panic to this thread's listener.
pub fn tell(message: &str) {
    let listener = LISTENER.with_borrow(Clone::clone);
    if let Some(listener) = listener {
        listener(message);
    }
}

/// Calls `code`, which belongs to the application. If it panics, logs the panic and returns `None`.
/// Values that `code` had borrowed mutably stay as the panic left them.
pub fn guarded<T>(what: &'static str, code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(value) => Some(value),
        Err(payload) => {
            note(what, payload);
            None
        }
    }
}

/// Runs a logging call and ignores a panic in it, for code where a panic would also end other
/// requests. A subscriber may panic: that of `tracing-subscriber` does when it cannot write, for
/// example to a pipe whose reader has exited.
pub fn contained(log: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(log)) {
        discard(payload);
    }
}

/// Drops the payload of a panic. Its destructor may panic too; the payload of that second panic is
/// leaked.
pub fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        let _: &mut (dyn Any + Send) = Box::leak(another);
    }
}

/// Calls `run` inside a span. A subscriber may panic when the span is entered or exited, even while
/// a panic of the application is unwinding; such panics are ignored.
pub fn inside<T>(span: &Span, run: impl FnOnce() -> T) -> T {
    let mut entered = None;
    contained(|| entered = Some(span.enter()));
    if entered.is_none() {
        // The subscriber may have entered the span partly before it panicked.
        contained(|| {
            span.with_subscriber(|(id, subscriber)| subscriber.exit(id));
        });
    }
    let outcome = catch_unwind(AssertUnwindSafe(run));
    contained(|| drop(entered));
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Awaits `work`, and returns its output or the payload of its panic.
///
/// # Errors
/// `work` panicked.
pub async fn or_panic<T>(work: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Logs a caught panic and passes its message to this thread's listener.
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

    /// Panics when it is dropped, with another `Evil` as the payload, as many times as the number
    /// says.
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
