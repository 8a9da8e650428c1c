//! Responds in place of handlers that panic.

use crate::snapshot::RequestSnapshot;
use http::StatusCode;
use peregrine_web::panic::{catch_subscriber_panic, drop_panic_payload};
use peregrine_web::{IntoResponse, Middleware, Problem, Request, RequestHead, Response, Service};
use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

/// Responds with 500 if code inside panics, instead of ending the connection.
///
/// The message is logged with the route, as a `tracing` event of level `ERROR`; the peer does not
/// see it. Values that the handler had borrowed mutably (a `RefCell`, a lock) stay as the panic
/// left them. A program compiled with `panic = "abort"` still aborts.
///
/// ```
/// use peregrine::middleware::CatchPanic;
/// use peregrine::App;
///
/// let nothing: Vec<String> = Vec::new();
/// let app = App::new().wrap(CatchPanic::new()).get("/", move || nothing[0].clone());
/// assert_eq!(app.test().get("/").send_blocking().status(), 500);
/// ```
#[derive(Default)]
pub struct CatchPanic {
    hook: Option<PanicHook>,
}

type PanicHook = Box<dyn Fn(&PanicInfo<'_>) -> Response>;

/// A panic, passed to the hook of [`CatchPanic::on_panic`].
#[doc(alias = "PanicHookInfo")]
#[derive(Clone, Copy, Debug)]
pub struct PanicInfo<'p> {
    /// The panic's message; empty if the payload is not text. It may contain secrets.
    pub message: &'p str,
    /// The pattern of the route, such as `/birds/{id}`, or `/api/*` for a mounted service.
    pub route: Option<&'p str>,
    /// The head of the request.
    pub head: &'p RequestHead,
}

impl CatchPanic {
    /// Responds with a problem of status 500 and kind `panic`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Responds with the result of `hook` instead. The panic is logged first.
    ///
    /// ```
    /// use peregrine::middleware::CatchPanic;
    /// use peregrine::App;
    ///
    /// let catch = CatchPanic::new().on_panic(|info| format!("{:?} broke", info.route));
    /// let app = App::new().wrap(catch).get("/{x}", || -> &'static str { panic!("oh no") });
    /// assert_eq!(app.test().get("/a").send_blocking().text(), "Some(\"/{x}\") broke");
    /// ```
    #[must_use]
    pub fn on_panic<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(&PanicInfo<'_>) -> R + 'static,
        R: IntoResponse,
    {
        self.hook = Some(Box::new(move |info| hook(info).into_response()));
        self
    }

    fn respond(&self, info: &PanicInfo<'_>) -> Response {
        catch_subscriber_panic(|| {
            tracing::error!(
                panic = info.message,
                method = info.head.method_str(),
                route = info.route,
                "a handler panicked"
            )
        });
        match &self.hook {
            Some(hook) => hook(info),
            None => {
                let detail = "the server failed while handling this request";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "panic", detail).into_response()
            }
        }
    }
}

impl Middleware for CatchPanic {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let snapshot = RequestSnapshot::new(&request.parts);
        // The call is inside the future, so a panic in it is caught as well.
        let mut response_future = pin!(async { next.call(request).await });
        // After a panic the future is not polled again, only dropped.
        let result = poll_fn(|cx| {
            match catch_unwind(AssertUnwindSafe(|| response_future.as_mut().poll(cx))) {
                Ok(polled) => polled.map(Ok),
                Err(payload) => Poll::Ready(Err(payload)),
            }
        });
        match result.await {
            Ok(response) => response,
            Err(payload) => {
                let (route, message) = (snapshot.route_pattern(), panic_message(&*payload));
                let route = route.as_deref();
                let response = self.respond(&PanicInfo { message, route, head: &snapshot.head });
                drop_panic_payload(payload);
                response
            }
        }
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("", String::as_str),
    }
}

impl fmt::Debug for CatchPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatchPanic").field("hook", &self.hook.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::events_of;
    use peregrine_web::App;
    use peregrine_web::extract::Path;

    async fn find_bird(Path(id): Path<u8>) -> String {
        assert!(id != 7, "there is no bird number {id}");
        format!("bird {id}")
    }

    fn app() -> App {
        App::new().wrap(CatchPanic::new()).get("/birds/{id}", find_bird)
    }

    #[test]
    fn the_peer_gets_a_problem_without_the_message_and_the_next_request_works() {
        let client = app().test();
        let response = client.get("/birds/7").send_blocking();
        assert_eq!(
            (response.status().as_u16(), response.field("content-type")),
            (500, Some("application/problem+json"))
        );
        let text = response.text();
        assert!(text.contains("/problems/panic") && !text.contains("bird number"), "{text}");
        assert_eq!(client.get("/birds/8").send_blocking().text(), "bird 8");
    }

    #[test]
    fn the_log_has_the_message_and_the_route() {
        let client = app().test();
        let events = events_of(|| drop(client.get("/birds/7").send_blocking()));
        let [event] = &events[..] else { panic!("one event, not {events:?}") };
        assert_eq!(event.level, tracing::Level::ERROR);
        assert_eq!(event.field("route"), Some("/birds/{id}"));
        assert_eq!(event.field("panic"), Some("there is no bird number 7"));
    }

    #[test]
    fn a_panic_after_an_await_and_one_with_another_payload_are_caught() {
        let handler = async || -> &'static str {
            std::future::ready(()).await;
            std::panic::panic_any(7u8)
        };
        let catch = CatchPanic::new().on_panic(|info| {
            (StatusCode::BAD_GATEWAY, format!("{:?} {}", info.message, info.head.path()))
        });
        let response = App::new().wrap(catch).get("/x", handler).test().get("/x").send_blocking();
        assert_eq!((response.status().as_u16(), response.text().as_str()), (502, "\"\" /x"));
    }
}
