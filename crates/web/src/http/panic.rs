//! Catches panics of application code before they unwind into the code of the server.

use std::any::Any;
use std::cell::RefCell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use tracing::Span;

/// A callback that receives the message of each caught panic.
pub type PanicHook = Rc<dyn Fn(&str)>;

thread_local! {
    static PANIC_HOOK: RefCell<Option<PanicHook>> = const { RefCell::new(None) };
}

/// Sets the hook that is called for each panic of the application caught on this thread. Returns
/// the previous hook.
pub fn set_panic_hook(hook: Option<PanicHook>) -> Option<PanicHook> {
    PANIC_HOOK.replace(hook)
}

/// Passes the message of a caught panic to this thread's hook.
pub fn report_panic(message: &str) {
    let hook = PANIC_HOOK.with_borrow(Clone::clone);
    if let Some(hook) = hook {
        hook(message);
    }
}

/// Calls `run`, which the application supplied. If it panics, logs the panic and returns `None`.
/// The log message begins with `what`, such as "a handler". Values that `run` had borrowed mutably
/// stay as the panic left them.
pub fn catch_panic<T>(what: &'static str, run: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => Some(value),
        Err(payload) => {
            log_panic(what, payload);
            None
        }
    }
}

/// Runs `log`, code that logs, and ignores a panic in it: the tracing subscriber may panic. The
/// one in `tracing-subscriber` does so when it cannot write, for example to a pipe whose reader has
/// exited. For code where a panic would also end other requests. Unlike [`catch_panic`], does not
/// log the panic.
pub fn catch_subscriber_panic(log: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(log)) {
        drop_panic_payload(payload);
    }
}

/// Drops the payload of a panic. Its destructor may panic too. The payload of that second panic is
/// leaked, because its destructor may panic as well.
pub fn drop_panic_payload(payload: Box<dyn Any + Send>) {
    if let Err(second_payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        let _: &mut (dyn Any + Send) = Box::leak(second_payload);
    }
}

/// Calls `run` inside a span. A subscriber may panic when the span is entered or exited; such
/// panics are ignored.
pub fn in_span<T>(span: &Span, run: impl FnOnce() -> T) -> T {
    let mut entered = None;
    catch_subscriber_panic(|| entered = Some(span.enter()));
    if entered.is_none() {
        // The subscriber may have entered the span partly before it panicked.
        catch_subscriber_panic(|| {
            span.with_subscriber(|(id, subscriber)| subscriber.exit(id));
        });
    }
    // If `run` panics, the span is exited before the panic continues: a second panic, in the
    // subscriber, while the first one unwinds would abort the process.
    let result = catch_unwind(AssertUnwindSafe(run));
    catch_subscriber_panic(|| drop(entered));
    result.unwrap_or_else(|payload| resume_unwind(payload))
}

/// Awaits `work` and returns its output. If `work` panics, it is dropped without being polled
/// again.
///
/// # Errors
/// `work` panicked; the error is the payload of the panic.
pub async fn catch_unwind_future<T>(
    work: impl Future<Output = T>,
) -> Result<T, Box<dyn Any + Send>> {
    let mut work = pin!(work);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(payload) => Poll::Ready(Err(payload)),
    })
    .await
}

/// Logs a caught panic and passes its message to this thread's hook. The log message begins with
/// `what`, such as "a handler".
pub fn log_panic(what: &'static str, payload: Box<dyn Any + Send>) {
    let message = panic_message(&*payload);
    catch_subscriber_panic(
        || tracing::error!(target: "peregrine", panic = message, "{what} panicked"),
    );
    report_panic(message);
    drop_panic_payload(payload);
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("", String::as_str),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// Panics when it is dropped, with another `PanicOnDrop` as the payload, until the number is 0.
    struct PanicOnDrop(u32);

    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Self(self.0 - 1));
            }
        }
    }

    #[test]
    fn catches_a_payload_that_panics_when_it_is_dropped() {
        for times in 0..4 {
            drop_panic_payload(Box::new(PanicOnDrop(times)));
            catch_subscriber_panic(|| panic_any(PanicOnDrop(times)));
            assert!(catch_panic("a handler", || panic_any(PanicOnDrop(times))).is_none());
        }
    }
}
