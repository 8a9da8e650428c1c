//! The state shared by a WebSocket's handles and its conversation.

use crate::Codec;
use crate::error::{Error, SendError, TrySendError};
use crate::inbox::Inbox;
use crate::message::{CloseFrame, Message};
use crate::settings::{Bounds, Limits};
use crate::share::Share;
use crate::waiters::{Waiters, register};
use bytes::Bytes;
use peregrine_proto::ws::{self, Close, CloseCode, Connection, Content, Event, Role};
use peregrine_web::account::{Charge, Filling, filling};
use peregrine_web::upgrade::Backlog;
use std::cell::RefCell;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The payload of the server's own pings. Their pongs are not passed to the handler.
const KEEP_ALIVE: &[u8] = b"keep-alive";

/// One WebSocket, shared by its conversation and all handles.
#[derive(Clone)]
pub(crate) struct Shared(Rc<RefCell<State>>);

/// The protocol and the queues on both sides of it.
///
/// `repr(C)` keeps the field order: the fields used for every message come first, because with
/// thousands of WebSockets in turn each cache line has to be fetched.
#[repr(C)]
pub(crate) struct State {
    conversation: Waker,
    to_wake: Vec<Waker>,
    /// Encoded output that was not handed to the server yet.
    pub(crate) out: Vec<u8>,
    /// Output that the server has not sent yet.
    backlog: Backlog,
    /// Received messages that were not taken yet.
    inbox: Inbox,
    /// The rest of the memory that the peer makes this worker hold: message fragments and unread
    /// bytes.
    parts: Charge,
    /// The sum of both at the last check.
    weighed: usize,
    share: Share,
    reader: Option<Waker>,
    senders: usize,
    receivers: usize,
    /// The conversation is being polled and will notice all changes.
    is_running: bool,
    /// The conversation must check the state once more.
    is_changed: bool,
    /// Nothing more will be received.
    is_ended: bool,
    /// The server is draining.
    pub(crate) is_draining: bool,
    /// The receiver has returned `None`; later messages are discarded.
    is_told: bool,
    /// Senders that wait for room.
    waiting: Waiters,
    protocol: Connection<Codec>,
    bounds: Rc<Bounds>,
    /// Pings of the handler that were not answered yet.
    pings: u32,
    /// Tasks that wait for the drain or the end.
    closers: Waiters,
    /// The last number given to a waiter.
    last_number: u64,
}

impl Shared {
    pub(crate) fn new(limits: Limits, compression: Option<Codec>, backlog: Backlog) -> Self {
        let bounds = Bounds::of(limits);
        let packs_from = compression.as_ref().map_or(usize::MAX, |_| limits.compress_bytes_min);
        let share = Share::new(packs_from);
        Self(Rc::new(RefCell::new(State {
            protocol: Connection::new(&bounds.protocol, Role::Server, compression),
            bounds,
            inbox: Inbox::default(),
            parts: Charge::new(),
            weighed: 0,
            share,
            is_ended: false,
            is_draining: false,
            is_told: false,
            out: Vec::new(),
            backlog,
            pings: 0,
            senders: 0,
            receivers: 0,
            reader: None,
            waiting: Waiters::default(),
            closers: Waiters::default(),
            last_number: 0,
            conversation: Waker::noop().clone(),
            is_running: false,
            is_changed: false,
            to_wake: Vec::new(),
        })))
    }

    /// Runs `work` on the state. Wakers are called afterwards, because they may run arbitrary code.
    ///
    /// The waker of the conversation, through which the handler waits, is skipped while the
    /// conversation is polled: it will notice all changes anyway.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.borrow_mut();
        let result = work(&mut state);
        if !state.to_wake.is_empty() {
            let mut wakers = take(&mut state.to_wake);
            if state.is_running {
                let all = wakers.len();
                wakers.retain(|waker| !waker.will_wake(&state.conversation));
                state.is_changed |= wakers.len() < all;
            }
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
        result
    }
}

/// The content of received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// A message for the handler.
    Message,
    /// A control frame or part of a message.
    Sign,
    /// No complete frame: more bytes are needed, or the WebSocket is over.
    End,
}

/// Called by the handles.
impl State {
    pub(crate) fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Message, Error>>> {
        let was_full = self.is_full();
        if let Some(next) = self.inbox.pop() {
            if was_full && !self.is_full() {
                self.change();
            }
            return Poll::Ready(Some(next));
        }
        if self.is_ended || self.is_draining {
            self.is_told = true;
            return Poll::Ready(None);
        }
        register(&mut self.reader, context);
        Poll::Pending
    }

