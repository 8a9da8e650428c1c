//! Runs beside the handler: turns frames into messages, responds to pings, and enforces the
//! timeouts.
//!
//! The server polls one future per WebSocket, [`run_websocket`]. It contains the handler's future,
//! which the [`Dispatcher`] polls. The peer is therefore served while the handler waits for
//! something else, without a separate task.

use crate::error::RecvError;
use crate::limits::WebSocketTimeouts;
use crate::shared::{ReceivedKind, SharedSocket};
use crate::socket::WebSocket;
use peregrine_proto::ws::CloseCode;
use peregrine_web::coop::yield_now;
use peregrine_web::panic;
use peregrine_web::timer::{self, Timer};
use peregrine_web::upgrade::Upgraded;
use std::any::Any;
use std::future::poll_fn;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// How often the handler and the peer are polled before the WebSocket yields to other tasks of the
/// worker.
const ITERATIONS_PER_POLL: usize = 32;

/// Runs `handler` with the WebSocket until both have finished.
pub(crate) async fn run_websocket<F>(
    io: Upgraded,
    shared: SharedSocket,
    socket: WebSocket,
    handler: F,
    timeouts: WebSocketTimeouts,
) where
    F: AsyncFnOnce(WebSocket),
{
    // The call itself can panic before it returns a future. The panic is then treated as the
    // handler's.
    let (future, panic) = match catch_unwind(AssertUnwindSafe(|| handler(socket))) {
        Ok(future) => (Some(future), None),
        Err(panic) => (None, Some(panic)),
    };
    // `dispatcher` is declared after `handler`, so it is dropped first: handles in other tasks are
    // closed before the handler's future is dropped.
    let mut handler = pin!(future);
    let mut dispatcher = Dispatcher::new(io, shared, timeouts);
    if let Some(panic) = panic {
        dispatcher.on_handler_panic(panic);
    }
    poll_fn(|cx| dispatcher.poll(&mut handler, cx)).await;
}

/// A handler's future, type-erased.
trait PollHandler {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    /// Drops the future, which must not be polled again.
    fn clear(&mut self);
    fn is_cleared(&self) -> bool;
}

impl<F: Future<Output = ()>> PollHandler for Pin<&mut Option<F>> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.as_mut().as_pin_mut().map_or(Poll::Ready(()), |handler| handler.poll(cx))
    }

    fn clear(&mut self) {
        self.set(None);
    }

    fn is_cleared(&self) -> bool {
        self.is_none()
    }
}

/// The connection to a WebSocket's peer, and the state of both directions.
struct Dispatcher {
    io: Upgraded,
    shared: SharedSocket,
    /// The payload of the handler's panic.
    panic: Option<Box<dyn Any + Send>>,
    /// Bytes received from the peer.
    unread: Vec<u8>,
    /// How many of the `unread` bytes were already parsed.
    consumed: usize,
    timeouts: WebSocketTimeouts,
    /// `None` if this thread has no clock.
    timer: Option<Box<dyn Timer>>,
    /// Whether the timer was set again and must be polled, since otherwise it does not wake the
    /// task.
    is_timer_armed: bool,
    phase: ClosePhase,
    /// Whether bytes were received since the last check for silence.
    has_received_since_check: bool,
}

/// The purpose of the timer. Phases only advance, except that `PingSent` can return to `Open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClosePhase {
    /// The peer can be silent for the keep-alive interval.
    Open,
    /// A ping was sent, and no bytes were received since.
    PingSent,
    /// The server is draining, and the handler can still send.
    Draining,
    /// Waiting for the peer's Close frame.
    CloseSent,
    /// The WebSocket is closed, and the handler can finish.
    HandlerFinishing,
    /// The handler has finished as well.
    Done,
}

impl Dispatcher {
    fn new(io: Upgraded, shared: SharedSocket, timeouts: WebSocketTimeouts) -> Self {
        let mut dispatcher = Self {
            io,
            shared,
            panic: None,
            unread: Vec::new(),
            consumed: 0,
            timeouts,
            timer: timer::new_timer(),
            is_timer_armed: false,
            phase: ClosePhase::Open,
            has_received_since_check: false,
        };
        if let Some(interval) = timeouts.ping_interval {
            dispatcher.arm_timer(interval);
        }
        dispatcher
    }

