//! The task that waits for an operation of the driver.

use super::{Executor, NO_TASK};
use std::task::{Context, Waker};

/// The task that waits for an operation.
///
/// A task of this worker is stored as its number: no reference count to raise, no indirect call to
/// wake it. Combinators and tasks of other executors have different wakers, which are stored.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A task's number, or `NO_TASK` if no task waits. That is not a separate variant, because two
    /// variants fit into the two words of a waker.
    Task(u32),
    Waker(Waker),
}

impl Default for Waiter {
    fn default() -> Self {
        Self::NONE
    }
}

impl Waiter {
    pub(crate) const NONE: Self = Self::Task(NO_TASK);

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::Task(NO_TASK))
    }

    /// Registers the polling task. Returns the previous one, to be dropped after all borrows have
    /// ended: the destructor of a foreign waker may run any code.
    pub(crate) fn register(&mut self, context: &Context<'_>, tasks: &Executor) -> Self {
        let waker = context.waker();
        let new = if std::ptr::eq(waker.data(), tasks.current_data.get())
            && std::ptr::eq(waker.vtable(), tasks.vtable)
        {
            Self::Task(tasks.current.get())
        } else {
            match self {
                Self::Waker(kept) if kept.will_wake(waker) => return Self::NONE,
                _ => Self::Waker(waker.clone()),
            }
        };
        std::mem::replace(self, new)
    }

    /// Wakes the task. Must not be called while anything is borrowed.
    pub(crate) fn wake(self, tasks: &Executor) {
        match self {
            Self::Task(NO_TASK) => {}
            Self::Task(index) => tasks.wake(index),
            Self::Waker(waker) => waker.wake(),
        }
    }
}
