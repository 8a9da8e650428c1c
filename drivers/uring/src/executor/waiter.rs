//! The task that waits for an operation of the driver.

use super::{Executor, NO_TASK};
use std::task::{Context, Waker};

/// The task that waits for an operation.
///
/// A task of this worker is stored as its index: there is no reference count to raise, and waking
/// the task takes no indirect call. Combinators and tasks of other executors have wakers of their
/// own, which are cloned and stored.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A task's index, or `NO_TASK` if no task waits. There is no separate variant for the latter,
    /// because only two variants fit into the two words of a waker.
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

    /// Registers the task that is polling. Returns the previous waiter, which must be dropped after
    /// all borrows have ended: the destructor of its waker may run any code.
    pub(crate) fn register(&mut self, context: &Context<'_>, executor: &Executor) -> Self {
        let waker = context.waker();
        let new = if std::ptr::eq(waker.data(), executor.current_data.get())
            && std::ptr::eq(waker.vtable(), executor.vtable)
        {
            Self::Task(executor.current.get())
        } else {
            match self {
                Self::Waker(current) if current.will_wake(waker) => return Self::NONE,
                _ => Self::Waker(waker.clone()),
            }
        };
        std::mem::replace(self, new)
    }

    /// Wakes the task. Must not be called while anything is borrowed.
    pub(crate) fn wake(self, executor: &Executor) {
        match self {
            Self::Task(NO_TASK) => {}
            Self::Task(index) => executor.wake(index),
            Self::Waker(waker) => waker.wake(),
        }
    }
}
