//! The state shared by a WebSocket's handles and its dispatcher.

mod send;

use crate::Codec;
use crate::error::RecvError;
use crate::limits::{CachedLimits, WebSocketLimits};
use crate::message::{CloseFrame, Message};
use crate::receive_queue::ReceiveQueue;
use crate::waker_list::{WakerList, store_waker};
use crate::work_budget::WorkBudget;
use bytes::Bytes;
use peregrine_proto::ws::{self, Close, CloseCode, Connection, Event, Role};
use peregrine_web::memory::{MemoryPressure, MemoryReservation, pressure};
use peregrine_web::upgrade::UnsentBytes;
use std::cell::RefCell;
use std::mem::take;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The payload of the server's own pings. Their pongs are not passed to the handler.
const KEEP_ALIVE_PAYLOAD: &[u8] = b"keep-alive";

/// One WebSocket, shared by its dispatcher and all handles.
#[derive(Clone)]
pub(crate) struct SharedSocket(Rc<RefCell<SocketState>>);

/// The protocol and the queues on both sides of it.
///
/// `repr(C)` keeps the field order: the fields used for every message come first. With thousands of
/// WebSockets, the state of each is out of the CPU cache when it is polled, and each of its cache
/// lines must be fetched.
#[repr(C)]
pub(crate) struct SocketState {
    dispatcher_waker: Waker,
    to_wake: Vec<Waker>,
    /// Encoded output that was not passed to the server yet.
    pub(crate) output: Vec<u8>,
    /// Output that the server has not sent yet.
    backlog: UnsentBytes,
    /// Received messages that the handler has not taken yet.
    receive_queue: ReceiveQueue,
    /// The rest of the memory that the peer makes this worker hold: message fragments and unread
    /// bytes.
    reassembly: MemoryReservation,
    /// The memory of `receive_queue` and `reassembly` at the last check.
    reserved_bytes: usize,
    budget: WorkBudget,
    recv_waker: Option<Waker>,
    senders: usize,
    receivers: usize,
    /// Whether the dispatcher is being polled, and will thus notice all changes.
    is_dispatcher_polled: bool,
    /// Whether the dispatcher must check the state once more.
    has_changed: bool,
    /// Whether no more messages will be received.
    has_receive_finished: bool,
    /// Whether the server is draining.
    pub(crate) is_draining: bool,
    /// Whether the receiver has returned `None`. Later messages are then discarded.
    has_delivered_end: bool,
    /// Senders that wait for room.
    send_waiters: WakerList,
    protocol: Connection<Codec>,
    limits: Rc<CachedLimits>,
    /// The number of pings sent by the handler whose pong was not received yet.
    pings: u32,
    /// Tasks that wait for the server to drain or the WebSocket to close.
    close_waiters: WakerList,
    /// The last allocated waiter ID.
    last_waiter_id: u64,
}

impl SharedSocket {
    pub(crate) fn new(
        limits: WebSocketLimits,
        compression: Option<Codec>,
        backlog: UnsentBytes,
    ) -> Self {
        let cached_limits = CachedLimits::for_limits(limits);
        let compress_bytes_min =
            compression.as_ref().map_or(usize::MAX, |_| limits.compress_bytes_min);
        let budget = WorkBudget::new(compress_bytes_min);
        Self(Rc::new(RefCell::new(SocketState {
            protocol: Connection::new(&cached_limits.protocol, Role::Server, compression),
            limits: cached_limits,
            receive_queue: ReceiveQueue::default(),
            reassembly: MemoryReservation::empty(),
            reserved_bytes: 0,
            budget,
            has_receive_finished: false,
            is_draining: false,
            has_delivered_end: false,
            output: Vec::new(),
            backlog,
            pings: 0,
            senders: 0,
            receivers: 0,
            recv_waker: None,
            send_waiters: WakerList::default(),
            close_waiters: WakerList::default(),
            last_waiter_id: 0,
            dispatcher_waker: Waker::noop().clone(),
            is_dispatcher_polled: false,
            has_changed: false,
            to_wake: Vec::new(),
        })))
    }

    /// Runs `work` on the state. Wakers are called afterwards, because they can run arbitrary code.
    ///
    /// The waker of the dispatcher, which also wakes the handler, is skipped while the dispatcher
    /// is polled: it will notice all changes anyway.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut SocketState) -> T) -> T {
        let mut state = self.0.borrow_mut();
        let result = work(&mut state);
        if !state.to_wake.is_empty() {
            let mut wakers = take(&mut state.to_wake);
            if state.is_dispatcher_polled {
                let count = wakers.len();
                wakers.retain(|waker| !waker.will_wake(&state.dispatcher_waker));
                state.has_changed |= wakers.len() < count;
            }
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
        result
    }
}

