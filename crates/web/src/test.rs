//! A client that calls an application without a network or a runtime.
//!
//! Each request is written as HTTP/1.1, read by the same parser as in production, and answered by
//! the same code; only the connection is missing. What the server does beside calling the
//! application (time limits, `Date`, compression of the connection's making) does not happen here.
//!
//! ```
//! use peregrine_web::{App, Request};
//!
//! async fn greet(request: Request) -> String {
//!     format!("hello, {}", request.field("x-name").unwrap_or("stranger"))
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
use crate::body::{Body, BodyError};
use crate::connection::ConnectionInfo;
use crate::head::Head;
use crate::middleware::Wrap;
use crate::pipe::{PIPE_BYTES_MAX, Writer, pipe};
use crate::request::Request;
use crate::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use peregrine_proto::Limits;
use peregrine_proto::h1::{Connection, Event};
use peregrine_slot::FutureSlot;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

impl<W: Wrap> App<W> {
    /// Builds the application and makes a client that calls it without a network.
    ///
    /// # Panics
    /// The application is not right; the message says all that [`App::build`] found.
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
#[derive(Clone, Debug)]
pub struct TestClient {
    app: Rc<Application>,
    connection: Rc<ConnectionInfo>,
}

impl TestClient {
    pub(crate) fn new(app: Rc<Application>, connection: ConnectionInfo) -> Self {
        Self { app, connection: Rc::new(connection) }
    }

    /// The same client on a connection that the application knows this of.
    #[must_use]
    pub fn on(self, connection: ConnectionInfo) -> Self {
        Self { app: self.app, connection: Rc::new(connection) }
    }

    /// The application.
    #[must_use]
    pub fn application(&self) -> &Application {
        &self.app
    }

    /// A request. `target` stands in the request line as it is: a path with or without a query, or
    /// one of the other forms.
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
    Whole(Body, usize),
    Stream(Pin<Box<dyn Future<Output = ()>>>, Body),
}

impl TestRequest {
    /// Adds a header field. `Host` is there already unless it is given; so is what the body needs.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// A body of these bytes, which are here before the handler runs.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        let body: Bytes = body.into();
        let length = body.len();
        self.content = Content::Whole(Body::from(body), length);
        self
    }

    /// A body of JSON, with its `Content-Type`.
    ///
    /// # Panics
    /// The value cannot be written as JSON.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        let json = serde_json::to_vec(value).expect("the value can be written as JSON");
        self.header("content-type", "application/json").body(json)
    }

    /// A body of a form's fields, with its `Content-Type`.
    ///
    /// # Panics
    /// The value cannot be written as a form.
    pub fn form(self, value: &impl Serialize) -> Self {
        let form = serde_html_form::to_string(value).expect("the value can be written as a form");
        self.header("content-type", "application/x-www-form-urlencoded").body(form)
    }

    /// A body that arrives in pieces while the handler runs, sent chunked. It waits while the
    /// handler does not read.
    pub fn stream<S, T>(mut self, pieces: S) -> Self
    where
        S: futures_core::Stream<Item = T> + 'static,
        T: Into<Bytes>,
    {
        let (writer, reader) = pipe(PIPE_BYTES_MAX, None);
        let limit = Limits::DEFAULT.body_bytes_max;
        self.content =
            Content::Stream(Box::pin(pump(pieces, writer)), Body::incoming(reader, limit));
        self
    }

    /// A body of these pieces, as [`TestRequest::stream`].
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
        let head = self.head();
        let Self { client, method, content, .. } = self;
        let (mut sender, body) = match content {
            Content::None => (None, Body::empty()),
            Content::Whole(body, _) => (None, body),
            Content::Stream(sender, body) => (Some(sender), body),
        };
        let app = &client.app;
        let mut head = head;
        let target = app.find(&mut head);
        let connection = Rc::clone(&client.connection);
        let request = Request::new(head, body, Rc::clone(app.states()), connection);
        let mut slot = FutureSlot::new();
        let mut answer = target.call(&mut slot, request);
        let mut response = poll_fn(|context| {
            poll_sender(&mut sender, context);
            Pin::new(&mut answer).poll(context)
        })
        .await;
        // RFC 9110 §9.3.2: the server must not send content in the response to HEAD.
        if method == Method::HEAD {
            response.body = Body::empty();
        }
        let body = std::mem::take(&mut response.body);
        TestResponse { response, reading: RefCell::new(Reading { body, sender }) }
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
            Content::Whole(_, length) if !self.has("content-length") => {
                bytes.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
            }
            Content::Stream(..) => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            _ => {}
        }
        bytes.extend_from_slice(b"\r\n");
        let mut head = Head::take();
        let limits = Limits::DEFAULT;
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

