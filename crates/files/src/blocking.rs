//! Work on threads that may block.

use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Work that was started on a thread that may block.
pub(crate) enum BlockingTask<T> {
    Spawned(JoinHandle<T>),
    /// Finished without a runtime; `None` once the result was returned.
    Done(Option<T>),
}

impl<T: Send + 'static> BlockingTask<T> {
    /// Starts `work` on a thread that may block. Without a runtime, as in some tests, runs it
    /// immediately.
    pub(crate) fn spawn(work: impl FnOnce() -> T + Send + 'static) -> Self {
        match Handle::try_current() {
            Ok(runtime) => Self::Spawned(runtime.spawn_blocking(work)),
            Err(_) => Self::Done(Some(work())),
        }
    }

    /// Polls for the result, which is returned once. If the work panicked, the panic is resumed
    /// here.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        let error = match self {
            Self::Done(result) => return result.take().map_or(Poll::Pending, Poll::Ready),
            Self::Spawned(task) => match ready!(Pin::new(task).poll(cx)) {
                Ok(result) => return Poll::Ready(result),
                Err(error) => error,
            },
        };
        match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime shut down before the work started, and is about to drop the waiting task.
            Err(_) => {
                *self = Self::Done(None);
                Poll::Pending
            }
        }
    }

    /// Waits for the result.
    pub(crate) async fn join(mut self) -> T {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }
}
