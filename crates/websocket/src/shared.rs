//! What the handles of a WebSocket and its conversation share.

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

/// The payload of our own pings, whose answers are of no interest to the handler.
const KEEP_ALIVE: &[u8] = b"keep-alive";

/// One WebSocket, as its conversation and all handles see it.
#[derive(Clone)]
pub(crate) struct Shared(Rc<RefCell<State>>);

/// The protocol, and what waits on both sides of it.
///
/// Fields lie as they stand, and what each message looks at is first: thousands have their turn one after the other,
/// and each line of the cache has to be fetched.
#[repr(C)]
pub(crate) struct State {
    conversation: Waker,
    to_wake: Vec<Waker>,
    /// What was written.
    pub(crate) out: Vec<u8>,
    /// What more waits for the peer.
    backlog: Backlog,
    /// What came and was not taken yet.
    inbox: Inbox,
    /// What the peer makes this worker hold beside that: in parts, and unread.
    parts: Charge,
    /// Both together, when somebody looked last.
    weighed: usize,
    share: Share,
    reader: Option<Waker>,
    senders: usize,
    receivers: usize,
    /// The conversation is being polled, and looks at everything that changes.
    is_running: bool,
    /// Something has changed that the conversation must look at once more.
    is_changed: bool,
    /// Nothing more will come.
    is_ended: bool,
    /// The end of the server draws near.
    pub(crate) is_draining: bool,
    /// The receiver was told that this is the end, and gets nothing that comes later.
    is_told: bool,
    /// Who waits for room.
    waiting: Waiters,
    protocol: Connection<Codec>,
    bounds: Rc<Bounds>,
    /// Pings of the handler that were not answered.
    pings: u32,
    /// Who waits for the drain or the end.
    closers: Waiters,
    /// The last number of somebody who may wait.
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

    /// Works on the state. Wakers are called afterwards: they may run anything.
    ///
    /// The conversation's own, by which the handler waits, need not be called while the conversation is
    /// polled: it looks at everything that changes.
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

/// What received bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// A message for the handler.
    Message,
    /// Something else.
    Sign,
    /// Nothing more: more bytes are needed, or none.
    End,
}

/// What handles do.
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

    /// Ready when a message may be sent at once.
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
            // The conversation must ask to hear of room.
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

    /// Sends a message, whether there is room or not.
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

    /// Ready when the WebSocket is about to close, or is closed.
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

    /// Ready when nothing more comes.
    pub(crate) fn poll_ended(&mut self, number: u64, context: &Context<'_>) -> Poll<()> {
        if self.is_ended {
            return Poll::Ready(());
        }
        self.closers.add(number, context);
        Poll::Pending
    }

    /// The number of somebody who may wait.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Who has this number waits no more.
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

    /// Nobody takes what comes any more.
    pub(crate) fn drop_receiver(&mut self) {
        self.receivers -= 1;
        self.inbox.clear();
        self.change();
    }

    /// Lets the conversation look at everything again.
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

/// What the conversation does.
impl State {
    /// A poll begins. True if a share was used up elsewhere since the last one.
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

    /// Has something changed since the last call?
    pub(crate) fn take_change(&mut self) -> bool {
        take(&mut self.is_changed)
    }

    /// Looks how much the server has taken.
    pub(crate) fn look_at_unsent(&mut self) {
        if self.queued() == 0 {
            self.protocol.output_sent();
        }
        if self.has_room() {
            self.to_wake.extend(self.waiting.take());
        }
    }

    /// Do so many answers wait for the peer that nothing more is read?
    pub(crate) fn is_unread(&self) -> bool {
        !self.protocol.may_answer(&self.bounds.protocol)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn queued(&self) -> usize {
        self.out.len() + self.backlog.bytes()
    }

    /// Does so much wait for the handler that nothing more is read?
    pub(crate) fn is_full(&self) -> bool {
        self.inbox.bytes() >= self.bounds.own.unread_bytes_max.max(1)
    }

    /// Has so much come that others are to have their turn? Little may become much when it is inflated.
    pub(crate) fn has_done_enough(&self) -> bool {
        self.share.is_used_up()
    }

    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.protocol.tick(&self.bounds.protocol, now_ms);
    }

    /// Reads bytes: how many were used, and what they were.
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
            Event::Piece { .. } => unreachable!("messages are taken whole"),
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

    /// Nothing more comes, for a reason.
    pub(crate) fn fail(&mut self, error: Error) {
        self.give(Err(error));
        self.end();
    }

    fn end(&mut self) {
        self.is_ended = true;
        self.to_wake.extend(self.reader.take());
        self.wake_waiting();
    }

    /// Takes stock of what the peer makes this worker hold, beside `unread` bytes. If that has become more, and the
    /// worker holds as much as it may, the peer is told to come again later.
    pub(crate) fn weigh(&mut self, unread: usize) {
        self.parts.set(unread + self.protocol.memory_bytes());
        let now = self.parts.bytes() + self.inbox.bytes();
        let has_grown = now > std::mem::replace(&mut self.weighed, now);
        if has_grown && filling() >= Filling::Full && !self.is_over() {
            self.close(CloseCode::TRY_LATER, "the server holds as much as it may");
            self.fail(Error::Overloaded);
            // Nobody waits for the rest of what is too much already.
            self.close_receive();
            self.parts.set(unread);
        }
    }

    /// The connection is gone, with whatever was under way.
    pub(crate) fn lose(&mut self) {
        if !self.is_ended {
            self.fail(Error::Lost);
        }
        let _ = self.protocol.close_receive();
        self.weigh(0);
        self.is_running = true;
    }

    /// The server is about to end: whoever waits hears of it.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        self.to_wake.extend(self.reader.take());
        self.wake_waiting();
    }

    pub(crate) fn ping(&mut self) {
        let _ = self.protocol.ping(KEEP_ALIVE, &mut self.out);
    }

    /// Begins the close handshake, unless it has begun.
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

    /// Does nobody have a handle any more?
    pub(crate) fn is_left(&self) -> bool {
        self.senders + self.receivers == 0
    }

    fn wake_waiting(&mut self) {
        self.to_wake.extend(self.waiting.take());
        self.to_wake.extend(self.closers.take());
    }
}