    fn arm_timer(&mut self, after: Duration) {
        if let Some(timer) = &mut self.timer {
            timer.reset(after);
            self.is_timer_armed = true;
        }
    }

    fn enter_phase(&mut self, phase: ClosePhase, after: Duration) {
        self.phase = phase;
        self.arm_timer(after);
    }

    /// Checks whether the server drains and whether the timer has expired.
    fn poll_timers(&mut self, handler: &mut dyn PollHandler, cx: &mut Context<'_>) {
        let Some(timer) = &mut self.timer else { return };
        self.is_timer_armed = false;
        let has_expired = timer.poll_elapsed(cx).is_ready();
        if timer.is_server_draining() && self.phase < ClosePhase::Draining {
            self.shared.with(|state| state.drain());
            return self.enter_phase(ClosePhase::Draining, self.timeouts.drain_timeout);
        }
        if has_expired {
            self.on_timeout(handler);
        }
    }

    fn on_timeout(&mut self, handler: &mut dyn PollHandler) {
        match self.phase {
            ClosePhase::Open => {
                let Some(interval) = self.timeouts.ping_interval else { return };
                if self.is_backpressured() || take(&mut self.has_received_since_check) {
                    return self.arm_timer(interval);
                }
                self.shared.with(|state| state.ping());
                self.enter_phase(ClosePhase::PingSent, self.timeouts.pong_timeout);
            }
            ClosePhase::PingSent if self.is_backpressured() => {
                self.arm_timer(self.timeouts.pong_timeout)
            }
            // RFC 6455 §5.5.2: an endpoint MUST answer a ping.
            ClosePhase::PingSent => self.shared.with(|state| {
                state.close(CloseCode::POLICY_VIOLATION, "there was no response to a ping in time");
                state.fail(RecvError::PongTimeout);
                // Do not wait for the Close frame of a peer that does not respond.
                state.close_receive();
            }),
            // RFC 6455 §7.4.1: 1001 means that the server is going down.
            ClosePhase::Draining => {
                self.shared.with(|state| state.close(CloseCode::GOING_AWAY, ""))
            }
            ClosePhase::CloseSent => self.shared.with(|state| state.close_receive()),
            ClosePhase::HandlerFinishing | ClosePhase::Done => {
                handler.clear();
                self.phase = ClosePhase::Done;
            }
        }
    }

    /// Returns whether the peer could be silent because of backpressure: its bytes are not read, or
    /// output such as the ping is still unsent. A peer that does not read is subject to the
    /// server's minimum transfer rate.
    fn is_backpressured(&self) -> bool {
        self.io.unsent_bytes() > 0 || self.shared.with(|state| state.is_receive_queue_full())
    }

