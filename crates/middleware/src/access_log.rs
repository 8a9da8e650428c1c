//! Logs an event for each request.

use crate::request_id::{self, RequestId};
use crate::snapshot::RequestSnapshot;
use http::StatusCode;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Middleware, Problem, Request, Response, Service};
use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::thread;
use std::time::Instant;
use tracing::Level;
use tracing::level_filters::LevelFilter;

/// The target of the events, for filters.
pub const ACCESS_LOG_TARGET: &str = "peregrine::access";

/// Writes a `tracing` event for each request, when its response begins.
///
/// | field | value |
/// |---|---|
/// | `method` | as sent |
/// | `route` | the pattern, such as `/birds/{id}`; missing without a route |
/// | `path` | as sent, without the query, which may contain secrets |
/// | `status` | the response's; 500 if the handler panicked; missing if the peer disconnected |
/// | `duration_us` | microseconds until the response head; the body takes longer |
/// | `bytes` | the length of the response's body; missing if unknown |
/// | `problem` | the kind of the problem that became the response, such as `invalid-json` |
/// | `peer` | the address of the connection's other end |
/// | `client` | the address of the client, if reported by a trusted proxy |
/// | `request_id` | the ID set by a [`crate::SetRequestId`] around this middleware |
///
/// The message is `completed`, `panicked` or `cancelled`. After a panic, the response is created
/// outside of this middleware: a 500, unless a [`CatchPanic`](crate::CatchPanic) around it returns
/// something else.
///
/// The level is `INFO`; `WARN` for a status of 400 or above and for requests that were cancelled
/// because the peer disconnected; `ERROR` for 500 or above. The target is [`ACCESS_LOG_TARGET`].
/// Without a subscriber, this middleware costs one comparison per request.
///
/// ```
/// use peregrine::middleware::{AccessLog, SetRequestId};
/// use peregrine::App;
///
/// let app = App::new().wrap(SetRequestId::new()).wrap(AccessLog::new()).get("/", || "hello");
/// assert_eq!(app.test().get("/").send_blocking().text(), "hello");
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AccessLog;

impl AccessLog {
    /// Creates a middleware that logs every request.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Middleware for AccessLog {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        // Not `enabled!`: see `SetRequestId`.
        if LevelFilter::current() < LevelFilter::ERROR {
            return next.call(request).await;
        }
        let mut record = LogRecord::new(&request);
        let response = next.call(request).await;
        // The application may render problems differently, with another length.
        let response = record.request.render_problem(response);
        record.response = Some(ResponseSummary::new(&response));
        // Dropping the record logs it.
        drop(record);
        response
    }
}

/// The logged properties of a request. The event is written on drop, so a cancelled request is
/// logged as well.
struct LogRecord {
    started_at: Instant,
    request: RequestSnapshot,
    connection: Rc<ConnectionInfo>,
    /// The client's address, if it differs from the peer's.
    client: Option<IpAddr>,
    request_id: Option<RequestId>,
    response: Option<ResponseSummary>,
}

/// The logged properties of a response.
struct ResponseSummary {
    status: StatusCode,
    bytes: Option<u64>,
    problem: Option<Cow<'static, str>>,
}

impl ResponseSummary {
    fn new(response: &Response) -> Self {
        let problem = response.extensions().and_then(|extensions| extensions.get::<Problem>());
        Self {
            status: response.status,
            bytes: response.body.length(),
            problem: problem.map(|problem| problem.kind.clone()),
        }
    }
}

impl LogRecord {
    fn new(request: &Request) -> Self {
        let (parts, client) = (&request.parts, request.client());
        Self {
            client: client.ip().filter(|_| client.hops() > 0),
            started_at: Instant::now(),
            request: RequestSnapshot::new(parts),
            connection: Rc::clone(parts.connection_untracked()),
            request_id: request_id::from_parts(parts),
            response: None,
        }
    }
}

