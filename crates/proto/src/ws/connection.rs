//! One WebSocket connection: the state shared by both directions, and how it ends.

use super::budget::Budget;
use super::close::CloseCode;
use super::compression::{DeflateCodec, NoDeflate};
use super::error::WebSocketError;
use super::event::{Event, MessageType, NextAction, WaitingFor};
use super::frame::{self, Opcode, flag};
use super::limits::Limits;
use super::receive::ReceivePath;

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// The end that accepted the handshake. It sends unmasked frames.
    Server,
    /// The end that started the handshake, with a function that returns the mask for each frame.
    /// The masks must be unpredictable (RFC 6455 §10.3).
    Client(fn() -> [u8; 4]),
}

/// One WebSocket connection, after its handshake. It has no buffer except for a message that
/// arrives in parts.
///
/// Kinds of methods:
///
/// - bytes in: [`receive`](Self::receive) until it needs input,
///   [`receive_eof`](Self::receive_eof);
/// - bytes out: [`send`](Self::send), or [`send_fragment`](Self::send_fragment) until the last;
///   [`ping`](Self::ping), [`pong`](Self::pong), [`close`](Self::close);
/// - queries: [`next_action`](Self::next_action), [`waiting_for`](Self::waiting_for),
///   [`can_send`](Self::can_send), [`can_queue_pong`](Self::can_queue_pong),
///   [`memory_bytes`](Self::memory_bytes);
/// - notifications: [`refill_budget`](Self::refill_budget),
///   [`output_flushed`](Self::output_flushed).
///
/// All output is appended to the caller's `out`, in whole frames. [`receive`](Self::receive) also
/// writes pongs, the reply to a Close frame, and the Close frame that reports an error: check `out`
/// after each call, whatever the event is.
///
/// ```
/// use peregrine_proto::ws::{Close, CloseCode, Connection, Event, Limits};
/// use peregrine_proto::ws::{MessagePayload, NextAction, Role};
/// use std::borrow::Cow;
///
/// let limits = Limits::default();
/// let mut server = <Connection>::new(&limits, Role::Server, None);
/// let mut client = <Connection>::new(&limits, Role::Client(|| *b"mask"), None);
///
/// let (mut unread, mut out) = (Vec::new(), Vec::new());
/// client.send(&limits, MessagePayload::Text("hello"), &mut unread)?;
/// client.close(Some((CloseCode::NORMAL_CLOSURE, "")), &mut unread)?;
///
/// let mut at = 0;
/// loop {
///     let (used, event) = server.receive(&limits, &mut unread[at..], &mut out);
///     at += used;
///     match event {
///         Event::NeedInput => break, // Send `out`, and receive more behind `unread[at..]`.
///         Event::Text(text) => {
///             assert_eq!(text, Cow::Borrowed("hello"));
///             server.send(&limits, MessagePayload::Text(&text), &mut out)?;
///         }
///         Event::Close(close) => {
///             assert_eq!(close, Close { code: CloseCode::NORMAL_CLOSURE, reason: "" });
///             break; // The reply is in `out`.
///         }
///         other => panic!("{other:?}"),
///     }
/// }
/// assert_eq!(out, b"\x81\x05hello\x88\x02\x03\xe8");
/// assert_eq!(server.next_action(), NextAction::Close);
/// # Ok::<(), peregrine_proto::ws::WriteError>(())
/// ```
#[derive(Debug)]
pub struct Connection<C = NoDeflate> {
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) receive: ReceivePath,
    /// The fragmented message that is being sent.
    pub(super) sending: Option<FragmentedSend>,
    pub(super) budget: Budget,
    pub(super) compression: Option<C>,
}

const _: () = assert!(size_of::<Connection>() <= 192, "every idle connection holds one");

/// The progress of the close handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Messages are sent in both directions.
    Open,
    /// A Close frame was sent: messages are only received.
    CloseSent,
    /// Close frames were sent in both directions.
    Closed,
    /// The peer violated a rule, or disconnected without a Close frame.
    Failed,
}

/// The events that change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// This end sends a Close frame.
    SendClose,
    /// The peer's Close frame arrived; this end replies if it has not sent one.
    ReceiveClose,
    /// The peer violated a rule.
    Fail,
    /// The peer's bytes ended.
    End,
}

impl State {
    /// The state after a transition; `None` if it is illegal.
    pub(super) const fn on(self, transition: Transition) -> Option<Self> {
        Some(match (self, transition) {
            (Self::Open, Transition::SendClose) => Self::CloseSent,
            (Self::Open | Self::CloseSent, Transition::ReceiveClose) => Self::Closed,
            (Self::Open | Self::CloseSent, Transition::Fail | Transition::End) => Self::Failed,
            (Self::Closed | Self::Failed, Transition::End) => self,
            _ => return None,
        })
    }

    /// Returns whether nothing more is received.
    pub(super) const fn is_terminal(self) -> bool {
        matches!(self, Self::Closed | Self::Failed)
    }
}

/// A fragmented message that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentedSend {
    pub(super) message_type: MessageType,
    pub(super) compressed: bool,
}

