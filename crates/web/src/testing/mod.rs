//! A client that calls an application without a network or a runtime.
//!
//! Each request is written as HTTP/1.1, read by the parser that the server uses, and handled by
//! the same code; only the connection is missing. The server's body limit
//! ([`TestClient::body_limit`]) and the timeouts of routes ([`TestClient::with_timer`]) apply as in
//! the server. The client does nothing else that the server does: for example, it does not add
//! `Date`, and a panic of a handler fails the test instead of becoming a 500.
//!
//! ```
//! use peregrine::web::{App, Request};
//!
//! async fn greet(request: Request) -> String {
//!     format!("hello, {}", request.header("x-name").unwrap_or("stranger"))
//! }
//!
//! let client = App::new().get("/", greet).test();
//! let response = client.get("/").header("x-name", "Ada").send_blocking();
//! assert_eq!(response.status(), 200);
//! assert_eq!(response.text(), "hello, Ada");
//! ```
//!
//! In an async test, `.send().await` does the same as `send_blocking()`.

use crate::app::App;
use crate::app::built::BuiltApp;
use crate::http::body::limits::DEFAULT_BODY_BYTES_MAX;
use crate::http::client::TrustedProxies;
use crate::http::connection::ConnectionInfo;
use browser::CookieJar;
use http::Method;
use std::cell::RefCell;
use std::fmt;
use std::io::Write as _;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

mod assertions;
mod browser;
mod events;
mod form;
mod request;
mod response;
mod sleep;
mod timer;
mod websocket;

pub use events::{TestEvent, TestEventReader};
pub use form::TestForm;
pub use request::TestRequest;
pub use response::TestResponse;
pub use websocket::{TestMessage, TestWebSocket};

impl App {
    /// Builds the application and creates a client that calls it without a network.
    ///
    /// # Panics
    /// If the application has errors; the message lists all that [`App::build`] found.
    #[doc(alias = "test_client")]
    #[doc(alias = "oneshot")]
    #[doc(alias = "TestServer")]
    #[track_caller]
    #[must_use]
    pub fn test(self) -> TestClient {
        match self.build() {
            Ok(application) => application.test(),
            Err(error) => panic!("{error}"),
        }
    }
}

impl BuiltApp {
    /// Creates a client that calls this application without a network.
    #[must_use]
    pub fn test(self) -> TestClient {
        TestClient::new(Rc::new(self), ConnectionInfo::default())
    }
}

/// A client that calls an application directly. [`App::test`] creates one.
#[derive(Clone)]
pub struct TestClient {
    app: Rc<BuiltApp>,
    connection: Rc<ConnectionInfo>,
    body_bytes_max: u64,
    /// The function with which timers wait: see [`TestClient::with_timer`].
    sleep: SleepFn,
    /// `None` unless [`TestClient::save_cookies`] was called.
    jar: Option<Rc<RefCell<CookieJar>>>,
    follows_redirects: bool,
}

type SleepFn = Rc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>>;

impl TestClient {
    pub(crate) fn new(app: Rc<BuiltApp>, connection: ConnectionInfo) -> Self {
        let sleep: SleepFn = Rc::new(|duration| Box::pin(sleep::sleep(duration)));
        let connection = Rc::new(connection);
        Self {
            app,
            connection,
            body_bytes_max: DEFAULT_BODY_BYTES_MAX,
            sleep,
            jar: None,
            follows_redirects: false,
        }
    }

    /// The same client, with these connection properties.
    #[must_use]
    pub fn with_connection(self, connection: ConnectionInfo) -> Self {
        Self { connection: Rc::new(connection), ..self }
    }

    /// The same client behind trusted proxies: header fields of its requests such as
    /// `X-Forwarded-For` are trusted.
    #[must_use]
    pub fn with_trusted_proxies(self, proxies: impl Into<TrustedProxies>) -> Self {
        let proxies = Some(Arc::new(proxies.into()));
        let connection =
            ConnectionInfo { trusted_proxies: proxies, ..ConnectionInfo::clone(&self.connection) };
        self.with_connection(connection)
    }

    /// Sets the server's body limit in bytes, for routes and middleware that set none. The default
    /// is 2 MiB, as in the server.
    #[must_use]
    pub fn body_limit(self, bytes_max: u64) -> Self {
        Self { body_bytes_max: bytes_max, ..self }
    }

    /// Sets the timer for timeouts of routes, deadlines of gRPC calls to mounted services, and
    /// keep-alive comments in event streams. In a test where Tokio controls the time, use
    /// `.with_timer(tokio::time::sleep)`.
    ///
    /// The default is real time, for which each wait starts a thread.
    #[must_use]
    pub fn with_timer<F>(self, sleep: impl Fn(Duration) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        Self { sleep: Rc::new(move |duration| Box::pin(sleep(duration))), ..self }
    }