    pub(crate) fn poll_send(
        &mut self,
        message: &mut Option<Message>,
        number: u64,
        context: &Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        let Some(given) = message.take() else { return Poll::Ready(Ok(())) };
        let is_end = matches!(given, Message::Close(_));
        if self.has_done_enough() && self.can_send() && !is_end {
            *message = Some(given);
            self.wait_for_room(number, context);
            return Poll::Pending;
        }
        match self.try_send(given) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(TrySendError::Unsent(error)) => Poll::Ready(Err(error)),
            Err(TrySendError::Full(back)) => {
                *message = Some(back);
                self.wait_for_room(number, context);
                Poll::Pending
            }
        }
    }

    /// Ready when a message may be sent immediately.
    pub(crate) fn poll_room(
        &mut self,
        number: u64,
        context: &Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if !self.can_send() {
            return Poll::Ready(Err(SendError::Closed));
        }
        if self.has_room() && !self.has_done_enough() {
            return Poll::Ready(Ok(()));
        }
        self.wait_for_room(number, context);
        Poll::Pending
    }

    fn wait_for_room(&mut self, number: u64, context: &Context<'_>) {
        if self.waiting.add(number, context) {
            // Wake the conversation so that it polls the server for room.
            self.tell_conversation();
        }
    }

    fn has_room(&self) -> bool {
        self.queued() < self.bounds.own.queued_bytes_max.max(1)
    }

    pub(crate) fn try_send(&mut self, message: Message) -> Result<(), TrySendError> {
        let is_end = matches!(message, Message::Close(_));
        if self.can_send() && !is_end && !self.has_room() {
            return Err(TrySendError::Full(message));
        }
        self.send_at_once(message).map_err(TrySendError::Unsent)
    }

    /// Sends a message without checking for room.
    pub(crate) fn send_at_once(&mut self, message: Message) -> Result<(), SendError> {
        if !self.can_send() {
            return Err(SendError::Closed);
        }
        let is_end = matches!(message, Message::Close(_));
        self.write(message)?;
        if is_end {
            self.wake_waiting();
        }
        self.tell_conversation();
        Ok(())
    }

    fn write(&mut self, message: Message) -> Result<(), ws::Unsent> {
        self.share.send(&message);
        let Self { protocol, bounds, out, .. } = self;
        let limits = &bounds.protocol;
        match message {
            Message::Text(text) => protocol.send(limits, Content::Text(&text), out),
            Message::Binary(bytes) => protocol.send(limits, Content::Binary(&bytes), out),
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

    /// Ready when the WebSocket closes or is about to.
    pub(crate) fn poll_closing(&mut self, number: u64, context: &Context<'_>) -> Poll<()> {
        if self.is_closing() {
            return Poll::Ready(());
        }
        self.closers.add(number, context);
        Poll::Pending
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_draining || self.is_ended || !self.can_send()
    }

    /// Ready when nothing more will be received.
    pub(crate) fn poll_ended(&mut self, number: u64, context: &Context<'_>) -> Poll<()> {
        if self.is_ended {
            return Poll::Ready(());
        }
        self.closers.add(number, context);
        Poll::Pending
    }

    /// Allocates a number for a waiter.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Removes the waiter with this number.
    pub(crate) fn forget(&mut self, number: u64) {
        self.waiting.forget(number);
        self.closers.forget(number);
    }

    pub(crate) fn add_sender(&mut self) {
        self.senders += 1;
    }

    pub(crate) fn drop_sender(&mut self) {
        self.senders -= 1;
        if self.is_left() {
            self.change();
        }
    }

    pub(crate) fn add_receiver(&mut self) {
        self.receivers += 1;
    }

    /// The receiver was dropped: discard all further messages.
    pub(crate) fn drop_receiver(&mut self) {
        self.receivers -= 1;
        self.inbox.clear();
        self.change();
    }

    /// Makes the conversation check everything again.
    fn change(&mut self) {
        self.is_changed = true;
        self.tell_conversation();
    }

    fn tell_conversation(&mut self) {
        if !self.is_running {
            self.to_wake.push(self.conversation.clone());
        }
    }
}

/// Called by the conversation.
impl State {
    /// Starts a poll. Returns true if the last turn used up its budget outside of a poll.
    pub(crate) fn begin(&mut self, context: &Context<'_>) -> bool {
        if !self.conversation.will_wake(context.waker()) {
            self.conversation.clone_from(context.waker());
        }
        self.is_running = true;
        self.share.begin()
    }

    pub(crate) fn pause(&mut self) {
        self.is_running = false;
    }

    /// Returns whether something has changed since the last call.
    pub(crate) fn take_change(&mut self) -> bool {
        take(&mut self.is_changed)
    }

    /// Checks how much the server has sent.
    pub(crate) fn look_at_unsent(&mut self) {
        if self.queued() == 0 {
            self.protocol.output_sent();
        }
        if self.has_room() {
            self.to_wake.extend(self.waiting.take());
        }
    }

    /// Returns whether so many pongs are queued that the peer must not be read from.
    pub(crate) fn is_unread(&self) -> bool {
        !self.protocol.may_answer(&self.bounds.protocol)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn queued(&self) -> usize {
        self.out.len() + self.backlog.bytes()
    }

    /// Returns whether the inbox is full, so that the peer must not be read from.
    pub(crate) fn is_full(&self) -> bool {
        self.inbox.bytes() >= self.bounds.own.unread_bytes_max.max(1)
    }

    /// Returns whether the WebSocket must yield. A few bytes may expand to many when decompressed.
    pub(crate) fn has_done_enough(&self) -> bool {
        self.share.is_used_up()
    }

    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.protocol.tick(&self.bounds.protocol, now_ms);
    }

    /// Parses bytes. Returns how many were consumed and what they contained.
    pub(crate) fn receive(&mut self, unread: &mut [u8]) -> (usize, Found) {
        let Self { protocol, bounds, out, .. } = self;
        let (used, event) = protocol.receive(&bounds.protocol, unread, out);
        let message = match event {
            Event::NeedInput | Event::Closed => return (used, Found::End),
            Event::Text(text) => Message::Text(text.into()),
            Event::Binary(bytes) => Message::Binary(match bytes {
                std::borrow::Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
                std::borrow::Cow::Owned(bytes) => bytes.into(),
            }),
            Event::Piece { .. } => unreachable!("messages are received whole"),
            Event::Ping(_) => return (used, Found::Sign),
            Event::Pong(payload) => {
                let is_ours = payload == KEEP_ALIVE || self.pings == 0;
                if is_ours {
                    return (used, Found::Sign);
                }
                let payload = Bytes::copy_from_slice(payload);
                self.pings -= 1;
                Message::Pong(payload)
            }
            Event::Close(Close { code, reason }) => {
                let reason = reason.to_owned().into();
                let close = (code != CloseCode::NO_CODE).then_some(CloseFrame { code, reason });
                self.give(Ok(Message::Close(close)));
                self.end();
                return (used, Found::End);
            }
            Event::Error(reject) => {
                self.fail(Error::Broken(reject));
                return (used, Found::End);
            }
        };
        self.give(Ok(message));
        (used, Found::Message)
    }

    fn give(&mut self, message: Result<Message, Error>) {
        if self.receivers == 0 || self.is_ended || self.is_told {
            return;
        }
        self.share.receive(self.inbox.push(message));
        self.to_wake.extend(self.reader.take());
    }

    /// The peer's bytes have ended.
    pub(crate) fn close_receive(&mut self) {
        if !self.is_over() {
            let _ = self.protocol.close_receive();
            self.fail(Error::Lost);
        }
    }

    /// Ends receiving with an error.
    pub(crate) fn fail(&mut self, error: Error) {
        self.give(Err(error));
        self.end();
    }

    fn end(&mut self) {
        self.is_ended = true;
        self.to_wake.extend(self.reader.take());
        self.wake_waiting();
    }

    /// Updates the accounted memory, with `unread` bytes outside of this state. If it has grown and
    /// the worker has reached its memory limit, the WebSocket is closed with "try again later".
    pub(crate) fn weigh(&mut self, unread: usize) {
        self.parts.set(unread + self.protocol.memory_bytes());
        let now = self.parts.bytes() + self.inbox.bytes();
        let has_grown = now > std::mem::replace(&mut self.weighed, now);
        if has_grown && filling() >= Filling::Full && !self.is_over() {
            self.close(CloseCode::TRY_LATER, "the server has reached its memory limit");
            self.fail(Error::Overloaded);
            // Discard the rest; there is no memory for it.
            self.close_receive();
            self.parts.set(unread);
        }
    }

    /// Ends the WebSocket because the connection is gone.
    pub(crate) fn lose(&mut self) {
        if !self.is_ended {
            self.fail(Error::Lost);
        }
        let _ = self.protocol.close_receive();
        self.weigh(0);
        self.is_running = true;
    }

    /// The server is draining: wakes all waiters.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        self.to_wake.extend(self.reader.take());
        self.wake_waiting();
    }

    pub(crate) fn ping(&mut self) {
        let _ = self.protocol.ping(KEEP_ALIVE, &mut self.out);
    }

    /// Starts the close handshake, unless it was started before.
    pub(crate) fn close(&mut self, code: CloseCode, reason: &str) {
        if self.protocol.close(Some((code, reason)), &mut self.out).is_ok() {
            self.wake_waiting();
        }
    }

    pub(crate) fn can_send(&self) -> bool {
        self.protocol.can_send()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.protocol.next() != ws::Next::Receive
    }

    /// Returns whether all handles were dropped.
    pub(crate) fn is_left(&self) -> bool {
        self.senders + self.receivers == 0
    }

    fn wake_waiting(&mut self) {
        self.to_wake.extend(self.waiting.take());
        self.to_wake.extend(self.closers.take());
    }
}
