//! What a handler holds of a WebSocket.

use crate::error::{Error, SendError, TrySendError};
use crate::json::JsonSocket;
use crate::message::Message;
use crate::shared::{Shared, State};
use futures_core::Stream;
use futures_sink::Sink;
use peregrine_proto::ws::CloseCode;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// An open WebSocket: messages both ways.
///
/// Dropping it closes the WebSocket with 1000, with 1001 if the server drains, and with 1011 if the handler
/// panics. It may be moved to a task of the same worker; the WebSocket lives for as long as the handler or
/// anybody with a handle does.
///
/// A peer that sends faster than the handler takes is held back, and so is a handler that sends faster
/// than the peer reads.
pub struct WebSocket {
    sender: Sender,
    receiver: Receiver,
    protocol: Option<String>,
}

impl WebSocket {
    pub(crate) fn new(shared: &Shared, protocol: Option<String>) -> Self {
        Self { sender: Sender::new(shared), receiver: Receiver::new(shared), protocol }
    }

    /// The subprotocol that was agreed on.
    #[must_use]
    pub fn protocol(&self) -> Option<&str> {
        self.protocol.as_deref()
    }

    /// The next message; see [`Receiver::recv`].
    pub fn recv(&mut self) -> impl Future<Output = Option<Result<Message, Error>>> {
        self.receiver.recv()
    }

    /// Sends a message; see [`Sender::send`].
    ///
    /// # Errors
    /// The WebSocket is closed, or the message may not be sent.
    pub fn send(&self, message: impl Into<Message>) -> impl Future<Output = Result<(), SendError>> {
        self.sender.send(message)
    }

    /// Sends a message if there is room for it, and never waits; see [`Sender::try_send`].
    ///
    /// # Errors
    /// There is no room, the WebSocket is closed, or the message may not be sent.
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), TrySendError> {
        self.sender.try_send(message)
    }

    /// Closes the WebSocket: sends a Close frame behind what was sent before, and waits until the peer has
    /// answered it, or for the time of [`close_timeout`](crate::WebSocketUpgrade::close_timeout). What the
    /// peer sends meanwhile is thrown away.
    ///
    /// # Errors
    /// The WebSocket is closed already, or the code may not be sent.
    pub async fn close(self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        let Self { sender, receiver, .. } = self;
        drop(receiver);
        sender.close(code, reason).await
    }

    /// Waits until the WebSocket closes or is about to; see [`Sender::closing`].
    pub async fn closing(&self) {
        self.sender.closing().await;
    }

    /// Two halves, for two places of the handler or for two tasks of its worker.
    #[must_use]
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// A channel of values, which go as JSON in messages of text.
    #[must_use]
    pub fn json<In, Out>(self) -> JsonSocket<In, Out> {
        JsonSocket::new(self)
    }
}

impl Stream for WebSocket {
    type Item = Result<Message, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.receiver.0.with(|state| state.poll_recv(context))
    }
}

/// As the one of [`Sender`].
impl Sink<Message> for WebSocket {
    type Error = SendError;

    fn poll_ready(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        Pin::new(&mut self.sender).poll_ready(context)
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), SendError> {
        Pin::new(&mut self.sender).start_send(message)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        Pin::new(&mut self.sender).poll_flush(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        Pin::new(&mut self.sender).poll_close(context)
    }
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("protocol", &self.protocol).finish_non_exhaustive()
    }
}

/// The half that sends. Copies of it send on the same WebSocket.
pub struct Sender {
    shared: Shared,
    /// By which it waits as a sink.
    number: u64,
}

/// A place among those who wait, which is given up with it.
struct Place<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.with(|state| state.forget(self.number));
    }
}

impl Sender {
    fn new(shared: &Shared) -> Self {
        let number = shared.with(|state| {
            state.add_sender();
            state.number()
        });
        Self { shared: shared.clone(), number }
    }

    /// Waits for something of the state.
    async fn wait<T>(
        &self,
        mut poll: impl FnMut(&mut State, u64, &mut Context<'_>) -> Poll<T>,
    ) -> T {
        let place = Place { shared: &self.shared, number: self.shared.with(State::number) };
        poll_fn(|context| self.shared.with(|state| poll(state, place.number, context))).await
    }

    /// Sends a message, and waits before while too much waits for the peer already. The message is on its
    /// way when this is ready, which does not mean that the peer has it. Dropping the future before sends
    /// nothing.
    ///
    /// # Errors
    /// The WebSocket is closed, or the message may not be sent.
    pub async fn send(&self, message: impl Into<Message>) -> Result<(), SendError> {
        let mut message = Some(message.into());
        self.wait(|state, number, context| state.poll_send(&mut message, number, context)).await
    }

    /// Sends a message if there is room for it, and never waits: for a message to many, none of which may
    /// hold the others up.
    ///
    /// # Errors
    /// There is no room, or as [`Sender::send`].
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), TrySendError> {
        self.shared.with(|state| state.try_send(message.into()))
    }

    /// Closes the WebSocket: sends a Close frame, and waits until the peer has answered it, for a limited
    /// time. Somebody has to take what the peer sends meanwhile, or drop the receiver.
    ///
    /// # Errors
    /// The WebSocket is closed already, or the code may not be sent.
    pub async fn close(&self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.send(Message::close(code, reason.to_owned())).await?;
        self.wait(|state, number, context| state.poll_ended(number, context)).await;
        Ok(())
    }

    /// Waits until the WebSocket closes, or is about to because the server drains: then there is still time
    /// to send something, until [`goodbye`](crate::WebSocketUpgrade::goodbye) is over.
    pub async fn closing(&self) {
        self.wait(|state, number, context| state.poll_closing(number, context)).await;
    }

    /// Is the WebSocket closed, or about to be?
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.shared.with(|state| state.is_closing())
    }
}

/// What is sent is on its way without a flush. Closing the sink closes the WebSocket with 1000, and waits for
/// the peer's answer as [`Sender::close`] does.
impl Sink<Message> for Sender {
    type Error = SendError;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.shared.with(|state| state.poll_room(self.number, context))
    }

    fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), SendError> {
        self.shared.with(|state| state.send_at_once(message))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.shared.with(|state| {
            if state.can_send() {
                state.send_at_once(Message::close(CloseCode::NORMAL, ""))?;
            }
            state.poll_ended(self.number, context).map(Ok)
        })
    }
}

impl Clone for Sender {
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.forget(self.number);
            state.drop_sender();
        });
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closing", &self.is_closing()).finish_non_exhaustive()
    }
}

/// The half that receives. Without it, what the peer sends is thrown away.
pub struct Receiver(Shared);

impl Receiver {
    fn new(shared: &Shared) -> Self {
        shared.with(|state| state.add_receiver());
        Self(shared.clone())
    }

    /// The next message of the peer; `None` at the end, and ever after. The end is behind the peer's
    /// [`Message::Close`], behind an error, or where the server drains: then what is here is given first,
    /// and something may still be sent.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// The WebSocket has ended otherwise than by a Close frame.
    pub fn recv(&mut self) -> impl Future<Output = Option<Result<Message, Error>>> {
        // Each future within a future has a state of its own, which each message reads.
        poll_fn(|context| self.0.with(|state| state.poll_recv(context)))
    }
}

impl Stream for Receiver {
    type Item = Result<Message, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.with(|state| state.poll_recv(context))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.with(|state| state.drop_receiver());
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}
