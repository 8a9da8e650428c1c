//! The handles of a WebSocket: the socket itself and its two halves.

use crate::error::{RecvError, SendError, TrySendError};
use crate::json::JsonSocket;
use crate::message::Message;
use crate::shared::{SharedSocket, SocketState};
use futures_core::Stream;
use futures_sink::Sink;
use peregrine_proto::ws::CloseCode;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// An open WebSocket, which sends and receives messages.
///
/// Dropping it closes the WebSocket with code 1000, with 1001 if the server is draining, or with
/// 1011 if the handler panics. It can be moved to another task of the same worker; the WebSocket
/// stays open until the handler has returned and all handles are dropped.
///
/// Backpressure applies in both directions: a peer that sends faster than the handler receives is
/// not read from, and a handler that sends faster than the peer reads has to wait.
pub struct WebSocket {
    sender: WebSocketSender,
    receiver: WebSocketReceiver,
    protocol: Option<String>,
}

impl WebSocket {
    pub(crate) fn new(shared: &SharedSocket, protocol: Option<String>) -> Self {
        Self {
            sender: WebSocketSender::new(shared),
            receiver: WebSocketReceiver::new(shared),
            protocol,
        }
    }

    /// Returns the negotiated subprotocol.
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// Receives the next message; see [`WebSocketReceiver::recv`].
    pub fn recv(&mut self) -> impl Future<Output = Option<Result<Message, RecvError>>> {
        self.receiver.recv()
    }

    /// Sends a message; see [`WebSocketSender::send`].
    ///
    /// # Errors
    /// The WebSocket is closed, or the message is not allowed.
    pub fn send(&self, message: impl Into<Message>) -> impl Future<Output = Result<(), SendError>> {
        self.sender.send(message)
    }

    /// Sends a message if there is room for it, without waiting; see [`WebSocketSender::try_send`].
    ///
    /// # Errors
    /// The send queue is full, the WebSocket is closed, or the message is not allowed.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), TrySendError> {
        self.sender.try_send(message)
    }

    /// Closes the WebSocket: sends a Close frame after all queued messages and waits for the peer's
    /// Close frame, at most for [`close_timeout`](crate::WebSocketUpgrade::close_timeout). Messages
    /// that the peer sends in the meantime are discarded.
    ///
    /// # Errors
    /// The WebSocket is already closed, or the code is not allowed.
    pub async fn close(self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        let Self { sender, receiver, .. } = self;
        drop(receiver);
        sender.close(code, reason).await
    }

    /// Waits until the WebSocket closes or is about to; see [`WebSocketSender::wait_closing`].
    #[doc(alias = "closed")]
    pub async fn wait_closing(&self) {
        self.sender.wait_closing().await;
    }

    /// Splits the WebSocket into two halves, which can be used by two tasks of the same worker.
    #[must_use]
    pub fn split(self) -> (WebSocketSender, WebSocketReceiver) {
        (self.sender, self.receiver)
    }

    /// Turns the WebSocket into a channel of values that are sent as JSON text messages.
    #[must_use]
    pub fn json<In, Out>(self) -> JsonSocket<In, Out> {
        JsonSocket::new(self)
    }
}

impl Stream for WebSocket {
    type Item = Result<Message, RecvError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.0.with(|state| state.poll_recv(cx))
    }
}

/// See the implementation for [`WebSocketSender`].
impl Sink<Message> for WebSocket {
    type Error = SendError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Pin::new(&mut self.sender).poll_ready(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), SendError> {
        Pin::new(&mut self.sender).start_send(message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Pin::new(&mut self.sender).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Pin::new(&mut self.sender).poll_close(cx)
    }
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// The sending half. Clones send on the same WebSocket.
#[doc(alias = "SplitSink")]
pub struct WebSocketSender {
    shared: SharedSocket,
    /// Identifies this sender among the waiters when it is used as a sink.
    waiter_id: u64,
}

/// Removes a waiter from the waiter lists on drop.
struct SendWaiter<'a> {
    shared: &'a SharedSocket,
    waiter_id: u64,
}

impl Drop for SendWaiter<'_> {
    fn drop(&mut self) {
        self.shared.with(|state| state.remove_waiter(self.waiter_id));
    }
}

impl WebSocketSender {
    fn new(shared: &SharedSocket) -> Self {
        let waiter_id = shared.with(|state| {
            state.add_sender();
            state.next_waiter_id()
        });
        Self { shared: shared.clone(), waiter_id }
    }