type Sender = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// The response of an application.
pub struct TestResponse {
    /// All but the body.
    response: Response,
    reading: RefCell<Reading>,
}

struct Reading {
    body: Body,
    /// Still sends the request's body, while the response is already on its way.
    sender: Sender,
}

impl TestResponse {
    /// The status. It compares with numbers: `assert_eq!(response.status(), 200)`.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status
    }

    /// The first header field called `name`, in any case, if it is text.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.response.fields.iter();
        let (_, value) = fields.find(|(present, _)| present.as_str().eq_ignore_ascii_case(name))?;
        value.to_str().ok()
    }

    /// All header fields called `name`, in any case, that are text.
    pub fn fields_named<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r str> {
        let fields = self.response.fields.iter();
        let named = fields.filter(move |(present, _)| present.as_str().eq_ignore_ascii_case(name));
        named.filter_map(|(_, value)| value.to_str().ok())
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// The body broke off.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.reading.get_mut().chunk().await
    }

    /// Waits for the whole body, so that the methods below have it at hand.
    ///
    /// # Errors
    /// The body broke off.
    pub async fn collect(&mut self) -> Result<Bytes, BodyError> {
        self.reading.get_mut().collect().await
    }

    /// The body (what [`TestResponse::chunk`] has not taken). A streamed body is waited for on this
    /// thread; in a test with a runtime, await [`TestResponse::collect`] before.
    ///
    /// # Panics
    /// The body broke off.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let mut reading = self.reading.borrow_mut();
        match block_on(reading.collect()) {
            Ok(bytes) => bytes,
            Err(error) => panic!("the response's body broke off: {error}"),
        }
    }

    /// The body as text, otherwise as [`TestResponse::bytes`].
    ///
    /// # Panics
    /// The body broke off or is not UTF-8.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8(self.bytes().into()).expect("the response's body is UTF-8")
    }

    /// The body as a value written in JSON, otherwise as [`TestResponse::bytes`].
    ///
    /// # Panics
    /// The body broke off or is no JSON for a `T`.
    #[must_use]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        let bytes = self.bytes();
        match serde_json::from_slice(&bytes) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {}", String::from_utf8_lossy(&bytes)),
        }
    }

    /// The response as the application made it, with the rest of its body.
    #[must_use]
    pub fn into_response(mut self) -> Response {
        self.response.body = self.reading.into_inner().body;
        self.response
    }
}

impl Reading {
    async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        let Self { body, sender } = self;
        let mut next = pin!(body.next());
        poll_fn(|context| {
            poll_sender(sender, context);
            next.as_mut().poll(context)
        })
        .await
    }

    async fn collect(&mut self) -> Result<Bytes, BodyError> {
        let mut all = Vec::new();
        while let Some(piece) = self.chunk().await {
            all.extend_from_slice(&piece?);
        }
        let bytes = Bytes::from(all);
        self.body = Body::from(bytes.clone());
        Ok(bytes)
    }
}

impl fmt::Debug for TestResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TestResponse");
        debug.field("status", &self.response.status).field("fields", &self.response.fields);
        debug.field("body", &self.reading.borrow().body).finish()
    }
}

fn poll_sender(sender: &mut Sender, context: &mut Context<'_>) {
    if sender.as_mut().is_some_and(|sending| sending.as_mut().poll(context).is_ready()) {
        *sender = None;
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

/// Runs `future` to its end on this thread, which sleeps in between.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
