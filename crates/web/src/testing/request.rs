//! Builds a test's request and sends it to the application.

use super::response::{UploadFuture, poll_transfer};
use super::{TestClient, TestResponse, block_on, browser, timer};
use crate::http::body::Body;
use crate::http::body::pipe::{DEFAULT_PIPE_BYTES_MAX, PipeWriter, pipe};
use crate::http::head::RequestHead;
use crate::http::private_response::PrivateResponse;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::timer::{TimerSource, with_current};
use bytes::Bytes;
use http::{HeaderMap, Method};
use peregrine_proto::Limits;
use peregrine_proto::h1::{Connection, Event};
use peregrine_slot::FutureSlot;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

/// The host of requests without a `Host` field.
const HOST: &str = "test.example";

/// The maximum number of redirects that are followed.
const REDIRECTS_MAX: usize = 20;

/// A request to be sent.
#[must_use = "a request does nothing until it is sent"]
pub struct TestRequest {
    client: TestClient,
    method: Method,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: RequestBody,
}

enum RequestBody {
    None,
    Whole(Bytes),
    /// Returns the future that writes the chunks into the pipe of the request's body.
    Stream(Box<dyn FnOnce(PipeWriter) -> UploadFuture>),
}

impl TestRequest {
    pub(super) fn new(client: TestClient, method: Method, target: String) -> Self {
        Self { client, method, target, headers: Vec::new(), body: RequestBody::None }
    }