    /// Stores the cookies that responses set and sends them, as browsers do (RFC 6265): by host,
    /// domain and path. `Secure` cookies are stored without TLS too, as for `localhost`. A response
    /// removes a cookie with a `Max-Age` of zero, or an `Expires` that is already past; otherwise
    /// cookies do not expire. Clones of the client share the cookies. A request with its own
    /// `Cookie` field sends only that.
    ///
    /// ```
    /// use peregrine::web::{App, Request};
    ///
    /// let greet = |request: Request| format!("{:?}", request.header("cookie"));
    /// let log_in = || ([("set-cookie", "who=Ada; HttpOnly")], "welcome");
    /// let client = App::new().get("/", greet).get("/login", log_in).test().save_cookies();
    /// assert_eq!(client.get("/").send_blocking().text(), "None");
    /// assert_eq!(client.get("/login").send_blocking().text(), "welcome");
    /// assert_eq!(client.get("/").send_blocking().text(), "Some(\"who=Ada\")");
    /// ```
    #[doc(alias = "cookie_store")]
    #[must_use]
    pub fn save_cookies(self) -> Self {
        Self { jar: Some(Rc::default()), ..self }
    }

    /// Follows redirects to the same host, as browsers do. After a 303, and after a 301 or 302 in
    /// response to a POST, the client sends a GET without the body (after a HEAD, another HEAD);
    /// after other redirects, it repeats the request. The client returns the redirect itself if the
    /// target is on another host, or if the request's body is a stream, which cannot be repeated.
    /// [`TestResponse::redirects`] lists the targets.
    ///
    /// A request that is redirected more than 20 times panics.
    #[must_use]
    pub fn follow_redirects(self) -> Self {
        Self { follows_redirects: true, ..self }
    }

    /// The application.
    #[must_use]
    pub fn app(&self) -> &BuiltApp {
        &self.app
    }

    /// Creates a request, which is not sent yet. `target` is written to the request line unchanged:
    /// a path with an optional query, or one of the other forms.
    pub fn request(&self, method: Method, target: &str) -> TestRequest {
        TestRequest::new(self.clone(), method, target.to_owned())
    }

    /// Creates a GET request.
    pub fn get(&self, target: &str) -> TestRequest {
        self.request(Method::GET, target)
    }

    /// Creates a HEAD request.
    pub fn head(&self, target: &str) -> TestRequest {
        self.request(Method::HEAD, target)
    }

    /// Creates a POST request.
    pub fn post(&self, target: &str) -> TestRequest {
        self.request(Method::POST, target)
    }

    /// Creates a PUT request.
    pub fn put(&self, target: &str) -> TestRequest {
        self.request(Method::PUT, target)
    }

    /// Creates a PATCH request.
    pub fn patch(&self, target: &str) -> TestRequest {
        self.request(Method::PATCH, target)
    }

    /// Creates a DELETE request.
    pub fn delete(&self, target: &str) -> TestRequest {
        self.request(Method::DELETE, target)
    }

    /// Creates an OPTIONS request.
    pub fn options(&self, target: &str) -> TestRequest {
        self.request(Method::OPTIONS, target)
    }
}

impl fmt::Debug for TestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestClient")
            .field("app", &self.app)
            .field("connection", &self.connection)
            .field("body_bytes_max", &self.body_bytes_max)
            .finish_non_exhaustive()
    }
}

/// Runs `future` to completion on this thread, which sleeps while it waits.
pub fn block_on<F: Future>(future: F) -> F::Output {
    block_on_with(future, STUCK_AFTER, || {
        // `eprintln!` is captured until the test ends, and this test may never end.
        let _ = std::io::stderr().write_all(STUCK_MESSAGE.as_bytes());
    })
}

/// How long a test's thread waits before it prints why it may be blocked forever.
const STUCK_AFTER: Duration = Duration::from_secs(5);

const STUCK_MESSAGE: &str = "\
peregrine: a test has blocked its thread for 5 s, in `send_blocking`, `event_blocking`, `text` or \
a similar method. If the handler waits for something that this thread's own runtime drives, as in \
`#[tokio::test]`, it will wait forever: await `send()` instead, and `collect()` before `text()`\n";

/// Polls `future` to completion on this thread. Calls `report` the first time that nothing wakes
/// the thread within `timeout`.
fn block_on_with<F: Future>(future: F, timeout: Duration, report: impl FnOnce()) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut report = Some(report);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        let start = Instant::now();
        if report.is_some() {
            std::thread::park_timeout(timeout);
        } else {
            std::thread::park();
        }
        if start.elapsed() >= timeout
            && let Some(report) = report.take()
        {
            report();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;

    #[test]
    fn reports_a_blocked_thread_once() {
        let (reports, polls) = (Cell::new(0), Cell::new(0));
        let stuck = poll_fn(|cx| {
            polls.set(polls.get() + 1);
            match (reports.get(), polls.get()) {
                (0, _) => Poll::Pending,
                (_, count) if count > 5 => Poll::Ready(count),
                _ => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        });
        let result =
            block_on_with(stuck, Duration::from_millis(1), || reports.set(reports.get() + 1));
        assert_eq!((reports.get(), result), (1, polls.get()));
    }
}
