//! The client's end of a WebSocket, without a network.

use super::{TestClient, TestRequest, block_on};
use crate::http::body::pipe::{PipeWriter, pipe};
use crate::http::timer::{self, TimerSource};
use crate::http::upgrade::{SEND_BUFFER_BYTES_MAX, SendBuffer, Upgraded};
use bytes::Bytes;
use http::HeaderMap;
use peregrine_proto::ws::{CloseCode, Connection, Event, Limits, MessagePayload, NextAction, Role};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The client accepts messages of any size.
const CLIENT_LIMITS: Limits =
    Limits { message_bytes_max: u64::MAX, frame_bytes_max: u64::MAX, ..Limits::DEFAULT };

/// A message, received or to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestMessage {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
    /// A Close frame, with its code and reason if the sender set any. The client replies to a
    /// received one automatically.
    Close(Option<(u16, String)>),
}

impl TestMessage {
    /// The text of a text message.
    ///
    /// # Panics
    /// If it is another kind of message.
    #[must_use]
    #[track_caller]
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("{other:?} is not text"),
        }
    }
}

impl From<&str> for TestMessage {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<u8>> for TestMessage {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Binary(bytes.into())
    }
}

impl TestClient {
    /// Creates a WebSocket request. [`TestRequest::connect`] opens the WebSocket; `send` returns
    /// the response to the handshake instead.
    pub fn websocket(&self, target: &str) -> TestRequest {
        self.get(target)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    }
}

impl TestRequest {
    /// Sends the request and opens the WebSocket.
    ///
    /// # Panics
    /// If the application responds with a status other than 101.
    pub async fn connect(self) -> TestWebSocket {
        let response = self.send().await;
        let status = response.status();
        assert!(
            status == 101,
            "the application responded with status {status}: {}",
            response.text()
        );
        let subprotocol = response.header("sec-websocket-protocol").map(str::to_owned);
        let clock = response.clock();
        let upgrade = response.into_response().take_upgrade();
        let upgrade = upgrade.expect("a response with status 101 carries an upgrade");
        let (to_application, reader) = pipe(SEND_BUFFER_BYTES_MAX, None);
        let from_application = SendBuffer::default();
        let upgraded = Upgraded::new(reader, from_application.clone());
        let application = timer::with_current(&clock, || upgrade.run(upgraded));
        TestWebSocket {
            subprotocol,
            // The mask may be predictable here, because no network carries the frames.
            codec: Connection::new(&CLIENT_LIMITS, Role::Client(|| *b"mask"), None),
            application: Some(application),
            to_application: Some(to_application),
            from_application,
            clock,
            unread: Vec::new(),
        }
    }

    /// Like [`TestRequest::connect`], but blocks this thread, for tests without a runtime.
    ///
    /// # Panics
    /// As [`TestRequest::connect`].
    pub fn connect_blocking(self) -> TestWebSocket {
        block_on(self.connect())
    }
}

/// The client's end of a WebSocket. The application's end runs only while this end sends or
/// receives.
pub struct TestWebSocket {
    subprotocol: Option<String>,
    codec: Connection,
    /// Runs the application's end; `None` when it has finished.
    application: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// `None` when the client's stream has ended.
    to_application: Option<PipeWriter>,
    from_application: SendBuffer,
    clock: Rc<dyn TimerSource>,
    /// Bytes from the application that are not parsed yet.
    unread: Vec<u8>,
}

impl TestWebSocket {
    /// The subprotocol that the application chose.
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// Sends a message. If the application does not read, waits until there is room. After
    /// [`TestWebSocket::abort`], or when the application's end has finished, discards the message.
    ///
    /// # Panics
    /// If a Close frame was sent or received, if the code of a Close frame to be sent is not
    /// allowed, or if the application panics.
    pub async fn send(&mut self, message: impl Into<TestMessage>) {
        let mut bytes = Vec::new();
        let result = match message.into() {
            TestMessage::Text(text) => {
                self.codec.send(&CLIENT_LIMITS, MessagePayload::Text(&text), &mut bytes)
            }
            TestMessage::Binary(content) => {
                self.codec.send(&CLIENT_LIMITS, MessagePayload::Binary(&content), &mut bytes)
            }
            TestMessage::Close(close) => {
                let close = close.as_ref().map(|(code, reason)| (CloseCode(*code), &**reason));
                self.codec.close(close, &mut bytes)
            }
        };
        result.unwrap_or_else(|error| panic!("{error}"));
        self.send_raw(bytes.into()).await;
    }

