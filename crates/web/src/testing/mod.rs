//! A client that calls an application without a network or a runtime.
//!
//! Each request is written as HTTP/1.1, read by the same parser as in production, and answered by the
//! same code; only the connection is missing. The server's body limit ([`TestClient::body_limit`]) and
//! the time limits of routes ([`TestClient::timer`]) are kept as in the server. Whatever else the
//! server does beside calling the application (`Date`, the 500 in place of a panic, which here fails
//! the test) does not happen.
//!
//! ```
//! use peregrine::web::{App, Request};
//!
//! async fn greet(request: Request) -> String {
//!     format!("hello, {}", request.header("x-name").unwrap_or("stranger"))
//! }
//!
//! let client = App::new().get("/", greet).test();
//! let response = client.get("/").header("x-name", "Ada").send_now();
//! assert_eq!(response.status(), 200);
//! assert_eq!(response.text(), "hello, Ada");
//! ```
//!
//! In an async test, `.send().await` does the same.

use crate::app::App;
use crate::app::built::Application;
use crate::http::body::limits::BODY_BYTES_MAX;
use crate::http::client::TrustedProxies;
use crate::http::connection::ConnectionInfo;
use browser::Jar;
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
mod clock;
mod events;
mod form;
mod request;
mod response;
mod sleep;
mod websocket;

pub use events::{EventReader, TestEvent};
pub use form::TestForm;
pub use request::TestRequest;
pub use response::TestResponse;
pub use websocket::{TestMessage, TestSocket};

impl App {
    /// Builds the application and makes a client that calls it without a network.
    ///
    /// # Panics
    /// The application has faults; the message lists all that [`App::build`] found.
    #[track_caller]
    #[must_use]
    pub fn test(self) -> TestClient {
        match self.build() {
            Ok(application) => application.test(),
            Err(error) => panic!("{error}"),
        }
    }
}

impl Application {
    /// A client that calls this application without a network.
    #[must_use]
    pub fn test(self) -> TestClient {
        TestClient::new(Rc::new(self), ConnectionInfo::default())
    }
}

/// Calls an application. [`App::test`] makes one.
#[derive(Clone)]
pub struct TestClient {
    app: Rc<Application>,
    connection: Rc<ConnectionInfo>,
    body_bytes_max: u64,
    sleep: Sleep,
    jar: Option<Rc<RefCell<Jar>>>,
    follows: bool,
}

type Sleep = Rc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>>;

impl TestClient {
    pub(crate) fn new(app: Rc<Application>, connection: ConnectionInfo) -> Self {
        let sleep: Sleep = Rc::new(|duration| Box::pin(sleep::sleep(duration)));
        let connection = Rc::new(connection);
        Self { app, connection, body_bytes_max: BODY_BYTES_MAX, sleep, jar: None, follows: false }
    }

    /// The same client on a connection with these facts.
    #[must_use]
    pub fn on(self, connection: ConnectionInfo) -> Self {
        Self { connection: Rc::new(connection), ..self }
    }

    /// The same client behind trusted proxies: what its requests say about their clients counts, in `X-Forwarded-For`
    /// and the like.
    #[must_use]
    pub fn behind(self, proxies: impl Into<TrustedProxies>) -> Self {
        let proxies = Some(Arc::new(proxies.into()));
        let connection = ConnectionInfo { proxies, ..ConnectionInfo::clone(&self.connection) };
        self.on(connection)
    }

    /// Sets the server's body limit, in bytes, for routes and middleware that set none. The default is
    /// 2 MiB, as in the server.
    #[must_use]
    pub fn body_limit(self, bytes_max: u64) -> Self {
        Self { body_bytes_max: bytes_max, ..self }
    }