    /// Adds a header field. `Host` is added automatically unless you set it. For a body,
    /// `Content-Length` or `Transfer-Encoding` is added unless you set `Content-Length`.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body to these bytes, which are complete before the handler runs.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = RequestBody::Whole(body.into());
        self
    }

    /// Sets a JSON body and the `Content-Type`.
    ///
    /// # Panics
    /// If the value cannot be written as JSON.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        let json = serde_json::to_vec(value).expect("the value can be written as JSON");
        self.header("content-type", "application/json").body(json)
    }

    /// Sets a URL-encoded body and the `Content-Type`.
    ///
    /// # Panics
    /// If the value cannot be written as a form.
    pub fn form(self, value: &impl Serialize) -> Self {
        let form = serde_html_form::to_string(value).expect("the value can be written as a form");
        self.header("content-type", "application/x-www-form-urlencoded").body(form)
    }

    /// Sets a body that arrives in chunks while the handler runs. It is sent with chunked encoding
    /// unless a `Content-Length` is set, and pauses while the handler does not read.
    pub fn stream<S, T>(mut self, chunks: S) -> Self
    where
        S: futures_core::Stream<Item = T> + 'static,
        T: Into<Bytes>,
    {
        self.body =
            RequestBody::Stream(Box::new(move |writer| Box::pin(forward_body(chunks, writer))));
        self
    }

    /// Sets a body of these chunks, as [`TestRequest::stream`] does.
    pub fn chunks<I, T>(self, chunks: I) -> Self
    where
        I: IntoIterator<Item = T>,
        I::IntoIter: Unpin + 'static,
        T: Into<Bytes> + 'static,
    {
        self.stream(IterStream(chunks.into_iter()))
    }

    /// Sends the request and waits for the head of the response.
    ///
    /// # Panics
    /// If the request is not valid HTTP, or is redirected more than 20 times
    /// ([`TestClient::follow_redirects`]).
    pub async fn send(mut self) -> TestResponse {
        let mut targets = Vec::new();
        loop {
            let copy = self.client.follows_redirects.then(|| self.try_clone()).flatten();
            let mut response = self.send_once().await;
            let next_request = copy.and_then(|request| request.into_redirected(&response));
            let Some(next) = next_request else {
                response.set_redirects(targets);
                return response;
            };
            targets.push(next.target.clone());
            assert!(
                targets.len() <= REDIRECTS_MAX,
                "redirected more than {REDIRECTS_MAX} times: {}",
                targets.join(" -> ")
            );
            self = next;
        }
    }

    /// A copy of the request; `None` if its body is a stream.
    fn try_clone(&self) -> Option<Self> {
        let body = match &self.body {
            RequestBody::None => RequestBody::None,
            RequestBody::Whole(bytes) => RequestBody::Whole(bytes.clone()),
            RequestBody::Stream(_) => return None,
        };
        let Self { client, method, target, headers, .. } = self;
        let (client, method) = (client.clone(), method.clone());
        Some(Self { client, method, target: target.clone(), headers: headers.clone(), body })
    }

    /// The request that follows `response`, if that is a redirect.
    fn into_redirected(mut self, response: &TestResponse) -> Option<Self> {
        let host = self.host().into_owned();
        let request = (&self.method, &*host, &*self.target);
        let redirect =
            browser::redirect_target(request, response.status(), response.header("location")?)?;
        (self.method, self.target) = (redirect.method, redirect.target);
        if !redirect.keeps_body {
            self.body = RequestBody::None;
            let describes_body = |name: &str| name.to_ascii_lowercase().starts_with("content-");
            self.headers.retain(|(name, _)| !describes_body(name));
        }
        Some(self)
    }

    fn host(&self) -> Cow<'_, str> {
        let host_field = self.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        host_field.map_or(Cow::Borrowed(HOST), |(_, value)| String::from_utf8_lossy(value))
    }

    /// Sends the request without following redirects.
    async fn send_once(self) -> TestResponse {
        let jar = self.client.jar.clone().map(|jar| {
            (jar, self.host().into_owned(), browser::target_path(&self.target).to_owned())
        });
        let mut head = self.build_head();
        let Self { client, method, body: request_body, .. } = self;
        let app = &client.app;
        let matched = app.find(&mut head, &client.connection);
        let limit = matched.body_limit(client.body_bytes_max);
        let (mut upload, body): (Option<UploadFuture>, _) = match request_body {
            RequestBody::None => (None, Body::empty()),
            RequestBody::Whole(bytes) => (None, Body::from(bytes).limited(limit)),
            RequestBody::Stream(start_upload) => {
                let length = head.header("content-length").and_then(|text| text.parse().ok());
                let (writer, reader) = pipe(DEFAULT_PIPE_BYTES_MAX, length);
                (Some(start_upload(writer)), Body::incoming(reader, limit))
            }
        };
        let timeout = matched.options().timeout;
        let shared_head = head.share();
        let connection = Rc::clone(&client.connection);
        let request = Request::new(head, body, Rc::clone(app.states()), connection);
        let mut response_future = matched.call(FutureSlot::new(), request);
        let clock: Rc<dyn TimerSource> = Rc::new(timer::TestClock(Rc::clone(&client.sleep)));
        let mut timeout_timer = None;
        let mut interims = Vec::new();
        // `None` if the route's timeout expires first.
        let outcome = poll_fn(|cx| {
            poll_transfer(&mut upload, cx);
            let polled = with_current(&clock, || Pin::new(&mut response_future).poll(cx));
            interims.extend(shared_head.take_interim_responses(polled.is_ready(), cx));
            if let Poll::Ready(mut response) = polled {
                PrivateResponse::finish_response(&shared_head, &mut response);
                return Poll::Ready(Some(response));
            }
            let Some(duration) = timeout else { return Poll::Pending };
            let timeout_timer = timeout_timer.get_or_insert_with(|| (client.sleep)(duration));
            timeout_timer.as_mut().poll(cx).map(|()| None)
        })
        .await;
        drop(response_future);
        let mut response =
            outcome.unwrap_or_else(|| app.render_problem(Problem::handler_timeout(), &shared_head));
        // RFC 9110 §9.3.2: the server must not send content in the response to HEAD.
        if method == Method::HEAD {
            response.body = Body::empty();
        }
        if let Some((jar, host, path)) = jar {
            jar.borrow_mut().store(&host, &path, &response.headers);
        }
        TestResponse::new(response, interims, upload, clock)
    }

    /// Like [`TestRequest::send`], but blocks this thread, for tests without a runtime.
    #[doc(alias = "blocking")]
    #[doc(alias = "send_now")]
    pub fn send_blocking(self) -> TestResponse {
        block_on(self.send())
    }

    /// The request's head, as the server's parser reads it.
    fn build_head(&self) -> RequestHead {
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if !self.has_header("host") {
            bytes.extend_from_slice(format!("host: {HOST}\r\n").as_bytes());
        }
        if let Some(jar) = &self.client.jar
            && !self.has_header("cookie")
            && let Some(cookies) =
                jar.borrow().cookie_header(&self.host(), browser::target_path(&self.target))
        {
            bytes.extend_from_slice(format!("cookie: {cookies}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        match &self.body {
            _ if self.has_header("content-length") => {}
            RequestBody::Whole(body) => {
                let length = body.len();
                bytes.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
            }
            RequestBody::Stream(_) => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            RequestBody::None => {}
        }
        bytes.extend_from_slice(b"\r\n");
        let mut head = RequestHead::from_pool();
        // The body limit is checked when the body is read, as in the server.
        let limits = Limits { body_bytes_max: u64::MAX, ..Limits::DEFAULT };
        let (consumed, event) = Connection::new(&limits).receive(&limits, &bytes, head.index_mut());
        match event {
            // `leading_bytes` precede the head: an empty line before the request line.
            Event::Head(framing) => {
                head.set_bytes(&bytes[usize::from(framing.leading_bytes)..consumed])
            }
            other => {
                panic!("{} {}: a server would not accept this: {other:?}", self.method, self.target)
            }
        }
        head
    }

    fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name))
    }
}

impl fmt::Debug for TestRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TestRequest({} {})", self.method, self.target)
    }
}

/// Writes `chunks` to a request's body as fast as the handler reads.
async fn forward_body<S>(chunks: S, writer: PipeWriter)
where
    S: futures_core::Stream,
    S::Item: Into<Bytes>,
{
    let mut chunks = pin!(chunks);
    while poll_fn(|cx| writer.poll_capacity(cx)).await.is_ok() {
        match poll_fn(|cx| chunks.as_mut().poll_next(cx)).await {
            Some(chunk) => writer.send(chunk.into()),
            None => return writer.finish(HeaderMap::new()),
        }
    }
}

/// A stream whose items are ready immediately.
struct IterStream<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for IterStream<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}
