//! A channel of values that are sent as JSON text messages.

use crate::error::{JsonError, SendError};
use crate::message::Message;
use crate::socket::{WebSocket, WebSocketReceiver, WebSocketSender};
use peregrine_proto::ws::CloseCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;

/// A WebSocket that sends and receives values. Created by [`WebSocket::json`].
///
/// If a message cannot be deserialized as `In`, the peer gets close code 1007 with the position of
/// the error; for a binary message, it gets 1003. [`JsonSocket::recv`] returns the error, and no
/// more messages are received.
pub struct JsonSocket<In, Out> {
    sender: JsonSender<Out>,
    receiver: JsonReceiver<In>,
}

impl<In, Out> JsonSocket<In, Out> {
    pub(crate) fn new(socket: WebSocket) -> Self {
        let (sender, receiver) = socket.split();
        let close_sender = sender.clone();
        Self {
            sender: JsonSender { sender, values: PhantomData },
            receiver: JsonReceiver {
                receiver,
                close_sender: Some(close_sender),
                values: PhantomData,
            },
        }
    }

    /// Splits the channel into two halves, like [`WebSocket::split`].
    #[must_use]
    pub fn split(self) -> (JsonSender<Out>, JsonReceiver<In>) {
        (self.sender, self.receiver)
    }

    /// Closes the WebSocket; see [`WebSocket::close`].
    ///
    /// # Errors
    /// The WebSocket is already closed, or the code is not allowed.
    pub async fn close(self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        let Self { sender, receiver } = self;
        drop(receiver);
        sender.sender.close(code, reason).await
    }
}

impl<In: DeserializeOwned, Out> JsonSocket<In, Out> {
    /// Receives the next value. Returns `None` when the peer has closed the WebSocket or the server
    /// drains.
    ///
    /// # Errors
    /// A message cannot be deserialized as `In`, or the WebSocket has ended without a Close frame.
    pub async fn recv(&mut self) -> Option<Result<In, JsonError>> {
        self.receiver.recv().await
    }
}

impl<In, Out: Serialize> JsonSocket<In, Out> {
    /// Sends a value; see [`WebSocket::send`].
    ///
    /// # Errors
    /// The value cannot be serialized as JSON, or the WebSocket is closed.
    pub async fn send(&self, value: &Out) -> Result<(), JsonError> {
        self.sender.send(value).await
    }
}

/// The sending half of a [`JsonSocket`].
pub struct JsonSender<Out> {
    sender: WebSocketSender,
    values: PhantomData<fn(Out)>,
}

impl<Out: Serialize> JsonSender<Out> {
    /// Sends a value; see [`WebSocketSender::send`].
    ///
    /// # Errors
    /// The value cannot be serialized as JSON, or the WebSocket is closed.
    pub async fn send(&self, value: &Out) -> Result<(), JsonError> {
        let text = serde_json::to_string(value).map_err(JsonError::Serialize)?;
        self.sender.send(text).await.map_err(JsonError::Send)
    }
}

/// The receiving half of a [`JsonSocket`].
pub struct JsonReceiver<In> {
    receiver: WebSocketReceiver,
    /// Sends the close code for a bad message; `None` once it has been sent.
    close_sender: Option<WebSocketSender>,
    values: PhantomData<fn() -> In>,
}

impl<In: DeserializeOwned> JsonReceiver<In> {
    /// Receives the next value; see [`JsonSocket::recv`].
    ///
    /// # Errors
    /// A message cannot be deserialized as `In`, or the WebSocket has ended without a Close frame.
    pub async fn recv(&mut self) -> Option<Result<In, JsonError>> {
        loop {
            self.close_sender.as_ref()?;
            let text = match self.receiver.recv().await? {
                Ok(Message::Text(text)) => text,
                Ok(Message::Binary(_)) => {
                    self.close_with(
                        CloseCode::UNSUPPORTED_DATA,
                        "JSON messages must be text".to_owned(),
                    );
                    return Some(Err(JsonError::NotText));
                }
                Ok(_) => continue,
                Err(error) => return Some(Err(JsonError::Recv(error))),
            };
            match serde_json::from_str(&text) {
                Ok(value) => return Some(Ok(value)),
                Err(error) => {
                    self.close_with(CloseCode::INVALID_PAYLOAD, error.to_string());
                    return Some(Err(JsonError::Deserialize(error)));
                }
            }
        }
    }

    fn close_with(&mut self, code: CloseCode, reason: String) {
        if let Some(close_sender) = self.close_sender.take() {
            // This fails if the WebSocket is already closed. The peer then needs no reason.
            let _ = close_sender.try_send(Message::close(code, reason));
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
