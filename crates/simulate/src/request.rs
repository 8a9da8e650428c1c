//! [`SimRequest`]: builds and sends a request over the simulated network.

use super::client::SimClient;
use super::error::{SimErrorKind, SimRequestError};
use super::response::{ResponseHead, ResponseReader};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use peregrine_web::body::{Body, BodyError};
use peregrine_web::pipe::{DEFAULT_PIPE_BYTES_MAX, PipeWriter, pipe};
use peregrine_web::testing::TestResponse;
use peregrine_web::{Headers, Response};
use serde::Serialize;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The `Host` field of requests that do not set it.
const HOST: &str = "sim.example";

/// A request to be sent.
#[must_use = "a request does nothing until it is sent"]
pub struct SimRequest {
    client: SimClient,
    method: Method,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Bytes>,
    timeout: Option<Duration>,
    cut_request: Option<u64>,
    cut_response: Option<u64>,
}

impl SimRequest {
    pub(super) fn new(client: SimClient, method: Method, target: String) -> Self {
        let (headers, body, timeout) = (Vec::new(), None, None);
        let (cut_request, cut_response) = (None, None);
        Self { client, method, target, headers, body, timeout, cut_request, cut_response }
    }

    /// Adds a header field. `Host` and `Content-Length` are added automatically if they are not
    /// set.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets a JSON body, with its `Content-Type`.
    ///
    /// # Panics
    /// If the value cannot be serialized as JSON.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        let json = serde_json::to_vec(value).expect("the value is serializable as JSON");
        self.header("content-type", "application/json").body(json)
    }

    /// Limits how long the client waits for the response before it disconnects. Default: no limit.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }

    /// Breaks the connection after this many bytes of the request have been sent. The request uses
    /// a new connection.
    pub fn cut_request_after(mut self, bytes: u64) -> Self {
        self.cut_request = Some(bytes);
        self
    }

    /// Breaks the connection after this many bytes of the response have been received. The request
    /// uses a new connection.
    pub fn cut_response_after(mut self, bytes: u64) -> Self {
        self.cut_response = Some(bytes);
        self
    }

    /// Sends the request and waits for the complete response. Dropping the future closes the
    /// connection, like a client that disconnects.
    ///
    /// # Errors
    /// If there is no complete response; see [`SimErrorKind`].
    pub async fn send(self) -> Result<TestResponse, SimRequestError> {
        self.record_outcome(async |request| {
            let (mut reader, mut head) = request.send_head().await?;
            let mut body = Vec::new();
            while let Some(chunk) = reader.read_chunk(&mut head.remaining).await? {
                body.extend_from_slice(&chunk);
            }
            request.return_connection(reader, &head);
            Ok(TestResponse::from_network(
                head.build_response(Body::from(body)),
                head.interim_responses,
                None,
            ))
        })
        .await
    }

    /// Sends the request and waits for the response's head. Use it for endless streams: read the
    /// body with [`TestResponse::chunk`], [`event`](TestResponse::event) or
    /// [`collect`](TestResponse::collect).
    ///
    /// Do not call `text()` or similar methods before `collect()`: they would block the thread on
    /// which the network runs.
    ///
    /// # Errors
    /// If there is no response; see [`SimErrorKind`].
    pub async fn send_streaming(self) -> Result<TestResponse, SimRequestError> {
        self.record_outcome(async |request| {
            let (reader, mut head) = request.send_head().await?;
            let (writer, body_reader) = pipe(DEFAULT_PIPE_BYTES_MAX, None);
            let response = head.build_response(Body::incoming(body_reader, u64::MAX));
            let interim_responses = std::mem::take(&mut head.interim_responses);
            let client = request.client.clone();
            let body_forwarder = Box::pin(forward_body(client, reader, head, writer));
            Ok(TestResponse::from_network(response, interim_responses, Some(body_forwarder)))
        })
        .await
    }

    /// Sends the request with `send`, and records it and its outcome as events.
    async fn record_outcome(
        self,
        send: impl AsyncFnOnce(&Self) -> Result<TestResponse, SimErrorKind>,
    ) -> Result<TestResponse, SimRequestError> {
        let request = format!("{} {}", self.method, self.target);
        let (sim, client) = (self.client.sim().clone(), self.client.id());
        sim.log(format!("client {client}: {request}"));
        let pending = sim.track_request(format!("{request} of client {client}"));
        let start = sim.now();
        let result = match self.timeout {
            Some(time) => {
                sim.timeout(time, send(&self)).await.unwrap_or(Err(SimErrorKind::TimedOut(time)))
            }
            None => send(&self).await,
        };
        drop(pending);
        let elapsed = sim.now() - start;
        sim.log(match &result {
            Ok(response) => {
                format!("client {client}: {} to {request}, after {elapsed:?}", response.status())
            }
            Err(kind) => format!("client {client}: no response to {request}: {kind}"),
        });
        result.map_err(|kind| SimRequestError { request, kind })
    }

    /// Sends the request, and reads the response's head at the same time.
    async fn send_head(&self) -> Result<(ResponseReader, ResponseHead), SimErrorKind> {
        let is_cut = self.cut_request.is_some() || self.cut_response.is_some();
        if is_cut {
            // Without idle connections, the request gets a new one.
            self.client.close();
        }
        let mut reader = self.client.idle_or_new_connection();
        let connection = reader.connection();
        self.cut_request.into_iter().for_each(|bytes| connection.cut_after_sent(bytes));
        self.cut_response.into_iter().for_each(|bytes| connection.cut_after_received(bytes));
        let bytes = self.encode();
        // `Some(Ok)` while sending, `Some(Err)` after a failure, `None` once everything was sent.
        let mut send_state = Some(Ok(()));
        let head = {
            let mut sending = pin!(connection.send(&bytes));
            let mut receiving = pin!(reader.read_head(self.method == Method::HEAD));
            poll_fn(|cx| {
                if let Some(Ok(())) = send_state
                    && let Poll::Ready(result) = sending.as_mut().poll(cx)
                {
                    send_state = result.err().map(Err);
                }
                let head = receiving.as_mut().poll(cx);
                match &mut send_state {
                    // Sending failed. There can still be a response: a server can respond without
                    // reading the complete request.
                    Some(Err(_)) if head.is_pending() => {
                        let error = send_state.take().and_then(Result::err);
                        Poll::Ready(Err(
                            error.map_or(SimErrorKind::ConnectionReset, SimErrorKind::from)
                        ))
                    }
                    _ => head,
                }
            })
            .await
        };
        let mut head = head?;
        // If the request was not sent completely, the connection cannot be reused.
        head.closes_connection |= send_state.is_some() || is_cut;
        Ok((reader, head))
    }

    fn return_connection(&self, reader: ResponseReader, head: &ResponseHead) {
        if !head.closes_connection {
            self.client.return_connection(reader);
        }
    }

    /// Encodes the request.
    fn encode(&self) -> Vec<u8> {
        let has_header = |name: &str| {
            self.headers.iter().any(|(header_name, _)| header_name.eq_ignore_ascii_case(name))
        };
        let mut bytes = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        if !has_header("host") {
            bytes.extend_from_slice(format!("host: {HOST}\r\n").as_bytes());
        }
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if let Some(body) = &self.body
            && !has_header("content-length")
            && !has_header("transfer-encoding")
        {
            bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }
}

