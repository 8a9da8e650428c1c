//! Runs beside the handler: turns frames into messages, answers pings, and enforces the timeouts.
//!
//! The server polls one future per WebSocket, [`converse`]. It contains the handler's future, which
//! the [`Conversation`] polls. The peer is therefore served whatever the handler waits for, without
//! a separate task.

use crate::error::Error;
use crate::handle::WebSocket;
use crate::settings::Times;
use crate::shared::{Found, Shared};
use peregrine_proto::ws::CloseCode;
use peregrine_web::clock::{self, Alarm};
use peregrine_web::panics;
use peregrine_web::turn::others_first;
use peregrine_web::upgrade::Upgraded;
use std::any::Any;
use std::future::poll_fn;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// How often handler and peer alternate before the WebSocket yields to other tasks of the worker.
const ROUNDS_MAX: usize = 32;

/// Runs `handler` with the WebSocket until both have finished.
pub(crate) async fn converse<F>(
    io: Upgraded,
    shared: Shared,
    socket: WebSocket,
    handler: F,
    times: Times,
) where
    F: AsyncFnOnce(WebSocket),
{
    // The call itself may panic, before it returns a future. The panic is then treated as the
    // handler's.
    let (begun, panic) = match catch_unwind(AssertUnwindSafe(|| handler(socket))) {
        Ok(begun) => (Some(begun), None),
        Err(panic) => (None, Some(panic)),
    };
    // `conversation` is declared after `handler`, so it is dropped first: handles in other tasks
    // see the end before the handler's future is dropped.
    let mut handler = pin!(begun);
    let mut conversation = Conversation::new(io, shared, times);
    if let Some(panic) = panic {
        conversation.panicked(panic);
    }
    poll_fn(|context| conversation.poll(&mut handler, context)).await;
}

/// A handler's future, type-erased.
trait Handler {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()>;
    /// Drops the future, which must not be polled again.
    fn clear(&mut self);
    fn is_cleared(&self) -> bool;
}

impl<F: Future<Output = ()>> Handler for Pin<&mut Option<F>> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.as_mut().as_pin_mut().map_or(Poll::Ready(()), |handler| handler.poll(context))
    }

    fn clear(&mut self) {
        self.set(None);
    }

    fn is_cleared(&self) -> bool {
        self.is_none()
    }
}

/// The connection to a WebSocket's peer, and the state of both directions.
struct Conversation {
    io: Upgraded,
    shared: Shared,
    /// The payload of the handler's panic.
    panic: Option<Box<dyn Any + Send>>,
    /// Bytes received from the peer; `read` is how many of them were already parsed.
    unread: Vec<u8>,
    read: usize,
    times: Times,
    /// `None` if this thread has no clock.
    alarm: Option<Box<dyn Alarm>>,
    /// The alarm was set again and must be polled, or it will not wake the task.
    is_set: bool,
    phase: Phase,
    /// Bytes were received since the last check for silence.
    is_heard: bool,
}

/// The purpose of the alarm. Phases only advance, except that `Asked` may return to `Open`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The peer may be silent for the keep-alive interval.
    Open,
    /// A ping was sent, and no bytes were received since.
    Asked,
    /// The server is draining, and the handler may still send.
    Goodbye,
    /// Waiting for the peer's Close frame.
    Closing,
    /// The WebSocket is closed; the handler may finish.
    Over,
    /// The handler has finished as well.
    Ended,
}

impl Conversation {
    fn new(io: Upgraded, shared: Shared, times: Times) -> Self {
        let mut conversation = Self {
            io,
            shared,
            panic: None,
            unread: Vec::new(),
            read: 0,
            times,
            alarm: clock::alarm(),
            is_set: false,
            phase: Phase::Open,
            is_heard: false,
        };
        if let Some(interval) = times.keep_alive {
            conversation.set_alarm(interval);
        }
        conversation
    }

