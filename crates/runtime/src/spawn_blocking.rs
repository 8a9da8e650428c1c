//! [`spawn_blocking`] runs blocking work on another thread.

use std::future::pending;
use std::panic::resume_unwind;

/// Runs `work` on a thread where blocking is allowed, and waits for its result without blocking.
///
/// A handler that reads a large file, computes for a long time or calls a blocking library would
/// delay all other connections of its worker. This function moves such work to the blocking threads
/// of the worker's tokio runtime, up to 512 per worker.
///
/// A panic of `work` propagates to the caller; in a handler it results in a 500 response. `work`
/// cannot be cancelled once it has started: if the future is dropped, for example because the
/// client disconnects, `work` runs to completion and its result is discarded. A shutdown waits for
/// `work` for up to
/// [`Limits::background_task_timeout`](peregrine_server::Limits::background_task_timeout).
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn count_primes(Path(below): Path<u64>) -> String {
///     let is_prime = |n: &u64| *n > 1 && (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
///     let count = peregrine::spawn_blocking(move || (0..below).filter(is_prime).count()).await;
///     format!("{count} primes below {below}")
/// }
///
/// let app = App::new().get("/primes/{below}", count_primes);
/// ```
///
/// # Panics
/// If `work` panics, or if the caller is not inside a tokio runtime. All code that a worker runs is
/// inside one.
#[doc(alias = "block")]
#[doc(alias = "unblock")]
#[doc(alias = "block_in_place")]
#[doc(alias = "offload")]
pub async fn spawn_blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime shut down before the work started, and is about to drop this future.
            Err(_) => pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn work_runs_on_another_thread() {
        assert_ne!(block_on(spawn_blocking(|| thread::current().id())), thread::current().id());
    }

    #[test]
    fn a_panic_propagates_to_the_caller() {
        let caller = || block_on(spawn_blocking(|| resume_unwind(Box::new("on purpose"))));
        let panic = std::panic::catch_unwind(caller).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
