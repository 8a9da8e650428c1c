//! The response of an application to a test's request.

use super::block_on;
use super::events::{TestEvent, TestEventReader};
use super::sleep::sleep;
use crate::http::body::{Body, BodyError};
use crate::http::response::{Headers, Response};
use crate::http::timer::{self, TimerSource};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Context;

/// Sends a request's body. It is polled together with the response.
pub(super) type UploadFuture = Pin<Box<dyn Future<Output = ()>>>;

/// The response of an application.
pub struct TestResponse {
    /// Everything except the body.
    response: Response,
    interims: Vec<(StatusCode, HeaderMap)>,
    redirects: Vec<String>,
    body: RefCell<BodyState>,
}

struct BodyState {
    body: Body,
    /// Polled while the body is read. Sends the rest of the request's body, if the response began
    /// before all of it was sent. For a response from a network, receives the rest of `body`.
    transfer: Option<Pin<Box<dyn Future<Output = ()>>>>,
    clock: Rc<dyn TimerSource>,
    events: TestEventReader,
}

impl TestResponse {
    pub(super) fn new(
        mut response: Response,
        interims: Vec<(StatusCode, HeaderMap)>,
        transfer: Option<Pin<Box<dyn Future<Output = ()>>>>,
        clock: Rc<dyn TimerSource>,
    ) -> Self {
        let body = std::mem::take(&mut response.body);
        let state = BodyState { body, transfer, clock, events: TestEventReader::default() };
        Self { response, interims, redirects: Vec::new(), body: RefCell::new(state) }
    }

    /// A response received over a network: its head, its interim responses, and a future that
    /// receives the rest of the body while the body is read.
    #[doc(hidden)]
    #[must_use]
    pub fn from_network(
        response: Response,
        interims: Vec<(StatusCode, HeaderMap)>,
        rest: Option<Pin<Box<dyn Future<Output = ()>>>>,
    ) -> Self {
        // Only bodies created by an application use the clock.
        let clock = super::timer::TestClock(Rc::new(|duration| Box::pin(sleep(duration))));
        Self::new(response, interims, rest, Rc::new(clock))
    }

    pub(super) fn set_redirects(&mut self, targets: Vec<String>) {
        self.redirects = targets;
    }

    /// The targets that redirects led to, in order, if the client
    /// [follows](super::TestClient::follow_redirects) them. The last one returned this response.
    #[must_use]
    pub fn redirects(&self) -> &[String] {
        &self.redirects
    }

    /// The status. It can be compared with numbers: `assert_eq!(response.status(), 200)`.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status
    }

    /// The interim responses that preceded this one, such as 103 (Early Hints).
    #[must_use]
    pub fn interim(&self) -> &[(StatusCode, HeaderMap)] {
        &self.interims
    }

    /// The value of the first header field named `name` (in any case), if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.header(name)
    }

    /// All header fields.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.response.headers
    }

    /// The same as [`TestResponse::header`]; RFC 9110 calls headers fields.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.header(name)
    }

    /// All values of header fields named `name` (in any case) that are text.
    pub fn header_values<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r str> {
        let fields = self.response.headers.iter();
        let matching = fields.filter(move |(key, _)| key.as_str().eq_ignore_ascii_case(name));
        matching.filter_map(|(_, value)| value.to_str().ok())
    }

    /// The next chunk of the body; `None` at its end.
    ///
    /// # Errors
    /// If the body is incomplete.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        self.body.get_mut().chunk().await
    }

    /// The next server-sent event; `None` at the end of the body. Comments are skipped.
    ///
    /// # Errors
    /// If the body is incomplete.
    pub async fn event(&mut self) -> Option<Result<TestEvent, BodyError>> {
        let state = self.body.get_mut();
        loop {
            if let Some(event) = state.events.next_event() {
                return Some(Ok(event));
            }
            match state.chunk().await? {
                Ok(chunk) => state.events.feed(&chunk),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Like [`TestResponse::event`], but blocks this thread, for tests without a runtime.
    ///
    /// # Panics
    /// If the body is incomplete.
    pub fn event_blocking(&mut self) -> Option<TestEvent> {
        block_on(self.event()).map(|event| match event {
            Ok(event) => event,
            Err(error) => panic!("the response body is incomplete: {error}"),
        })
    }

    /// Waits for the whole body, so that [`bytes`](Self::bytes), [`text`](Self::text) and
    /// [`json`](Self::json) do not block.
    ///
    /// # Errors
    /// If the body is incomplete.
    pub async fn collect(&mut self) -> Result<Bytes, BodyError> {
        self.body.get_mut().collect().await
    }

    /// The body, except chunks that [`TestResponse::chunk`] or [`TestResponse::event`] has already
    /// read. Blocks this thread while a streamed body arrives; in a test with a runtime, await
    /// [`TestResponse::collect`] first.
    ///
    /// # Panics
    /// If the body is incomplete.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let mut state = self.body.borrow_mut();
        match block_on(state.collect()) {
            Ok(bytes) => bytes,
            Err(error) => panic!("the response body is incomplete: {error}"),
        }
    }

    /// The body as text, otherwise like [`TestResponse::bytes`].
    ///
    /// # Panics
    /// If the body is incomplete or not UTF-8.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8(self.bytes().into()).expect("the response's body is UTF-8")
    }

    /// The body parsed as JSON, otherwise like [`TestResponse::bytes`].
    ///
    /// # Panics
    /// If the body is incomplete, or is not JSON for a `T`.
    #[must_use]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        let bytes = self.bytes();
        match serde_json::from_slice(&bytes) {
            Ok(value) => value,
            Err(error) => panic!("{error} in {}", String::from_utf8_lossy(&bytes)),
        }
    }

    /// The clock for the body's timers.
    pub(super) fn clock(&self) -> Rc<dyn TimerSource> {
        Rc::clone(&self.body.borrow().clock)
    }

    /// The response that the application created, with the unread part of its body.
    #[must_use]
    pub fn into_response(mut self) -> Response {
        self.response.body = self.body.into_inner().body;
        self.response
    }
}

impl BodyState {
    async fn chunk(&mut self) -> Option<Result<Bytes, BodyError>> {
        let Self { body, transfer, clock, .. } = self;
        let mut next = pin!(body.next());
        poll_fn(|cx| {
            poll_transfer(transfer, cx);
            timer::with_current(clock, || next.as_mut().poll(cx))
        })
        .await
    }

    async fn collect(&mut self) -> Result<Bytes, BodyError> {
        let mut collected = Vec::new();
        while let Some(chunk) = self.chunk().await {
            collected.extend_from_slice(&chunk?);
        }
        let bytes = Bytes::from(collected);
        self.body = Body::from(bytes.clone());
        Ok(bytes)
    }
}

impl fmt::Debug for TestResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TestResponse");
        debug.field("status", &self.response.status).field("fields", &self.response.headers);
        debug.field("body", &self.body.borrow().body).finish()
    }
}

/// Polls a transfer that is not finished. Sets it to `None` when it finishes.
pub(super) fn poll_transfer(
    transfer: &mut Option<Pin<Box<dyn Future<Output = ()>>>>,
    cx: &mut Context<'_>,
) {
    if transfer.as_mut().is_some_and(|future| future.as_mut().poll(cx).is_ready()) {
        *transfer = None;
    }
}