impl Drop for LogRecord {
    fn drop(&mut self) {
        let duration_us = u64::try_from(self.started_at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let response = self.response.as_ref();
        let has_panicked = response.is_none() && thread::panicking();
        let status = match response {
            Some(response) => Some(response.status.as_u16()),
            None => has_panicked.then_some(500),
        };
        // The level is part of an event's static metadata, so each level needs its own macro call.
        macro_rules! log {
            ($level:expr, $text:literal) => {
                catch_subscriber_panic(|| tracing::event!(
                    target: ACCESS_LOG_TARGET,
                    $level,
                    method = self.request.head.method_str(),
                    route = self.request.route_pattern().as_deref(),
                    path = self.request.head.path(),
                    status,
                    duration_us,
                    bytes = response.and_then(|response| response.bytes),
                    problem = response.and_then(|response| response.problem.as_deref()),
                    peer = %self.connection.peer,
                    client = self.client.map(tracing::field::display),
                    request_id = self.request_id.as_ref().map(RequestId::as_str),
                    $text
                ))
            };
        }
        match status {
            _ if has_panicked => log!(Level::ERROR, "panicked"),
            Some(500..) => log!(Level::ERROR, "completed"),
            Some(400..) => log!(Level::WARN, "completed"),
            Some(_) => log!(Level::INFO, "completed"),
            None => log!(Level::WARN, "cancelled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::events_of;
    use crate::{CatchPanic, SetRequestId};
    use peregrine_web::connection::ConnectionAddr;
    use peregrine_web::extract::Path;
    use peregrine_web::testing::TestClient;
    use peregrine_web::{App, TrustedProxies};
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Waker};

    async fn respond(Path(status): Path<u16>) -> (StatusCode, &'static str) {
        (StatusCode::from_u16(status).expect("a status"), "text")
    }

    #[test]
    fn an_event_has_all_fields_but_not_the_query() {
        let app =
            App::new().wrap(SetRequestId::new()).wrap(AccessLog::new()).get("/{status}", respond);
        let peer = ConnectionAddr::Tcp("192.0.2.1:99".parse().expect("an address"));
        let client =
            app.test().with_connection(ConnectionInfo { peer, ..ConnectionInfo::default() });
        let events = events_of(|| {
            drop(client.get("/201?key=secret").header("x-request-id", "id-1").send_blocking());
        });
        let [event] = &events[..] else { panic!("one event, not {events:?}") };
        assert_eq!((event.level, event.target), (Level::INFO, ACCESS_LOG_TARGET));
        for (name, value) in [
            ("message", "completed"),
            ("method", "GET"),
            ("route", "/{status}"),
            ("path", "/201"),
            ("status", "201"),
            ("bytes", "4"),
            ("peer", "192.0.2.1:99"),
            ("request_id", "id-1"),
        ] {
            assert_eq!(event.field(name), Some(value), "{name}");
        }
        assert!(event.field("duration_us").is_some_and(|text| text.parse::<u64>().is_ok()));
    }

    #[test]
    fn the_client_is_logged_if_a_trusted_proxy_reports_it() {
        let client = App::new().wrap(AccessLog::new()).get("/{status}", respond).test();
        let field = |client: &TestClient| {
            let get = client.get("/200").header("x-forwarded-for", "192.0.2.9, 192.0.2.7");
            events_of(|| drop(get.send_blocking()))[0].field("client").map(str::to_owned)
        };
        assert_eq!(field(&client), None);
        assert_eq!(
            field(&client.with_trusted_proxies(TrustedProxies::hops(1))).as_deref(),
            Some("192.0.2.7")
        );
    }

    #[test]
    fn the_level_follows_the_status() {
        let client = App::new().wrap(AccessLog::new()).get("/{status}", respond).test();
        for (path, level) in [
            ("/200", Level::INFO),
            ("/302", Level::INFO),
            ("/404", Level::WARN),
            ("/503", Level::ERROR),
            ("/a/b", Level::WARN),
        ] {
            let events = events_of(|| drop(client.get(path).send_blocking()));
            assert_eq!(
                events.iter().map(|event| event.level).collect::<Vec<_>>(),
                [level],
                "{path}"
            );
        }
    }

    #[test]
    fn the_kind_of_a_problem_is_logged() {
        let client = App::new().wrap(AccessLog::new()).get("/{status}", respond).test();
        let events = events_of(|| drop(client.get("/x").send_blocking()));
        assert_eq!(events[0].field("problem"), Some("invalid-path"));
    }

    #[test]
    fn the_length_is_that_of_the_rendered_problem() {
        let renders = Rc::new(Cell::new(0));
        let counter = Rc::clone(&renders);
        let app = App::new().wrap(AccessLog::new()).get("/{status}", respond);
        let client = app
            .on_problem(move |problem, _| {
                counter.set(counter.get() + 1);
                (problem.status, "short")
            })
            .test();
        for (path, kind) in [("/x", "invalid-path"), ("/", "unknown-route")] {
            let before = renders.get();
            let mut text = String::new();
            let events = events_of(|| text = client.get(path).send_blocking().text());
            assert_eq!((text.as_str(), renders.get() - before), ("short", 1), "{path}");
            assert_eq!(events[0].field("bytes"), Some("5"), "{path}");
            assert_eq!(events[0].field("problem"), Some(kind), "{path}");
        }
    }

    #[test]
    fn a_panic_is_logged() {
        let handler = async || -> &'static str { panic!("on purpose") };
        let client =
            App::new().wrap(CatchPanic::new()).wrap(AccessLog::new()).get("/", handler).test();
        let events = events_of(|| drop(client.get("/").send_blocking()));
        let [event, panic] = &events[..] else { panic!("two events, not {events:?}") };
        assert_eq!((event.level, event.field("message")), (Level::ERROR, Some("panicked")));
        assert_eq!((event.field("path"), event.field("status")), (Some("/"), Some("500")));
        assert_eq!(panic.field("panic"), Some("on purpose"));
    }

    #[test]
    fn a_cancelled_request_is_logged() {
        let handler = async || std::future::pending::<()>().await;
        let client = App::new().wrap(AccessLog::new()).get("/", handler).test();
        let events = events_of(|| {
            let mut response = pin!(client.get("/").send());
            assert!(response.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
        let [event] = &events[..] else { panic!("one event, not {events:?}") };
        assert_eq!((event.level, event.field("message")), (Level::WARN, Some("cancelled")));
        assert_eq!((event.field("path"), event.field("status")), (Some("/"), None));
    }
}
