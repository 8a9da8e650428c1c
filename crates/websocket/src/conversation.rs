//! What goes on beside the handler: frames become messages, pings are answered, times are kept.
//!
//! The server polls one future for each WebSocket, that of [`converse`]. The handler's future is inside of it, and is
//! polled by the [`Conversation`]. So the peer is served whatever the handler waits for, and needs no task.

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

/// How often handler and peer take turns before others of the worker have theirs.
const ROUNDS_MAX: usize = 32;

/// Runs `handler` with the WebSocket, to the end of both.
pub(crate) async fn converse<F>(
    io: Upgraded,
    shared: Shared,
    socket: WebSocket,
    handler: F,
    times: Times,
) where
    F: AsyncFnOnce(WebSocket),
{
    // A handler may panic before there is a future of it, and has had its turn then.
    let (begun, panic) = match catch_unwind(AssertUnwindSafe(|| handler(socket))) {
        Ok(begun) => (Some(begun), None),
        Err(panic) => (None, Some(panic)),
    };
    // Dropped before its end, it drops the last first: who has a handle hears of the end before the handler goes.
    let mut handler = pin!(begun);
    let mut conversation = Conversation::new(io, shared, times);
    if let Some(panic) = panic {
        conversation.panicked(panic);
    }
    poll_fn(|context| conversation.poll(&mut handler, context)).await;
}

/// The future of a handler, of whatever type.
trait Handler {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()>;
    /// Drops the future. Not to be polled again.
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

/// A WebSocket's peer, and how far the two are.
struct Conversation {
    io: Upgraded,
    shared: Shared,
    /// What the handler panicked with.
    panic: Option<Box<dyn Any + Send>>,
    /// What came of the peer's bytes, and how much of that was read.
    unread: Vec<u8>,
    read: usize,
    times: Times,
    /// `None`: there is no clock on this thread.
    alarm: Option<Box<dyn Alarm>>,
    /// The alarm was set, and must be polled to ring.
    is_set: bool,
    phase: Phase,
    /// Bytes came since the last look.
    is_heard: bool,
}

/// What the alarm is set for. A later phase never goes back to an earlier one, but for the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// The peer may be silent.
    Open,
    /// The peer was asked for a sign of life.
    Asked,
    /// The server drains, and the handler may still send.
    Goodbye,
    /// The peer's Close frame is to come.
    Closing,
    /// The WebSocket is closed, and the handler comes to its end.
    Over,
    /// Nobody waits for anything.
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

    /// Looks whether the server drains, and whether a time is over.
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
                // Nobody waits for the answer of a peer that gives none.
                state.close_receive();
            }),
            // RFC 6455 §7.4.1: 1001 says that a server goes down.
            Phase::Goodbye => self.shared.with(|state| state.close(CloseCode::GOING_AWAY, "")),
            Phase::Closing => self.shared.with(|state| state.close_receive()),
            Phase::Over | Phase::Ended => {
                handler.clear();
                self.phase = Phase::Ended;
            }
        }
    }

    /// Is it not the peer's fault that nothing is heard? Nobody reads what it sends, or what it should
    /// answer is not sent yet; the server's least rate watches who does not read.
    fn is_excused(&self) -> bool {
        self.io.unsent() > 0 || self.shared.with(|state| state.is_full())
    }

    /// Turns what came into messages, until there is one, nothing more, or the handler has enough. True
    /// if there may be more: the handler has its turn after each message, since it can answer none after a
    /// Close frame.
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

    /// Notes a sign of life.
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

    /// The peer hears of it at once, and the server at the end.
    fn panicked(&mut self, panic: Box<dyn Any + Send>) {
        self.shared.with(|state| state.close(CloseCode::INTERNAL_ERROR, ""));
        self.panic = Some(panic);
    }

    /// Closes what nobody uses any more, and goes on to the phase in which the WebSocket is.
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

    /// Hands what was written to the server.
    fn send(&mut self, context: &mut Context<'_>) {
        let io = &mut self.io;
        let is_watched = self.shared.with(|state| {
            if !state.out.is_empty() {
                io.append(&mut state.out);
            }
            state.has_waiting()
        });
        // An error shows when bytes are received, or as the end of this future.
        if is_watched && io.poll_taken(context).is_ready() {
            self.shared.with(|state| state.look_at_unsent());
        }
    }

    fn poll(&mut self, handler: &mut dyn Handler, context: &mut Context<'_>) -> Poll<()> {
        let was_used_up = self.shared.with(|state| state.begin(context));
        for _ in 0..ROUNDS_MAX {
            self.shared.with(|state| state.look_at_unsent());
            // What is here was said in time.
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
            // Also where nothing is left to do: who sends may go on as soon as the server takes what it has sent.
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

/// Who has a handle in a task of its own hears of the end.
impl Drop for Conversation {
    fn drop(&mut self) {
        self.shared.with(|state| state.lose());
        // The connection broke before the end, at which the server would have heard of it.
        if let Some(panic) = self.panic.take() {
            panics::note("the handler of a WebSocket", panic);
        }
    }
}
