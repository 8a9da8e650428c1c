//! Work on threads that may block.

use std::future::pending;
use std::panic::resume_unwind;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Work that was started on a thread that may block.
pub(crate) enum BlockingTask<T> {
    Spawned(JoinHandle<T>),
    Done(T),
}

impl<T: Send + 'static> BlockingTask<T> {
    /// Starts `work` on a thread that may block. Without a runtime, as in some tests, runs it
    /// immediately.
    pub(crate) fn spawn(work: impl FnOnce() -> T + Send + 'static) -> Self {
        match Handle::try_current() {
            Ok(runtime) => Self::Spawned(runtime.spawn_blocking(work)),
            Err(_) => Self::Done(work()),
        }
    }

    /// Waits for the result. If the work panicked, the panic is resumed here.
    pub(crate) async fn join(self) -> T {
        let error = match self {
            Self::Done(result) => return result,
            Self::Spawned(task) => match task.await {
                Ok(result) => return result,
                Err(error) => error,
            },
        };
        match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime shut down before the work started, and is about to drop this future.
            Err(_) => pending().await,
        }
    }
}