/// The content of received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReceivedKind {
    /// A message for the handler.
    Message,
    /// A control frame or part of a message.
    Control,
    /// No complete frame: more bytes are needed, or the WebSocket is closed.
    NeedInput,
}

/// Called by the handles.
impl SocketState {
    pub(crate) fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Message, RecvError>>> {
        let was_full = self.is_receive_queue_full();
        if let Some(next) = self.receive_queue.pop() {
            if was_full && !self.is_receive_queue_full() {
                self.mark_changed();
            }
            return Poll::Ready(Some(next));
        }
        if self.has_receive_finished || self.is_draining {
            self.has_delivered_end = true;
            return Poll::Ready(None);
        }
        store_waker(&mut self.recv_waker, cx);
        Poll::Pending
    }

    /// Is ready when the WebSocket closes or is about to.
    pub(crate) fn poll_close_started(&mut self, waiter_id: u64, cx: &Context<'_>) -> Poll<()> {
        if self.is_closing() {
            return Poll::Ready(());
        }
        self.close_waiters.register(waiter_id, cx);
        Poll::Pending
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_draining || self.has_receive_finished || !self.can_send()
    }

    /// Is ready when no more messages will be received.
    pub(crate) fn poll_closed(&mut self, waiter_id: u64, cx: &Context<'_>) -> Poll<()> {
        if self.has_receive_finished {
            return Poll::Ready(());
        }
        self.close_waiters.register(waiter_id, cx);
        Poll::Pending
    }

    /// Allocates an ID for a waiter.
    pub(crate) fn next_waiter_id(&mut self) -> u64 {
        self.last_waiter_id += 1;
        self.last_waiter_id
    }

    /// Removes the waiter with this ID.
    pub(crate) fn remove_waiter(&mut self, waiter_id: u64) {
        self.send_waiters.remove(waiter_id);
        self.close_waiters.remove(waiter_id);
    }

    pub(crate) fn add_sender(&mut self) {
        self.senders += 1;
    }

    pub(crate) fn drop_sender(&mut self) {
        self.senders -= 1;
        if self.is_abandoned() {
            self.mark_changed();
        }
    }

    pub(crate) fn add_receiver(&mut self) {
        self.receivers += 1;
    }

    /// Called when the receiver is dropped. Discards all further messages.
    pub(crate) fn drop_receiver(&mut self) {
        self.receivers -= 1;
        self.receive_queue.clear();
        self.mark_changed();
    }

    /// Makes the dispatcher check everything again.
    fn mark_changed(&mut self) {
        self.has_changed = true;
        self.wake_dispatcher();
    }

    fn wake_dispatcher(&mut self) {
        if !self.is_dispatcher_polled {
            self.to_wake.push(self.dispatcher_waker.clone());
        }
    }
}

/// Called by the dispatcher.
impl SocketState {
    /// Starts a poll, and with it a new turn. Returns true if the previous turn used up its budget.
    pub(crate) fn begin_poll(&mut self, cx: &Context<'_>) -> bool {
        if !self.dispatcher_waker.will_wake(cx.waker()) {
            self.dispatcher_waker.clone_from(cx.waker());
        }
        self.is_dispatcher_polled = true;
        self.budget.reset()
    }

    pub(crate) fn end_poll(&mut self) {
        self.is_dispatcher_polled = false;
    }

