//! Catches panics of application code, including its destructors, so that the server continues.

use peregrine_web::panic::{self, catch_subscriber_panic, drop_panic_payload};
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs application code. If it panics, logs that `source` panicked and returns `None`.
pub(crate) fn catch_panic<T>(source: &str, run: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(run));
    let log = |panic| {
        let panic = panic_message(panic);
        catch_subscriber_panic(|| tracing::error!(target: "peregrine", panic, "{source} panicked"));
    };
    result.map_err(log).ok()
}

/// Reports a caught panic to the panic listener and returns its message.
pub(crate) fn panic_message(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("(no message)").to_owned();
    panic::report_panic(&text);
    drop_panic_payload(panic);
    text
}

/// A value whose destructor is application code. A panic in that destructor is caught and logged,
/// so it affects neither the connection nor its counters.
#[derive(Debug)]
pub(crate) struct CatchDropPanic<T>(Option<T>);

impl<T> CatchDropPanic<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Default> Default for CatchDropPanic<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for CatchDropPanic<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("the value is taken only on drop")
    }
}

impl<T> DerefMut for CatchDropPanic<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("the value is taken only on drop")
    }
}

impl<T> Drop for CatchDropPanic<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = self.0.take()
            && std::mem::needs_drop::<T>()
        {
            catch_panic("a destructor of the application", || drop(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CatchDropPanic;

    #[test]
    fn panic_in_a_destructor_is_caught() {
        struct Bomb(u8);
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("it went off");
            }
        }
        let mut bomb = CatchDropPanic::new(Bomb(1));
        (*bomb).0 = 2;
        assert_eq!((*bomb).0, 2);
        bomb = CatchDropPanic::new(Bomb(3));
        drop(bomb);
    }
}