impl ResponseHead {
    fn build_response(&mut self, body: Body) -> Response {
        let mut response = Response::new(self.status).with_body(body);
        let mut headers = Headers::new();
        for (name, value) in std::mem::take(&mut self.headers) {
            if let Some(name) = name {
                headers.append(name, value);
            }
        }
        *response.headers_mut() = headers;
        response
    }
}

/// Receives the rest of a response, as fast as the test reads it.
async fn forward_body(
    client: SimClient,
    mut reader: ResponseReader,
    mut head: ResponseHead,
    writer: PipeWriter,
) {
    loop {
        if poll_fn(|cx| writer.poll_capacity(cx)).await.is_err() {
            return;
        }
        match reader.read_chunk(&mut head.remaining).await {
            Ok(Some(chunk)) => writer.send(chunk),
            Ok(None) => break,
            Err(_) => return writer.send_error(BodyError::Disconnected),
        }
    }
    if !head.closes_connection {
        client.return_connection(reader);
    }
    writer.finish(HeaderMap::new());
}

impl fmt::Debug for SimRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimRequest({} {})", self.method, self.target)
    }
}

/// Parses a status line.
pub(super) fn parse_status_line(line: &str) -> Option<StatusCode> {
    let (version, rest) = line.split_once(' ')?;
    let digits = rest.split(' ').next()?;
    let is_valid = version == "HTTP/1.1" && digits.len() == 3;
    is_valid.then(|| StatusCode::from_bytes(digits.as_bytes()).ok()).flatten()
}
