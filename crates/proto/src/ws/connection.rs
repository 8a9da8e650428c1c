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
    /// The end that answered the handshake. It sends unmasked frames.
    Server,
    /// The end that started the handshake, with a source of masks; each frame takes one. They must
    /// be unpredictable (RFC 6455 §10.3).
    Client(fn() -> [u8; 4]),
}

/// One WebSocket connection, from the end of its handshake. It holds no buffer except for a message
/// that arrived in parts.
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
/// All output is appended to an `out` of the caller, in whole frames. The connection itself writes
/// pongs, the answer to a Close frame, and the Close frame that reports a violated rule: check
/// `out` after each `receive`, whatever the event is.
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
///             break; // The answer is in `out`.
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
    /// The message that is being sent in pieces.
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
    /// The peer's Close frame arrived; it is answered if it is the first.
    ReceiveClose,
    /// The peer violated a rule.
    Fail,
    /// The peer's bytes ended.
    End,
}

impl State {
    /// The state after a move; `None` if the move is illegal.
    pub(super) const fn on(self, step: Transition) -> Option<Self> {
        Some(match (self, step) {
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

/// A message that is sent in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentedSend {
    pub(super) kind: MessageType,
    pub(super) compressed: bool,
}

impl<C: DeflateCodec> Connection<C> {
    /// Creates a connection on which nothing was received. `compression` was negotiated by both
    /// ends.
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

    /// Makes the connection yield messages in pieces as they arrive, instead of whole: for messages
    /// that are too long to be held. Pieces are as long as the received bytes allow; of a
    /// compressed message, at most 16 KiB.
    #[must_use]
    pub const fn streaming(mut self) -> Self {
        self.receive.is_streaming = true;
        self
    }

    /// The peer's bytes have ended. Returns [`Event::Closed`] if the close handshake was
    /// complete, otherwise an [`Event::Error`], which is not sent to the peer.
    pub fn receive_eof(&mut self) -> Event<'static> {
        let was_over = self.state.is_terminal();
        self.transition(Transition::End);
        if was_over { Event::Closed } else { Event::Error(WebSocketError::ConnectionLost) }
    }

    /// The next step of the owner.
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

    /// Whether messages can still be sent.
    #[must_use]
    pub const fn can_send(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The memory held by an unfinished message.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.receive.memory_bytes()
    }

    /// Updates the time, by a monotonic clock; it restores the budget. Call it occasionally, before
    /// [`receive`](Self::receive).
    pub fn refill_budget(&mut self, limits: &Limits, now_ms: u64) {
        self.budget.refill(limits, now_ms);
    }

    /// Returns whether another ping would be answered: fewer than
    /// [`pending_control_frames_max`](Limits::pending_control_frames_max) answers wait for the
    /// peer. An owner that stops reading until they are sent need not disconnect such a peer.
    #[must_use]
    pub const fn can_queue_pong(&self, limits: &Limits) -> bool {
        !self.can_send() || self.budget.can_queue_pong(limits)
    }

    /// All output was sent: the peer reads its answers.
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

    pub(super) fn transition(&mut self, step: Transition) {
        self.state = self.state.on(step).expect("callers check the state before a move");
        self.sending = None;
        if self.state.is_terminal() {
            self.receive.reset();
        }
    }

    /// Ends the connection because the peer violated a rule, and sends that rule to it.
    // RFC 6455 §7.1.7: to fail the connection, an endpoint SHOULD send a Close frame with a code,
    // and MUST NOT process further data.
    #[cold]
    pub(super) fn fail(&mut self, reject: WebSocketError, out: &mut Vec<u8>) -> Event<'static> {
        if self.state == State::Open {
            self.write_close(Some((reject.code(), reject.rule())), out);
        }
        self.transition(Transition::Fail);
        Event::Error(reject)
    }

    /// Writes a Close frame. Its reason fits, and its code is allowed.
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
            Role::Client(masks) => Some(masks()),
        }
    }
}