    fn set_alarm(&mut self, after: Duration) {
        if let Some(alarm) = &mut self.alarm {
            alarm.set(after);
            self.is_set = true;
        }
    }

    fn enter(&mut self, phase: Phase, after: Duration) {
        self.phase = phase;
        self.set_alarm(after);
    }

    /// Checks whether the server drains and whether the alarm has expired.
    fn look_at_clock(&mut self, handler: &mut dyn Handler, context: &mut Context<'_>) {
        let Some(alarm) = &mut self.alarm else { return };
        self.is_set = false;
        let is_rung = alarm.poll(context).is_ready();
        if alarm.is_draining() && self.phase < Phase::Goodbye {
            self.shared.with(|state| state.drain());
            return self.enter(Phase::Goodbye, self.times.goodbye);
        }
        if is_rung {
            self.ring(handler);
        }
    }

    fn ring(&mut self, handler: &mut dyn Handler) {
        match self.phase {
            Phase::Open => {
                let Some(interval) = self.times.keep_alive else { return };
                if self.is_excused() || take(&mut self.is_heard) {
                    return self.set_alarm(interval);
                }
                self.shared.with(|state| state.ping());
                self.enter(Phase::Asked, self.times.idle);
            }
            Phase::Asked if self.is_excused() => self.set_alarm(self.times.idle),
            // RFC 6455 §5.5.2: an endpoint MUST answer a ping.
            Phase::Asked => self.shared.with(|state| {
                state.close(CloseCode::POLICY, "no ping was answered in time");
                state.fail(Error::Silent);
                // Do not wait for the Close frame of a peer that answers nothing.
                state.close_receive();
            }),
            // RFC 6455 §7.4.1: 1001 means that the server is going down.
            Phase::Goodbye => self.shared.with(|state| state.close(CloseCode::GOING_AWAY, "")),
            Phase::Closing => self.shared.with(|state| state.close_receive()),
            Phase::Over | Phase::Ended => {
                handler.clear();
                self.phase = Phase::Ended;
            }
        }
    }

    /// Returns whether the silence is not the peer's fault: we do not read what it sends, or the
    /// ping is not sent yet. A peer that does not read is subject to the server's minimum transfer
    /// rate.
    fn is_excused(&self) -> bool {
        self.io.unsent() > 0 || self.shared.with(|state| state.is_full())
    }

    /// Parses received bytes until there is a message, no input is left, or the inbox is full.
    /// Returns whether there may be more. The handler is polled after each message, because it
    /// cannot answer any after a Close frame.
    fn receive(&mut self, context: &mut Context<'_>) -> bool {
        while !self.shared.with(|state| state.is_over() || state.is_full()) {
            if self.shared.with(|state| state.is_unread()) {
                self.send(context);
                if self.io.poll_taken(context).is_pending() {
                    return false;
                }
                self.shared.with(|state| state.look_at_unsent());
            }
            let unread = &mut self.unread[self.read..];
            let (used, found) = self.shared.with(|state| state.receive(unread));
            self.read += used;
            match found {
                Found::Message => return true,
                Found::Sign => continue,
                Found::End => {}
            }
            if self.read == self.unread.len() {
                self.unread = Vec::new();
            } else {
                self.unread.drain(..self.read);
            }
            self.read = 0;
            if self.shared.with(|state| state.is_over()) {
                return false;
            }
            match self.io.poll_recv(context) {
                Poll::Pending => return false,
                Poll::Ready(Ok(Some(bytes))) if self.unread.is_empty() => {
                    self.unread = bytes.into();
                    self.hear();
                }
                Poll::Ready(Ok(Some(bytes))) => {
                    self.unread.extend_from_slice(&bytes);
                    self.hear();
                }
                Poll::Ready(Ok(None) | Err(_)) => self.shared.with(|state| state.close_receive()),
            }
        }
        false
    }

