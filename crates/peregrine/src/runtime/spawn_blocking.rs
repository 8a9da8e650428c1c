//! The way out for blocking work.

use std::future::pending;
use std::panic::resume_unwind;

/// Runs `work` on a thread where blocking is allowed, and waits for its result without blocking.
///
/// A handler that reads a large file, computes for long or calls a blocking library would hold up all
/// other connections of its worker. This function moves such work to the blocking threads of tokio's
/// runtime, of which each worker may have 512.
///
/// A panic of `work` continues in the caller: in a handler it is a 500. `work` cannot be stopped once
/// it has begun: dropping the future, as when the peer leaves, loses the result, and the work ends by
/// itself. A shutdown waits for it, within
/// [`Limits::background_timeout`](crate::Limits::background_timeout).
///
/// ```
/// use peregrine::prelude::*;
///
/// async fn count_primes(Path(below): Path<u64>) -> String {
///     let is_prime = |n: &u64| *n > 1 && (2..*n).take_while(|d| d * d <= *n).all(|d| n % d != 0);
///     let count = peregrine::offload(move || (0..below).filter(is_prime).count()).await;
///     format!("{count} primes below {below}")
/// }
///
/// let app = App::new().get("/primes/{below}", count_primes);
/// ```
///
/// # Panics
/// `work` panicked, or there is no tokio runtime: this function works in everything that a worker runs,
/// and on any other tokio runtime.
pub async fn offload<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime has shut down before the work began, and is about to drop this future.
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
        assert_ne!(block_on(offload(|| thread::current().id())), thread::current().id());
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        let caller = || block_on(offload(|| resume_unwind(Box::new("on purpose"))));
        let panic = std::panic::catch_unwind(caller).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
