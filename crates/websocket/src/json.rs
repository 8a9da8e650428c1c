//! A channel of values, as JSON in messages of text.

use crate::error::{JsonError, SendError};
use crate::handle::{Receiver, Sender, WebSocket};
use crate::message::Message;
use peregrine_proto::ws::CloseCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;

/// A WebSocket of values. [`WebSocket::json`] makes one.
///
/// A message that is no `In` is the peer's fault: the peer is told 1007 and where the fault is, or 1003 for
/// a message of bytes, [`JsonSocket::recv`] gives the error, and nothing more is received.
pub struct JsonSocket<In, Out> {
    sender: JsonSender<Out>,
    receiver: JsonReceiver<In>,
}

impl<In, Out> JsonSocket<In, Out> {
    pub(crate) fn new(socket: WebSocket) -> Self {
        let (sender, receiver) = socket.split();
        let closer = sender.clone();
        Self {
            sender: JsonSender { sender, values: PhantomData },
            receiver: JsonReceiver { receiver, closer: Some(closer), values: PhantomData },
        }
    }

    /// Two halves, as [`WebSocket::split`] gives them.
    #[must_use]
    pub fn split(self) -> (JsonSender<Out>, JsonReceiver<In>) {
        (self.sender, self.receiver)
    }

    /// Closes the WebSocket, as [`WebSocket::close`].
    ///
    /// # Errors
    /// The WebSocket is closed already, or the code may not be sent.
    pub async fn close(self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        let Self { sender, receiver } = self;
        drop(receiver);
        sender.sender.close(code, reason).await
    }
}

impl<In: DeserializeOwned, Out> JsonSocket<In, Out> {
    /// The next value; `None` when the peer has closed, or the server drains.
    ///
    /// # Errors
    /// A message is no `In`, or the WebSocket has ended otherwise than by a Close frame.
    pub async fn recv(&mut self) -> Option<Result<In, JsonError>> {
        self.receiver.recv().await
    }
}

impl<In, Out: Serialize> JsonSocket<In, Out> {
    /// Sends a value, as [`WebSocket::send`] does.
    ///
    /// # Errors
    /// The value cannot be written as JSON, or the WebSocket is closed.
    pub async fn send(&self, value: &Out) -> Result<(), JsonError> {
        self.sender.send(value).await
    }
}

/// The half of a [`JsonSocket`] that sends.
pub struct JsonSender<Out> {
    sender: Sender,
    values: PhantomData<fn(Out)>,
}

impl<Out: Serialize> JsonSender<Out> {
    /// Sends a value, as [`Sender::send`] does.
    ///
    /// # Errors
    /// The value cannot be written as JSON, or the WebSocket is closed.
    pub async fn send(&self, value: &Out) -> Result<(), JsonError> {
        let text = serde_json::to_string(value).map_err(JsonError::Unwritable)?;
        self.sender.send(text).await.map_err(JsonError::Unsent)
    }
}

/// The half of a [`JsonSocket`] that receives.
pub struct JsonReceiver<In> {
    receiver: Receiver,
    /// Tells the peer of its fault; `None` when it was told.
    closer: Option<Sender>,
    values: PhantomData<fn() -> In>,
}

impl<In: DeserializeOwned> JsonReceiver<In> {
    /// The next value, as [`JsonSocket::recv`] gives it.
    ///
    /// # Errors
    /// A message is no `In`, or the WebSocket has ended otherwise than by a Close frame.
    pub async fn recv(&mut self) -> Option<Result<In, JsonError>> {
        loop {
            self.closer.as_ref()?;
            let text = match self.receiver.recv().await? {
                Ok(Message::Text(text)) => text,
                Ok(Message::Binary(_)) => {
                    self.refuse(CloseCode::UNSUPPORTED, "JSON is text".to_owned());
                    return Some(Err(JsonError::NotText));
                }
                Ok(_) => continue,
                Err(error) => return Some(Err(JsonError::Ended(error))),
            };
            match serde_json::from_str(&text) {
                Ok(value) => return Some(Ok(value)),
                Err(error) => {
                    self.refuse(CloseCode::INVALID_DATA, error.to_string());
                    return Some(Err(JsonError::Malformed(error)));
                }
            }
        }
    }

    fn refuse(&mut self, code: CloseCode, reason: String) {
        if let Some(closer) = self.closer.take() {
            // Who has closed before needs no reason any more.
            let _ = closer.try_send(Message::close(code, reason));
        }
    }
}

impl<In, Out> fmt::Debug for JsonSocket<In, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonSocket")
    }
}

impl<Out> fmt::Debug for JsonSender<Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonSender")
    }
}

impl<In> fmt::Debug for JsonReceiver<In> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonReceiver")
    }
}
