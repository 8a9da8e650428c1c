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
use crate::application::Application;
use crate::body::Body;
use crate::client::TrustedProxies;
use crate::clock::{Clock, within};
use crate::connection::ConnectionInfo;
use crate::extract::BODY_BYTES_MAX;
use crate::head::Head;
use crate::pipe::{PIPE_BYTES_MAX, Writer, pipe};
use crate::problem::Problem;
use crate::request::Request;
use bytes::Bytes;
use http::{HeaderMap, Method};
use peregrine_proto::Limits;
use peregrine_proto::h1::{Connection, Event};
use peregrine_slot::FutureSlot;
use response::{Sender, Sending, poll_sender};
use serde::Serialize;
use std::fmt;
use std::future::poll_fn;
use std::io::Write as _;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

mod clock;
mod events;
mod response;
mod timer;
mod websocket;

pub use events::{EventReader, TestEvent};
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

/// Calls an application. [`App::test`] makes one.
#[derive(Clone)]
pub struct TestClient {
    app: Rc<Application>,
    connection: Rc<ConnectionInfo>,
    body_bytes_max: u64,
    sleep: Sleep,
}

type Sleep = Rc<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = ()>>>>;

impl TestClient {
    pub(crate) fn new(app: Rc<Application>, connection: ConnectionInfo) -> Self {
        let sleep: Sleep = Rc::new(|duration| Box::pin(timer::sleep(duration)));
        Self { app, connection: Rc::new(connection), body_bytes_max: BODY_BYTES_MAX, sleep }
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

    /// The application.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.app
    }

    /// A request. `target` goes into the request line as it is: a path with or without a query, or one
    /// of the other forms.
    pub fn request(&self, method: Method, target: &str) -> TestRequest {
        TestRequest {
            client: self.clone(),
            method,
            target: target.to_owned(),
            fields: Vec::new(),
            content: Content::None,
        }
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

/// A request to be sent.
#[must_use = "a request does nothing until it is sent"]
pub struct TestRequest {
    client: TestClient,
    method: Method,
    target: String,
    fields: Vec<(String, Vec<u8>)>,
    content: Content,
}

enum Content {
    None,
    Whole(Bytes),
    /// The task that writes the pieces into a pipe.
    Stream(Box<dyn FnOnce(Writer) -> Sending>),
}

impl TestRequest {
    /// Adds a header field. `Host` is added unless it is given; so are the fields that the body needs.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// Sets a body of these bytes, complete before the handler runs.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.content = Content::Whole(body.into());
        self
    }

    /// Sets a JSON body, with its `Content-Type`.
    ///
    /// # Panics
    /// The value cannot be written as JSON.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        let json = serde_json::to_vec(value).expect("the value can be written as JSON");
        self.header("content-type", "application/json").body(json)
    }

    /// Sets a body of form fields, with its `Content-Type`.
    ///
    /// # Panics
    /// The value cannot be written as a form.
    pub fn form(self, value: &impl Serialize) -> Self {
        let form = serde_html_form::to_string(value).expect("the value can be written as a form");
        self.header("content-type", "application/x-www-form-urlencoded").body(form)
    }

    /// Sets a body that arrives in pieces while the handler runs, sent chunked unless a
    /// `Content-Length` is given. It waits while the handler does not read.
    pub fn stream<S, T>(mut self, pieces: S) -> Self
    where
        S: futures_core::Stream<Item = T> + 'static,
        T: Into<Bytes>,
    {
        self.content = Content::Stream(Box::new(move |writer| Box::pin(pump(pieces, writer))));
        self
    }

    /// Sets a body of these pieces, as [`TestRequest::stream`].
    pub fn pieces<I, T>(self, pieces: I) -> Self
    where
        I: IntoIterator<Item = T>,
        I::IntoIter: Unpin + 'static,
        T: Into<Bytes> + 'static,
    {
        self.stream(Iter(pieces.into_iter()))
    }

