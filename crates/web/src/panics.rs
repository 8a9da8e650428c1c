//! Panics of the application's own code, caught where they happen.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

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
    let _ = catch_unwind(AssertUnwindSafe(log));
}

/// Tells the log, and who listens, of a panic that was caught.
pub fn note(what: &'static str, payload: Box<dyn Any + Send>) {
    let text = message(&*payload);
    contained(|| tracing::error!(target: "peregrine", panic = text, "{what} panicked"));
    tell(text);
    // Even a payload may panic when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("", String::as_str),
    }
}
