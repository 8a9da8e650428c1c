//! Panics of the application's own code, caught where they happen.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `code`, which belongs to the application. `None` if it panics; the panic is then in the log.
/// Values that the code had borrowed mutably stay as the panic left them.
pub fn guarded<T>(what: &'static str, code: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(value) => Some(value),
        Err(payload) => {
            tracing::error!(target: "peregrine", panic = message(&*payload), "{what} panicked");
            // Even a payload may panic when it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            None
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("", String::as_str),
    }
}