    /// Sets the timer for the time limits of routes, for the deadlines that calls of gRPC bring to
    /// mounts, and for the comments of silent event streams:
    /// `.timer(tokio::time::sleep)` in a test whose time tokio drives. The default is real time,
    /// measured by a thread for each request that is not answered at once and has such a limit, and for
    /// each event that is waited for.
    #[must_use]
    pub fn timer<F>(self, sleep: impl Fn(Duration) -> F + 'static) -> Self
    where
        F: Future<Output = ()> + 'static,
    {
        Self { sleep: Rc::new(move |duration| Box::pin(sleep(duration))), ..self }
    }

    /// Keeps the cookies that responses set, and sends them, as browsers do (RFC 6265): by host, domain and path. Those
    /// with `Secure` are kept without TLS too, as for `localhost`. A `Max-Age` of zero takes one away, and so does an
    /// `Expires` that is over when it comes; else they stay. Clones of the client share them. A request with a
    /// `Cookie` of its own sends that alone.
    ///
    /// ```
    /// use peregrine::web::{App, Request};
    ///
    /// let greet = |request: Request| format!("{:?}", request.header("cookie"));
    /// let log_in = || ([("set-cookie", "who=Ada; HttpOnly")], "welcome");
    /// let client = App::new().get("/", greet).get("/login", log_in).test().keep_cookies();
    /// assert_eq!(client.get("/").send_now().text(), "None");
    /// assert_eq!(client.get("/login").send_now().text(), "welcome");
    /// assert_eq!(client.get("/").send_now().text(), "Some(\"who=Ada\")");
    /// ```
    #[must_use]
    pub fn keep_cookies(self) -> Self {
        Self { jar: Some(Rc::default()), ..self }
    }

    /// Follows redirects to the same host, as browsers do: after 303, and after 301 and 302 to a POST, by GET without
    /// the body, else by the same request. One whose body is a stream cannot be repeated, and one that leads to another host
    /// is not for this application: these redirects are the answer. [`TestResponse::redirects`] tells the way.
    ///
    /// Requests panic that would be redirected more than 20 times.
    #[must_use]
    pub fn follow_redirects(self) -> Self {
        Self { follows: true, ..self }
    }

    /// The application.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.app
    }

    /// A request. `target` goes into the request line as it is: a path with or without a query, or one
    /// of the other forms.
    pub fn request(&self, method: Method, target: &str) -> TestRequest {
        TestRequest::new(self.clone(), method, target.to_owned())
    }

    /// A GET request.
    pub fn get(&self, target: &str) -> TestRequest {
        self.request(Method::GET, target)
    }

    /// A HEAD request.
    pub fn head(&self, target: &str) -> TestRequest {
        self.request(Method::HEAD, target)
    }

    /// A POST request.
    pub fn post(&self, target: &str) -> TestRequest {
        self.request(Method::POST, target)
    }

    /// A PUT request.
    pub fn put(&self, target: &str) -> TestRequest {
        self.request(Method::PUT, target)
    }

    /// A PATCH request.
    pub fn patch(&self, target: &str) -> TestRequest {
        self.request(Method::PATCH, target)
    }

    /// A DELETE request.
    pub fn delete(&self, target: &str) -> TestRequest {
        self.request(Method::DELETE, target)
    }

    /// An OPTIONS request.
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

/// Runs `future` to its end on this thread, which sleeps while it waits.
pub fn block_on<F: Future>(future: F) -> F::Output {
    wait_for(future, PATIENCE, || {
        // Not by `eprintln!`, which is shown when a test ends: this one may not.
        let _ = std::io::stderr().write_all(STUCK.as_bytes());
    })
}

/// How long a test's thread waits before it is told why it may wait for ever.
const PATIENCE: Duration = Duration::from_secs(5);

const STUCK: &str = "\
peregrine: a test has blocked its thread for 5 s, in `send_now`, `event_now`, `text` or the like. If what its handler waits \
for is driven by this thread's own runtime, as in `#[tokio::test]`, it will never come: await `send()` there, and `collect()` \
before `text()`\n";

/// Polls to the end on this thread, and calls `tell` once if nothing woke it for so long.
fn wait_for<F: Future>(future: F, patience: Duration, tell: impl FnOnce()) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut tell = Some(tell);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let begun = Instant::now();
        if tell.is_some() {
            std::thread::park_timeout(patience);
        } else {
            std::thread::park();
        }
        if begun.elapsed() >= patience
            && let Some(tell) = tell.take()
        {
            tell();
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
    fn a_wait_that_nobody_ends_is_told_once() {
        let (told, polls) = (Cell::new(0), Cell::new(0));
        let stuck = poll_fn(|context| {
            polls.set(polls.get() + 1);
            match (told.get(), polls.get()) {
                (0, _) => Poll::Pending,
                (_, polled) if polled > 5 => Poll::Ready(polled),
                _ => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        });
        let polled = wait_for(stuck, Duration::from_millis(1), || told.set(told.get() + 1));
        assert_eq!((told.get(), polled), (1, polls.get()));
    }
}
