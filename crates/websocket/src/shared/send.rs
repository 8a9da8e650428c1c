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
        waiter_id: u64,
        cx: &Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let Some(unsent) = message.take() else { return Poll::Ready(Ok(())) };
        let is_close = matches!(unsent, Message::Close(_));
        if self.is_budget_exhausted() && self.can_send() && !is_close {
            *message = Some(unsent);
            self.register_send_waiter(waiter_id, cx);
            return Poll::Pending;
        }
        match self.try_send(unsent) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(TrySendError::Send(error)) => Poll::Ready(Err(error)),
            Err(TrySendError::Full(returned)) => {
                *message = Some(returned);
                self.register_send_waiter(waiter_id, cx);
                Poll::Pending
            }
        }
    }

    /// Is ready when a message can be sent immediately.
    pub(crate) fn poll_ready(
        &mut self,
        waiter_id: u64,
        cx: &Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if !self.can_send() {
            return Poll::Ready(Err(SendError::Closed));
        }
        if self.is_ready() && !self.is_budget_exhausted() {
            return Poll::Ready(Ok(()));
        }
        self.register_send_waiter(waiter_id, cx);
        Poll::Pending
    }

    /// Sends a message if the send queue has room for it. A Close frame needs no room.
    pub(crate) fn try_send(&mut self, message: Message) -> Result<(), TrySendError> {
        let is_close = matches!(message, Message::Close(_));
        if self.can_send() && !is_close && !self.is_ready() {
            return Err(TrySendError::Full(message));
        }
        self.send_now(message).map_err(TrySendError::Send)
    }

    /// Sends a message without checking for room.
    pub(crate) fn send_now(&mut self, message: Message) -> Result<(), SendError> {
        if !self.can_send() {
            return Err(SendError::Closed);
        }
        let is_close = matches!(message, Message::Close(_));
        self.write(message)?;
        if is_close {
            self.wake_all_waiters();
        }
        self.wake_dispatcher();
        Ok(())
    }

    /// Returns whether the send queue has room for a message.
    pub(super) fn is_ready(&self) -> bool {
        self.send_queue_bytes() < self.limits.limits.send_queue_bytes_max.max(1)
    }

    fn register_send_waiter(&mut self, waiter_id: u64, cx: &Context<'_>) {
        if self.send_waiters.register(waiter_id, cx) {
            // Wake the dispatcher so that it polls the server for room.
            self.wake_dispatcher();
        }
    }

    fn write(&mut self, message: Message) -> Result<(), ws::WriteError> {
        self.budget.charge_sent(&message);
        let Self { protocol, limits, output, .. } = self;
        let ws_limits = &limits.protocol;
        match message {
            Message::Text(text) => protocol.send(ws_limits, MessagePayload::Text(&text), output),
            Message::Binary(bytes) => {
                protocol.send(ws_limits, MessagePayload::Binary(&bytes), output)
            }
            Message::Ping(payload) => {
                protocol.ping(&payload, output)?;
                self.pings = self.pings.saturating_add(1);
                Ok(())
            }
            Message::Pong(payload) => protocol.pong(&payload, output),
            Message::Close(close) => {
                let close = close.as_ref().map(|close| (close.code, &*close.reason));
                protocol.close(close, output)
            }
        }
    }
}
