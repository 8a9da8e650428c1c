//! What goes on beside the handler: frames become messages, pings are answered, times are kept.
//!
//! The server polls one future for each WebSocket, and that is the [`Conversation`]. The handler's future
//! is polled inside of it. So the peer is served whatever the handler waits for, and needs no task.

use crate::error::Error;
use crate::settings::Times;
use crate::shared::{Found, Shared};
use peregrine_proto::ws::CloseCode;
use peregrine_web::clock::{self, Alarm};
use peregrine_web::upgrade::Upgraded;
use std::any::Any;
use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How often handler and peer take turns before others of the worker have theirs.
const ROUNDS_MAX: usize = 32;

/// The handler and its peer.
pub(crate) struct Conversation {
    io: Upgraded,
    shared: Shared,
    handler: Option<Pin<Box<dyn Future<Output = ()>>>>,
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
    pub(crate) fn new(
        io: Upgraded,
        shared: Shared,
        handler: Pin<Box<dyn Future<Output = ()>>>,
        times: Times,
    ) -> Self {
        let mut conversation = Self {
            io,
            shared,
            handler: Some(handler),
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
    fn look_at_clock(&mut self, context: &mut Context<'_>) {
        let Some(alarm) = &mut self.alarm else { return };
        self.is_set = false;
        let is_rung = alarm.poll(context).is_ready();
        if alarm.is_draining() && self.phase < Phase::Goodbye {
            self.shared.with(|state| state.drain());
            return self.enter(Phase::Goodbye, self.times.goodbye);
        }
        if is_rung {
            self.ring();
        }
    }

    fn ring(&mut self) {
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
                self.handler = None;
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

    fn run_handler(&mut self, context: &mut Context<'_>) {
        let Some(handler) = &mut self.handler else { return };
        match catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(())) => {}
            Err(panic) => {
                self.shared.with(|state| state.close(CloseCode::INTERNAL_ERROR, ""));
                self.panic = Some(panic);
            }
        }
        let handler = self.handler.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handler))) {
            self.panic.get_or_insert(panic);
        }
    }

    /// Closes what nobody uses any more, and goes on to the phase in which the WebSocket is.
    fn go_on(&mut self) {
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
        if self.phase == Phase::Over && self.handler.is_none() {
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
}

impl Future for Conversation {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.shared.with(|state| state.begin(context));
        for _ in 0..ROUNDS_MAX {
            this.shared.with(|state| state.look_at_unsent());
            // What is here was said in time.
            let may_have_more = this.receive(context);
            this.look_at_clock(context);
            this.shared.with(|state| state.take_change());
            this.run_handler(context);
            this.go_on();
            this.send(context);
            if this.phase == Phase::Ended {
                if let Some(panic) = this.panic.take() {
                    resume_unwind(panic);
                }
                return Poll::Ready(());
            }
            let is_changed = this.shared.with(|state| state.take_change());
            if !is_changed && !may_have_more && !this.is_set {
                this.shared.with(|state| state.pause());
                return Poll::Pending;
            }
        }
        this.shared.with(|state| state.pause());
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Who has a handle in a task of its own hears of the end.
impl Drop for Conversation {
    fn drop(&mut self) {
        self.shared.with(|state| state.lose());
    }
}