impl<C: DeflateCodec> Connection<C> {
    /// Creates a connection. `compression` is the negotiated one.
    #[must_use]
    pub const fn new(limits: &Limits, role: Role, compression: Option<C>) -> Self {
        Self {
            role,
            state: State::Open,
            receive: ReceivePath::new(),
            sending: None,
            budget: Budget::new(limits),
            compression,
        }
    }

    /// Makes the connection yield messages in chunks as they arrive instead of as a whole: for
    /// messages that are too long to be buffered. Chunks are as long as the received bytes allow;
    /// those of a compressed message have at most 16 KiB.
    #[must_use]
    pub const fn streaming(mut self) -> Self {
        self.receive.is_streaming = true;
        self
    }

    /// Must be called when the peer has finished sending. Returns [`Event::Closed`] if the close
    /// handshake was complete, otherwise an [`Event::Error`], which is not sent to the peer.
    pub fn receive_eof(&mut self) -> Event<'static> {
        let was_closed = self.state.is_terminal();
        self.transition(Transition::End);
        if was_closed { Event::Closed } else { Event::Error(WebSocketError::ConnectionLost) }
    }

    /// The next step of the caller.
    // RFC 6455 §7.1.1: the server closes the TCP connection first; the client waits for that.
    #[must_use]
    pub const fn next_action(&self) -> NextAction {
        match (self.state, self.role) {
            (State::Open | State::CloseSent, _) => NextAction::Receive,
            (State::Closed, Role::Client(_)) => NextAction::AwaitTransportClose,
            (State::Closed, Role::Server) | (State::Failed, _) => NextAction::Close,
        }
    }

    /// The event that the connection is waiting for.
    #[must_use]
    pub const fn waiting_for(&self) -> WaitingFor {
        match (self.state, self.role) {
            (State::Open, _) => self.receive.waiting_for(),
            (State::CloseSent, _) => WaitingFor::Close,
            (State::Closed, Role::Client(_)) => WaitingFor::TransportClose,
            (State::Closed, Role::Server) | (State::Failed, _) => WaitingFor::Nothing,
        }
    }

    /// Returns whether messages can still be sent.
    #[must_use]
    pub const fn can_send(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The memory held by an incomplete message, in bytes.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.receive.memory_bytes()
    }

    /// Sets the time, in milliseconds of a monotonic clock, which refills the budget. Call it
    /// occasionally, before [`receive`](Self::receive).
    pub fn refill_budget(&mut self, limits: &Limits, now_ms: u64) {
        self.budget.refill(limits, now_ms);
    }

    /// Returns whether the reply to another ping could be queued: fewer than
    /// [`pending_pongs_max`](Limits::pending_pongs_max) pongs are pending. If the caller otherwise
    /// stops reading until they are sent, the connection does not fail because of them.
    #[must_use]
    pub const fn can_queue_pong(&self, limits: &Limits) -> bool {
        !self.can_send() || self.budget.can_queue_pong(limits)
    }

    /// Reports that all output was sent, so the peer is reading. This resets the count of pending
    /// pongs.
    pub const fn output_flushed(&mut self) {
        self.budget.pongs_flushed();
    }

    /// Checks the invariants between calls.
    ///
    /// # Panics
    ///
    /// If one is violated.
    #[doc(hidden)]
    pub fn assert_invariants(&self) {
        self.receive.assert_invariants(self.state.is_terminal(), self.compression.is_some());
    }

    pub(super) fn transition(&mut self, transition: Transition) {
        self.state =
            self.state.on(transition).expect("callers check the state before a transition");
        self.sending = None;
        if self.state.is_terminal() {
            self.receive.reset();
        }
    }

    /// Fails the connection because the peer violated a rule, and writes a Close frame that names
    /// the rule.
    // RFC 6455 §7.1.7: to fail the connection, an endpoint SHOULD send a Close frame with a code,
    // and MUST NOT process further data.
    #[cold]
    pub(super) fn fail(&mut self, error: WebSocketError, out: &mut Vec<u8>) -> Event<'static> {
        if self.state == State::Open {
            self.write_close(Some((error.code(), error.rule())), out);
        }
        self.transition(Transition::Fail);
        Event::Error(error)
    }

    /// Writes a Close frame. The caller ensures that the reason fits, and that the code is allowed.
    pub(super) fn write_close(&self, close: Option<(CloseCode, &str)>, out: &mut Vec<u8>) {
        let mut payload = [0; frame::CONTROL_BYTES_MAX];
        let mut length = 0;
        if let Some((code, reason)) = close {
            payload[..2].copy_from_slice(&code.0.to_be_bytes());
            payload[2..2 + reason.len()].copy_from_slice(reason.as_bytes());
            length = 2 + reason.len();
        }
        frame::write_frame(Opcode::Close, flag::FIN, self.mask(), &payload[..length], out);
    }

    /// The mask of the next frame.
    // RFC 6455 §5.1: a client MUST mask all frames that it sends; a server MUST NOT.
    // RFC 6455 §5.3: each frame has a new mask, which cannot be predicted.
    #[inline]
    pub(super) fn mask(&self) -> Option<[u8; 4]> {
        match self.role {
            Role::Server => None,
            Role::Client(next_mask) => Some(next_mask()),
        }
    }
}