    /// Returns whether something has changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        take(&mut self.has_changed)
    }

    /// Checks how much the server has sent.
    pub(crate) fn update_backlog(&mut self) {
        if self.send_queue_bytes() == 0 {
            self.protocol.output_flushed();
        }
        if self.is_ready() {
            self.to_wake.extend(self.send_waiters.drain());
        }
    }

    /// Returns whether so many pongs are queued that the peer must not be read from.
    pub(crate) fn is_pong_queue_full(&self) -> bool {
        !self.protocol.can_queue_pong(&self.limits.protocol)
    }

    pub(crate) fn has_send_waiters(&self) -> bool {
        !self.send_waiters.is_empty()
    }

    fn send_queue_bytes(&self) -> usize {
        self.output.len() + self.backlog.get()
    }

    /// Returns whether the receive queue is full, so that the peer must not be read from.
    pub(crate) fn is_receive_queue_full(&self) -> bool {
        self.receive_queue.memory_bytes() >= self.limits.limits.receive_queue_bytes_max.max(1)
    }

    /// Returns whether the WebSocket must yield. A few received bytes can decompress to many.
    pub(crate) fn is_budget_exhausted(&self) -> bool {
        self.budget.is_exhausted()
    }

    pub(crate) fn refill_abuse_budget(&mut self, now_ms: u64) {
        self.protocol.refill_budget(&self.limits.protocol, now_ms);
    }

    /// Parses bytes. Returns how many were consumed and what they contained.
    pub(crate) fn receive(&mut self, unread: &mut [u8]) -> (usize, ReceivedKind) {
        let Self { protocol, limits, output, .. } = self;
        let (used, event) = protocol.receive(&limits.protocol, unread, output);
        let message = match event {
            Event::NeedInput | Event::Closed => return (used, ReceivedKind::NeedInput),
            Event::Text(text) => Message::Text(text.into()),
            Event::Binary(bytes) => Message::Binary(match bytes {
                std::borrow::Cow::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
                std::borrow::Cow::Owned(bytes) => bytes.into(),
            }),
            Event::Chunk { .. } => unreachable!("the protocol returns complete messages"),
            Event::Ping(_) => return (used, ReceivedKind::Control),
            Event::Pong(payload) => {
                let answers_handler = payload != KEEP_ALIVE_PAYLOAD && self.pings > 0;
                if !answers_handler {
                    return (used, ReceivedKind::Control);
                }
                let payload = Bytes::copy_from_slice(payload);
                self.pings -= 1;
                Message::Pong(payload)
            }
            Event::Close(Close { code, reason }) => {
                let reason = reason.to_owned().into();
                let close =
                    (code != CloseCode::NO_STATUS_RECEIVED).then_some(CloseFrame { code, reason });
                self.deliver(Ok(Message::Close(close)));
                self.finish_receiving();
                return (used, ReceivedKind::NeedInput);
            }
            Event::Error(error) => {
                self.fail(RecvError::Protocol(error));
                return (used, ReceivedKind::NeedInput);
            }
        };
        self.deliver(Ok(message));
        (used, ReceivedKind::Message)
    }

    fn deliver(&mut self, message: Result<Message, RecvError>) {
        if self.receivers == 0 || self.has_receive_finished || self.has_delivered_end {
            return;
        }
        self.budget.charge_received(self.receive_queue.push(message));
        self.to_wake.extend(self.recv_waker.take());
    }

    /// Called at the end of the peer's bytes.
    pub(crate) fn close_receive(&mut self) {
        if !self.is_closed() {
            let _ = self.protocol.receive_eof();
            self.fail(RecvError::ConnectionLost);
        }
    }

    /// Ends receiving with an error.
    pub(crate) fn fail(&mut self, error: RecvError) {
        self.deliver(Err(error));
        self.finish_receiving();
    }

    fn finish_receiving(&mut self) {
        self.has_receive_finished = true;
        self.to_wake.extend(self.recv_waker.take());
        self.wake_all_waiters();
    }

    /// Updates the accounted memory. `unread_bytes` is the memory of received bytes outside of this
    /// state. If the accounted memory has grown and the worker has reached its memory limit, the
    /// WebSocket is closed with "try again later".
    pub(crate) fn update_reservation(&mut self, unread_bytes: usize) {
        self.reassembly.resize(unread_bytes + self.protocol.memory_bytes());
        let now = self.reassembly.size() + self.receive_queue.memory_bytes();
        let has_grown = now > std::mem::replace(&mut self.reserved_bytes, now);
        if has_grown && pressure() >= MemoryPressure::Critical && !self.is_closed() {
            self.close(CloseCode::TRY_AGAIN_LATER, "the server has reached its memory limit");
            self.fail(RecvError::Overloaded);
            // Discard further input; there is no memory for it.
            self.close_receive();
            self.reassembly.resize(unread_bytes);
        }
    }

    /// Ends the WebSocket because the connection was lost.
    pub(crate) fn on_connection_lost(&mut self) {
        if !self.has_receive_finished {
            self.fail(RecvError::ConnectionLost);
        }
        let _ = self.protocol.receive_eof();
        self.update_reservation(0);
        // The dispatcher is being dropped: it must not be woken any more.
        self.is_dispatcher_polled = true;
    }

    /// Called when the server starts draining. Wakes all waiters.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        self.to_wake.extend(self.recv_waker.take());
        self.wake_all_waiters();
    }

    pub(crate) fn ping(&mut self) {
        let _ = self.protocol.ping(KEEP_ALIVE_PAYLOAD, &mut self.output);
    }

    /// Starts the close handshake, unless it was started before.
    pub(crate) fn close(&mut self, code: CloseCode, reason: &str) {
        if self.protocol.close(Some((code, reason)), &mut self.output).is_ok() {
            self.wake_all_waiters();
        }
    }

    pub(crate) fn can_send(&self) -> bool {
        self.protocol.can_send()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.protocol.next_action() != ws::NextAction::Receive
    }

    /// Returns whether all handles were dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.senders + self.receivers == 0
    }

    fn wake_all_waiters(&mut self) {
        self.to_wake.extend(self.send_waiters.drain());
        self.to_wake.extend(self.close_waiters.drain());
    }
}
