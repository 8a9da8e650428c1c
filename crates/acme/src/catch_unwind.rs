//! Turns panics into results, so that the ACME thread continues after a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A future whose panic becomes an `Err` with the panic's message.
pub(crate) struct CatchUnwind<F>(Pin<Box<F>>);

impl<F> CatchUnwind<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Box::pin(future))
    }
}

impl<F: Future> Future for CatchUnwind<F> {
    type Output = Result<F::Output, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.0.as_mut();
        // The caller repairs the affected state, and the future is not polled again.
        match catch_unwind(AssertUnwindSafe(|| future.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic_message(panic.as_ref()).to_owned())),
        }
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    let formatted = || panic.downcast_ref::<String>().map(String::as_str);
    literal.or_else(formatted).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;

    #[test]
    fn a_panic_becomes_an_error_and_does_not_affect_other_futures() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("the runtime can be created");
        let mut count = 0;
        runtime.block_on(async {
            for index in 0..3 {
                let result = CatchUnwind::new(async {
                    count += 1;
                    tokio::task::yield_now().await;
                    assert!(index == 1, "on purpose, {index}");
                    ready(index).await
                });
                let expected = if index == 1 { Ok(1) } else { Err(format!("on purpose, {index}")) };
                assert_eq!(result.await, expected);
            }
        });
        assert_eq!(count, 3);
    }
}
