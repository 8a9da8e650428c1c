//! Sending messages, and waiting for room in the send queue.

use super::SocketState;
use crate::error::{SendError, TrySendError};
use crate::message::Message;
use peregrine_proto::ws::{self, MessagePayload};
use std::task::{Context, Poll};

impl SocketState {
    pub(crate) fn poll_send(
        &mut self,
        message: &mut Option<Message>,
        number: u64,
        context: &Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let Some(given) = message.take() else { return Poll::Ready(Ok(())) };
        let is_end = matches!(given, Message::Close(_));
        if self.is_budget_exhausted() && self.can_send() && !is_end {
            *message = Some(given);
            self.register_send_waiter(number, context);
            return Poll::Pending;
        }
        match self.try_send(given) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(TrySendError::Send(error)) => Poll::Ready(Err(error)),
            Err(TrySendError::Full(back)) => {
                *message = Some(back);
                self.register_send_waiter(number, context);
                Poll::Pending
            }
        }
    }

    /// Ready when a message may be sent immediately.
    pub(crate) fn poll_ready(
        &mut self,
        number: u64,
        context: &Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if !self.can_send() {
            return Poll::Ready(Err(SendError::Closed));
        }
        if self.is_ready() && !self.is_budget_exhausted() {
            return Poll::Ready(Ok(()));
        }
        self.register_send_waiter(number, context);
        Poll::Pending
    }

    pub(crate) fn try_send(&mut self, message: Message) -> Result<(), TrySendError> {
        let is_end = matches!(message, Message::Close(_));
        if self.can_send() && !is_end && !self.is_ready() {
            return Err(TrySendError::Full(message));
        }
        self.send_now(message).map_err(TrySendError::Send)
    }

    /// Sends a message without checking for room.
    pub(crate) fn send_now(&mut self, message: Message) -> Result<(), SendError> {
        if !self.can_send() {
            return Err(SendError::Closed);
        }
        let is_end = matches!(message, Message::Close(_));
        self.write(message)?;
        if is_end {
            self.wake_send_waiters();
        }
        self.wake_dispatcher();
        Ok(())
    }

    /// Returns whether the send queue has room for a message.
    pub(super) fn is_ready(&self) -> bool {
        self.send_queue_bytes() < self.limits.limits.send_queue_bytes_max.max(1)
    }

    fn register_send_waiter(&mut self, number: u64, context: &Context<'_>) {
        if self.send_waiters.register(number, context) {
            // Wake the conversation so that it polls the server for room.
            self.wake_dispatcher();
        }
    }

    fn write(&mut self, message: Message) -> Result<(), ws::WriteError> {
        self.budget.charge_sent(&message);
        let Self { protocol, limits: bounds, output: out, .. } = self;
        let limits = &bounds.protocol;
        match message {
            Message::Text(text) => protocol.send(limits, MessagePayload::Text(&text), out),
            Message::Binary(bytes) => protocol.send(limits, MessagePayload::Binary(&bytes), out),
            Message::Ping(payload) => {
                protocol.ping(&payload, out)?;
                self.pings = self.pings.saturating_add(1);
                Ok(())
            }
            Message::Pong(payload) => protocol.pong(&payload, out),
            Message::Close(close) => {
                let close = close.as_ref().map(|close| (close.code, &*close.reason));
                protocol.close(close, out)
            }
        }
    }
}