    /// Like [`TestWebSocket::send`], but blocks this thread.
    ///
    /// # Panics
    /// As [`TestWebSocket::send`].
    pub fn send_blocking(&mut self, message: impl Into<TestMessage>) {
        block_on(self.send(message));
    }

    /// Sends raw bytes, which need not be valid frames.
    pub async fn send_raw(&mut self, bytes: Bytes) {
        let mut bytes = Some(bytes);
        poll_fn(|cx| {
            // The application may read, which makes room.
            self.poll_application(cx);
            let Some(to_application) = &self.to_application else { return Poll::Ready(()) };
            let capacity = to_application.poll_capacity(cx).map(drop);
            if capacity.is_ready()
                && let Some(bytes) = bytes.take()
            {
                to_application.send(bytes);
                self.poll_application(cx);
            }
            capacity
        })
        .await;
    }

    /// The next message; `None` when the application's end has finished.
    ///
    /// # Panics
    /// If the application violated the protocol or panicked.
    pub async fn recv(&mut self) -> Option<TestMessage> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Like [`TestWebSocket::recv`], but blocks this thread.
    ///
    /// # Panics
    /// As [`TestWebSocket::recv`].
    pub fn recv_blocking(&mut self) -> Option<TestMessage> {
        block_on(self.recv())
    }

    /// Ends the client's stream without a Close frame.
    pub fn abort(&mut self) {
        if let Some(to_application) = self.to_application.take() {
            to_application.finish(HeaderMap::new());
        }
    }

    /// Polls the application's end.
    fn poll_application(&mut self, cx: &mut Context<'_>) {
        let Some(application) = &mut self.application else { return };
        if timer::with_current(&self.clock, || application.as_mut().poll(cx)).is_ready() {
            self.application = None;
        }
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<TestMessage>> {
        self.poll_application(cx);
        loop {
            if let Some(message) = self.take_message() {
                return Poll::Ready(Some(message));
            }
            let mut bytes = Vec::new();
            if self.from_application.poll_take(cx, &mut bytes).is_pending() {
                break;
            }
            self.unread.append(&mut bytes);
            // Taking the bytes has made room, so the application can write more.
            self.poll_application(cx);
        }
        if self.application.is_none() { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Parses the next message from the unread bytes, and replies to control frames.
    fn take_message(&mut self) -> Option<TestMessage> {
        loop {
            // After an error, or a Close frame in both directions, nothing more is received.
            if self.codec.next_action() != NextAction::Receive {
                return None;
            }
            let mut output = Vec::new();
            let (consumed, event) =
                self.codec.receive(&CLIENT_LIMITS, &mut self.unread, &mut output);
            let (message, needs_input) = match event {
                Event::NeedInput => (None, true),
                Event::Text(text) => (Some(TestMessage::Text(text.into())), false),
                Event::Binary(bytes) => {
                    (Some(TestMessage::Binary(bytes.into_owned().into())), false)
                }
                Event::Close(close) => {
                    let close = (close.code != CloseCode::NO_STATUS_RECEIVED)
                        .then(|| (close.code.0, close.reason.to_owned()));
                    (Some(TestMessage::Close(close)), false)
                }
                Event::Error(error) => panic!("the application violated the protocol: {error}"),
                _ => (None, false),
            };
            self.unread.drain(..consumed);
            if let (false, Some(to_application)) = (output.is_empty(), &self.to_application) {
                to_application.send(output.into());
            }
            if message.is_some() || needs_input {
                return message;
            }
        }
    }
}

impl fmt::Debug for TestWebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestWebSocket").field("protocol", &self.subprotocol).finish_non_exhaustive()
    }
}