    /// Waits until `poll` is ready.
    async fn poll_with_waiter<T>(
        &self,
        mut poll: impl FnMut(&mut SocketState, u64, &mut Context<'_>) -> Poll<T>,
    ) -> T {
        let waiter = SendWaiter {
            shared: &self.shared,
            waiter_id: self.shared.with(SocketState::next_waiter_id),
        };
        poll_fn(|cx| self.shared.with(|state| poll(state, waiter.waiter_id, cx))).await
    }

    /// Sends a message, after waiting for room in the send queue. When the future completes, the
    /// message is queued, but the peer has not necessarily received it. If the future is dropped
    /// earlier, nothing is sent.
    ///
    /// # Errors
    /// The WebSocket is closed, or the message is not allowed.
    pub async fn send(&self, message: impl Into<Message>) -> Result<(), SendError> {
        let mut message = Some(message.into());
        self.poll_with_waiter(|state, id, cx| state.poll_send(&mut message, id, cx)).await
    }

    /// Sends a message if there is room for it, without waiting. Use it for broadcasts, where one
    /// slow peer must not delay the others.
    ///
    /// # Errors
    /// The send queue is full; otherwise as [`WebSocketSender::send`].
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), TrySendError> {
        self.shared.with(|state| state.try_send(message.into()))
    }

    /// Closes the WebSocket: sends a Close frame and waits for the peer's, for a limited time. In
    /// the meantime the receiver must be read from or dropped, because the peer's Close frame is
    /// not read while the receive queue is full.
    ///
    /// # Errors
    /// The WebSocket is already closed, or the code is not allowed.
    pub async fn close(&self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.send(Message::close(code, reason.to_owned())).await?;
        self.poll_with_waiter(|state, id, cx| state.poll_closed(id, cx)).await;
        Ok(())
    }

    /// Waits until the WebSocket closes or the server drains. While it drains, messages can still
    /// be sent for the time set by [`drain_timeout`](crate::WebSocketUpgrade::drain_timeout).
    #[doc(alias = "closed")]
    pub async fn wait_closing(&self) {
        self.poll_with_waiter(|state, id, cx| state.poll_close_started(id, cx)).await;
    }

    /// Returns whether the WebSocket is closed or closing.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.shared.with(|state| state.is_closing())
    }
}

/// Messages are sent without a flush. Closing the sink closes the WebSocket with code 1000 and
/// waits for the peer's Close frame, as [`WebSocketSender::close`] does.
impl Sink<Message> for WebSocketSender {
    type Error = SendError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.shared.with(|state| state.poll_ready(self.waiter_id, cx))
    }

    fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), SendError> {
        self.shared.with(|state| state.send_now(message))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.shared.with(|state| {
            if state.can_send() {
                state.send_now(Message::close(CloseCode::NORMAL_CLOSURE, ""))?;
            }
            state.poll_closed(self.waiter_id, cx).map(Ok)
        })
    }
}

impl Clone for WebSocketSender {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl Drop for WebSocketSender {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.remove_waiter(self.waiter_id);
            state.drop_sender();
        });
    }
}

impl fmt::Debug for WebSocketSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketSender")
            .field("is_closing", &self.is_closing())
            .finish_non_exhaustive()
    }
}

/// The receiving half. After it is dropped, messages from the peer are discarded.
#[doc(alias = "SplitStream")]
pub struct WebSocketReceiver(SharedSocket);

impl WebSocketReceiver {
    fn new(shared: &SharedSocket) -> Self {
        shared.with(|state| state.add_receiver());
        Self(shared.clone())
    }

    /// Receives the next message. Returns `None` at the end and ever after: after the peer's
    /// [`Message::Close`], after an error, or when the server drains. In the last case, messages
    /// that have already been received are returned first, and messages can still be sent.
    ///
    /// Cancel safe: dropping the future does not lose messages.
    ///
    /// # Errors
    /// The WebSocket has ended without a Close frame.
    pub fn recv(&mut self) -> impl Future<Output = Option<Result<Message, RecvError>>> {
        // This is not an `async fn`: every nested future has its own state, which would be read for
        // each message.
        poll_fn(|cx| self.0.with(|state| state.poll_recv(cx)))
    }
}

impl Stream for WebSocketReceiver {
    type Item = Result<Message, RecvError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.with(|state| state.poll_recv(cx))
    }
}

impl Drop for WebSocketReceiver {
    fn drop(&mut self) {
        self.0.with(|state| state.drop_receiver());
    }
}

impl fmt::Debug for WebSocketReceiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebSocketReceiver")
    }
}
