//! Limits the time until a response begins.

use http::StatusCode;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Responds in place of the routes inside if their response takes too long to begin.
///
/// The status is 503: the server gave up, and the request may be retried. (408 would mean that the
/// client was slow, 504 that a server behind this one was; a gateway should set that with
/// [`Timeout::status`].) The code inside is dropped at its current `await`. A handler that computes
/// without an `await` cannot be stopped. The limit applies until the response begins; its body can
/// take as long as the server's own limits allow.
///
/// The timer is set only for requests whose response is not ready immediately. It is tokio's timer,
/// which runs on every worker.
///
/// ```
/// use peregrine::middleware::Timeout;
/// use peregrine::App;
/// use std::time::Duration;
///
/// let app = App::new().wrap(Timeout::new(Duration::from_secs(10))).get("/", || "hello");
/// assert_eq!(app.test().get("/").send_blocking().text(), "hello");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    limit: Duration,
    status: StatusCode,
}

impl Timeout {
    /// Creates a middleware with this time limit and status 503.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit, status: StatusCode::SERVICE_UNAVAILABLE }
    }

    /// Responds with `status` instead.
    #[must_use]
    pub const fn status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    fn problem(&self) -> Problem {
        let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        let detail = format!("there was no response within {limit_ms} ms; try again later");
        Problem::new(self.status, "timeout", detail).with_member("limit_ms", limit_ms)
    }
}

impl Middleware for Timeout {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let mut response_future = pin!(next.call(request));
        let mut timer = pin!(None::<Sleep>);
        let result = poll_fn(|cx| {
            if let Poll::Ready(response) = response_future.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
            }
            if timer.is_none() {
                timer.set(Some(sleep(self.limit)));
            }
            let timer = timer.as_mut().as_pin_mut().expect("the timer was set above");
            timer.poll(cx).map(|()| None)
        });
        result.await.unwrap_or_else(|| self.problem().into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::App;
    use std::cell::Cell;
    use std::rc::Rc;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs `future` with virtual time that advances when everything waits.
    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().expect("a runtime").block_on(future)
    }

    /// Sets the flag when dropped.
    struct SetOnDrop(Rc<Cell<bool>>);

    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    /// A handler that sleeps, and sets the flag when it is dropped or completes.
    fn sleeper(
        duration: Duration,
        dropped: &Rc<Cell<bool>>,
    ) -> impl AsyncFn() -> &'static str + use<> {
        let dropped = Rc::clone(dropped);
        async move || {
            let _guard = SetOnDrop(Rc::clone(&dropped));
            sleep(duration).await;
            "slept"
        }
    }

    #[test]
    fn a_response_within_the_limit_passes() {
        let handler = sleeper(SECOND, &Rc::default());
        let app = App::new().wrap(Timeout::new(2 * SECOND)).get("/", handler);
        run(async { assert_eq!(app.test().get("/").send().await.text(), "slept") });
    }

    #[test]
    fn a_late_handler_is_dropped_and_the_client_gets_a_503() {
        let dropped = Rc::new(Cell::new(false));
        let handler = sleeper(2 * SECOND, &dropped);
        let app = App::new().wrap(Timeout::new(SECOND)).get("/", handler);
        run(async {
            let response = app.test().get("/").send().await;
            assert_eq!((response.status().as_u16(), dropped.get()), (503, true));
            let text = response.text();
            assert!(
                text.contains("within 1000 ms") && text.contains("\"limit_ms\":1000"),
                "{text}"
            );
            assert!(text.contains("/problems/timeout"), "{text}");
        });
    }

    #[test]
    fn a_gateway_may_choose_504() {
        let timeout = Timeout::new(SECOND).status(StatusCode::GATEWAY_TIMEOUT);
        let app = App::new().wrap(timeout).get("/", sleeper(2 * SECOND, &Rc::default()));
        run(async { assert_eq!(app.test().get("/").send().await.status(), 504) });
    }
}