    /// Sends the request and waits for the response to begin.
    ///
    /// # Panics
    /// The request is not valid HTTP.
    pub async fn send(self) -> TestResponse {
        let mut head = self.head();
        let Self { client, method, content, .. } = self;
        let app = &client.app;
        let target = app.find(&mut head, &client.connection);
        let limit = target.body_limit(client.body_bytes_max);
        let (mut sender, body): (Sender, _) = match content {
            Content::None => (None, Body::empty()),
            Content::Whole(bytes) => (None, Body::from(bytes).limited(limit)),
            Content::Stream(begin) => {
                let length = head.field_text("content-length").and_then(|text| text.parse().ok());
                let (writer, reader) = pipe(PIPE_BYTES_MAX, length);
                (Some(begin(writer)), Body::incoming(reader, limit))
            }
        };
        let timeout = target.options().timeout;
        let said = head.share();
        let connection = Rc::clone(&client.connection);
        let request = Request::new(head, body, Rc::clone(app.states()), connection);
        let mut answer = target.call(FutureSlot::new(), request);
        let clock: Rc<dyn Clock> = Rc::new(clock::TestClock(Rc::clone(&client.sleep)));
        let mut alarm = None;
        let mut interims = Vec::new();
        let answered = poll_fn(|context| {
            poll_sender(&mut sender, context);
            let polled = within(&clock, || Pin::new(&mut answer).poll(context));
            interims.extend(said.take_interims(polled.is_ready(), context));
            if let Poll::Ready(response) = polled {
                return Poll::Ready(Some(response));
            }
            let Some(limit) = timeout else { return Poll::Pending };
            let alarm = alarm.get_or_insert_with(|| (client.sleep)(limit));
            alarm.as_mut().poll(context).map(|()| None)
        })
        .await;
        drop(answer);
        // Only a route's time limit ends the wait for its answer.
        let mut response = answered.unwrap_or_else(|| app.render(Problem::handler_late(), &said));
        // RFC 9110 §9.3.2: the server must not send content in the response to HEAD.
        if method == Method::HEAD {
            response.body = Body::empty();
        }
        TestResponse::new(response, interims, sender, clock)
    }

    /// As [`TestRequest::send`], on this thread, for tests without a runtime.
    pub fn send_now(self) -> TestResponse {
        block_on(self.send())
    }

    /// The head as the parser understands it.
    fn head(&self) -> Head {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if !self.has("host") {
            bytes.extend_from_slice(b"host: test.example\r\n");
        }
        for (name, value) in &self.fields {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        match &self.content {
            _ if self.has("content-length") => {}
            Content::Whole(body) => {
                let length = body.len();
                bytes.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
            }
            Content::Stream(_) => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            Content::None => {}
        }
        bytes.extend_from_slice(b"\r\n");
        let mut head = Head::take();
        // A body is checked against its limit when it is read, as in the server.
        let limits = Limits { body_bytes_max: u64::MAX, ..Limits::DEFAULT };
        let (used, event) = Connection::new(&limits).receive(&limits, &bytes, head.index_mut());
        match event {
            Event::Head(framing) => head.set_bytes(&bytes[usize::from(framing.skip)..used]),
            other => {
                panic!("{} {}: a server would not accept this: {other:?}", self.method, self.target)
            }
        }
        head
    }

    fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(present, _)| present.eq_ignore_ascii_case(name))
    }
}

impl fmt::Debug for TestRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestRequest({} {})", self.method, self.target)
    }
}

/// Writes `pieces` into a request's body as fast as the handler reads them.
async fn pump<S>(pieces: S, writer: Writer)
where
    S: futures_core::Stream,
    S::Item: Into<Bytes>,
{
    let mut pieces = pin!(pieces);
    while poll_fn(|context| writer.poll_room(context)).await.is_ok() {
        match poll_fn(|context| pieces.as_mut().poll_next(context)).await {
            Some(piece) => writer.push(piece.into()),
            None => return writer.finish(HeaderMap::new()),
        }
    }
}

/// A stream that has all its pieces at once.
struct Iter<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Iter<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
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