    /// Records that the peer sent bytes.
    fn hear(&mut self) {
        self.is_heard = true;
        if let Some(alarm) = &self.alarm {
            let now_ms = u64::try_from(alarm.now().as_millis()).unwrap_or(u64::MAX);
            self.shared.with(|state| state.tick(now_ms));
        }
        if let (Phase::Asked, Some(interval)) = (self.phase, self.times.keep_alive) {
            self.enter(Phase::Open, interval);
        }
    }

    fn run_handler(&mut self, handler: &mut dyn Handler, context: &mut Context<'_>) {
        if handler.is_cleared() {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| handler.poll(context))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(())) => {}
            Err(panic) => self.panicked(panic),
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| handler.clear())) {
            self.panic.get_or_insert(panic);
        }
    }

    /// Closes with 1011 at once; the panic resumes when this future ends.
    fn panicked(&mut self, panic: Box<dyn Any + Send>) {
        self.shared.with(|state| state.close(CloseCode::INTERNAL_ERROR, ""));
        self.panic = Some(panic);
    }

    /// Closes the WebSocket if no handles are left, and advances the phase.
    fn go_on(&mut self, handler: &dyn Handler) {
        let (can_send, is_over) = self.shared.with(|state| {
            if state.is_left() && state.can_send() {
                let is_draining = state.is_draining;
                let code = if is_draining { CloseCode::GOING_AWAY } else { CloseCode::NORMAL };
                state.close(code, "");
            }
            (state.can_send(), state.is_over())
        });
        if is_over && self.phase < Phase::Over {
            self.enter(Phase::Over, self.times.close);
        } else if !can_send && self.phase < Phase::Closing {
            self.enter(Phase::Closing, self.times.close);
        }
        if self.phase == Phase::Over && handler.is_cleared() {
            self.phase = Phase::Ended;
        }
    }

    /// Moves the protocol's output to the server.
    fn send(&mut self, context: &mut Context<'_>) {
        let io = &mut self.io;
        let is_watched = self.shared.with(|state| {
            if !state.out.is_empty() {
                io.append(&mut state.out);
            }
            state.has_waiting()
        });
        // An I/O error is reported by `poll_recv`, or when the server drops this future.
        if is_watched && io.poll_taken(context).is_ready() {
            self.shared.with(|state| state.look_at_unsent());
        }
    }

    fn poll(&mut self, handler: &mut dyn Handler, context: &mut Context<'_>) -> Poll<()> {
        let was_used_up = self.shared.with(|state| state.begin(context));
        for _ in 0..ROUNDS_MAX {
            self.shared.with(|state| state.look_at_unsent());
            // Read before checking the clock: bytes that are already here arrived in time.
            let may_have_more = self.receive(context);
            self.look_at_clock(handler, context);
            self.shared.with(|state| state.take_change());
            self.run_handler(handler, context);
            let unread = self.unread.capacity();
            self.shared.with(|state| state.weigh(unread));
            self.go_on(handler);
            self.send(context);
            if self.phase == Phase::Ended {
                if let Some(panic) = self.panic.take() {
                    resume_unwind(panic);
                }
                return Poll::Ready(());
            }
            // Stop here even if no work is left, so that senders continue only after the server has
            // taken their output.
            if was_used_up || self.shared.with(|state| state.has_done_enough()) {
                break;
            }
            let is_changed = self.shared.with(|state| state.take_change());
            if !is_changed && !may_have_more && !self.is_set {
                self.shared.with(|state| state.pause());
                return Poll::Pending;
            }
        }
        self.shared.with(|state| state.pause());
        others_first(context);
        Poll::Pending
    }
}

/// Handles in other tasks see the end.
impl Drop for Conversation {
    fn drop(&mut self) {
        self.shared.with(|state| state.lose());
        // The connection broke before `poll` could resume the panic.
        if let Some(panic) = self.panic.take() {
            panics::note("the handler of a WebSocket", panic);
        }
    }
}