    /// Parses received bytes until there is a message, no input is left, or the receive queue is
    /// full. Returns whether there could be more. The handler is polled after each message, because
    /// it cannot respond to messages once a Close frame was received.
    fn receive(&mut self, cx: &mut Context<'_>) -> bool {
        while !self.shared.with(|state| state.is_closed() || state.is_receive_queue_full()) {
            if self.shared.with(|state| state.is_pong_queue_full()) {
                self.flush_output(cx);
                if self.io.poll_flush(cx).is_pending() {
                    return false;
                }
                self.shared.with(|state| state.update_backlog());
            }
            let unread = &mut self.unread[self.consumed..];
            let (consumed, kind) = self.shared.with(|state| state.receive(unread));
            self.consumed += consumed;
            match kind {
                ReceivedKind::Message => return true,
                ReceivedKind::Control => continue,
                ReceivedKind::NeedInput => {}
            }
            if self.consumed == self.unread.len() {
                self.unread = Vec::new();
            } else {
                self.unread.drain(..self.consumed);
            }
            self.consumed = 0;
            if self.shared.with(|state| state.is_closed()) {
                return false;
            }
            match self.io.poll_recv(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(Some(bytes))) if self.unread.is_empty() => {
                    self.unread = bytes.into();
                    self.on_activity();
                }
                Poll::Ready(Ok(Some(bytes))) => {
                    self.unread.extend_from_slice(&bytes);
                    self.on_activity();
                }
                Poll::Ready(Ok(None) | Err(_)) => self.shared.with(|state| state.close_receive()),
            }
        }
        false
    }

    /// Records that the peer sent bytes.
    fn on_activity(&mut self) {
        self.has_received_since_check = true;
        if let Some(timer) = &self.timer {
            let now_ms = u64::try_from(timer.now().as_millis()).unwrap_or(u64::MAX);
            self.shared.with(|state| state.refill_abuse_budget(now_ms));
        }
        if let (ClosePhase::PingSent, Some(interval)) = (self.phase, self.timeouts.ping_interval) {
            self.enter_phase(ClosePhase::Open, interval);
        }
    }

    fn run_handler(&mut self, handler: &mut dyn PollHandler, cx: &mut Context<'_>) {
        if handler.is_cleared() {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| handler.poll(cx))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(())) => {}
            Err(panic) => self.on_handler_panic(panic),
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler.clear())) {
            self.panic.get_or_insert(panic);
        }
    }

    /// Closes with 1011 immediately. The panic resumes when this future ends.
    fn on_handler_panic(&mut self, panic: Box<dyn Any + Send>) {
        self.shared.with(|state| state.close(CloseCode::INTERNAL_ERROR, ""));
        self.panic = Some(panic);
    }

    /// Closes the WebSocket if no handles are left, and advances the phase.
    fn advance(&mut self, handler: &dyn PollHandler) {
        let (can_send, is_closed) = self.shared.with(|state| {
            if state.is_abandoned() && state.can_send() {
                let is_draining = state.is_draining;
                let code =
                    if is_draining { CloseCode::GOING_AWAY } else { CloseCode::NORMAL_CLOSURE };
                state.close(code, "");
            }
            (state.can_send(), state.is_closed())
        });
        if is_closed && self.phase < ClosePhase::HandlerFinishing {
            self.enter_phase(ClosePhase::HandlerFinishing, self.timeouts.close_timeout);
        } else if !can_send && self.phase < ClosePhase::CloseSent {
            self.enter_phase(ClosePhase::CloseSent, self.timeouts.close_timeout);
        }
        if self.phase == ClosePhase::HandlerFinishing && handler.is_cleared() {
            self.phase = ClosePhase::Done;
        }
    }

    /// Moves the protocol's output to the server.
    fn flush_output(&mut self, cx: &mut Context<'_>) {
        let io = &mut self.io;
        let has_waiters = self.shared.with(|state| {
            if !state.output.is_empty() {
                io.append(&mut state.output);
            }
            state.has_send_waiters()
        });
        // An I/O error is reported by `poll_recv`, or when the server drops this future.
        if has_waiters && io.poll_flush(cx).is_ready() {
            self.shared.with(|state| state.update_backlog());
        }
    }

    fn poll(&mut self, handler: &mut dyn PollHandler, cx: &mut Context<'_>) -> Poll<()> {
        let was_exhausted = self.shared.with(|state| state.begin_poll(cx));
        for _ in 0..ITERATIONS_PER_POLL {
            self.shared.with(|state| state.update_backlog());
            // Read before checking the clock: bytes that were already received arrived in time.
            let may_have_more = self.receive(cx);
            self.poll_timers(handler, cx);
            self.shared.with(|state| state.take_changed());
            self.run_handler(handler, cx);
            let unread_bytes = self.unread.capacity();
            self.shared.with(|state| state.update_reservation(unread_bytes));
            self.advance(handler);
            self.flush_output(cx);
            if self.phase == ClosePhase::Done {
                if let Some(panic) = self.panic.take() {
                    resume_unwind(panic);
                }
                return Poll::Ready(());
            }
            // Stop here even if no work is left, so that senders continue only after the server has
            // taken their output.
            if was_exhausted || self.shared.with(|state| state.is_budget_exhausted()) {
                break;
            }
            let has_changed = self.shared.with(|state| state.take_changed());
            if !has_changed && !may_have_more && !self.is_timer_armed {
                self.shared.with(|state| state.end_poll());
                return Poll::Pending;
            }
        }
        self.shared.with(|state| state.end_poll());
        yield_now(cx);
        Poll::Pending
    }
}

/// Closes the handles in other tasks.
impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.shared.with(|state| state.on_connection_lost());
        if let Some(panic) = self.panic.take() {
            // The connection broke before `poll` could resume the panic.
            panic::log_panic("the handler of a WebSocket", panic);
        }
    }
}
