//! Drives one connection from accept to close.
//!
//! A [`Connection`] is a hand-written future. While it waits for a request, it is idle and holds no
//! buffers. When bytes arrive, it borrows an [`ActiveState`] from the worker's pool and alternates
//! two steps. [`Connection::turn`] runs the protocol as far as it can. [`Connection::wait`] passes
//! output to the driver and suspends until bytes arrive, the driver has room for output, a deadline
//! expires, or the worker's [`Lifecycle`] changes. A busy connection is suspended only in `wait`
//! or, if it must yield, directly after it.

mod active_state;
mod close;
mod drive;
mod handshake;
mod idle;
mod lingering;
mod upgraded;
mod yield_gate;

pub(crate) use self::active_state::{ListenerState, active_state_pool};

use self::active_state::{ActiveState, Phase};
use self::handshake::{check_tls_handshake, detect_protocol};
use self::yield_gate::YieldGate;
use crate::admission::ClientConnectionPermit;
use crate::admission::connections::ConnectionGuard;
use crate::admission::reserved_slots::ReservedSlot;
use crate::http2::Http2Core;
use crate::io::ConnectionIo;
use crate::io::context::{Action, Close, ConnectionContext, Interest};
use crate::io::timeouts::TimeoutKind;
use crate::io::transport::Transport;
use crate::listener::proxy_protocol::{Preamble, ProxyProtocol};
use crate::listener::to_connection_addr;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ConnectionState;
use crate::timer_wheel::Timer;
use crate::worker::Worker;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1;
use peregrine_tls::{TlsConfig, TlsConnectionError};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::coop;
use peregrine_web::memory::{self, MemoryReservation};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The memory that an idle connection uses in addition to this struct: its task, its stream in the
/// driver, and its [`ConnectionInfo`].
const TASK_BYTES: usize = 512;

/// An expired deadline is extended if more data has already arrived, unless this many received
/// bytes have not been parsed yet.
const UNPARSED_BYTES_MAX: usize = 64 * 1024;

/// Why [`Connection::wait`] ended.
enum WakeReason {
    /// Bytes or the end of the peer's sending side arrived, the driver has room for output, or the
    /// protocol needs another turn.
    Ready,
    /// A deadline expired.
    Timeout(TimeoutKind),
    /// Receiving or sending failed.
    Io(io::ErrorKind),
    /// The TLS session did not accept the received bytes.
    Tls(TlsConnectionError),
    /// The worker is in [`Lifecycle::ForceClosing`], so the connection must end now.
    ForceClose,
}

/// A connection. An idle connection consists of this struct only.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct Connection<D: Driver> {
    /// `None` while the connection is idle.
    active: Option<Box<ActiveState<D>>>,
    /// The reserved slot, if the connection uses one.
    reserved_slot: Option<Box<ReservedSlot>>,
    /// `None` if the connection has not yielded yet, or if the driver needs no gate.
    yield_gate: Option<Arc<YieldGate>>,
    /// How much of the budget is used since the last yield, or on some drivers in this poll.
    budget_used: usize,
    /// How the connection starts. After a PROXY header has been read, [`Preamble::None`].
    preamble: Preamble,
    listener: Rc<ListenerState<D>>,
    worker: Rc<Worker<D>>,
    transport: Transport,
    stream: D::Stream,
    guard: ConnectionGuard,
    timer: Timer,
    /// When the connection was accepted, its handshake ended, or its last exchange ended, whichever
    /// is latest. In milliseconds of the driver's clock.
    idle_since: u64,
    /// Whether `idle_since` is only an estimate: the driver may pass the last response to the
    /// kernel later than that.
    is_flush_time_unknown: bool,
    /// The HTTP/2 state of an idle HTTP/2 connection.
    http2: Option<Box<Http2Core>>,
    /// The protocol core of HTTP/1. An HTTP/2 connection does not use it.
    protocol: h1::Connection,
    info: Rc<ConnectionInfo>,
    /// When the connection was accepted, in milliseconds of the driver's clock.
    accepted_at: u64,
    /// Counts this connection towards its client's limit.
    client_permit: Option<Box<ClientConnectionPermit>>,
    /// Accounts for the memory of this struct and of `TASK_BYTES`.
    _reservation: MemoryReservation,
}

impl<D: Driver> Unpin for Connection<D> {}

impl<D: Driver> Connection<D> {
    pub(crate) fn new(
        worker: Rc<Worker<D>>,
        listener: Rc<ListenerState<D>>,
        stream: D::Stream,
        guard: ConnectionGuard,
        client_permit: Option<Box<ClientConnectionPermit>>,
    ) -> Self {
        let (now, context) = (to_millis(worker.driver.now()), &listener.context);
        let peer = to_connection_addr(stream.peer_addr(), || stream.peer_credentials());
        let preamble_for = |settings: &ProxyProtocol| settings.preamble_for(&peer);
        let preamble = context.proxy_protocol.as_ref().map_or(Preamble::None, preamble_for);
        // If the connection starts with a PROXY header, TLS starts after the header.
        let tls = context.tls.as_ref().filter(|_| preamble == Preamble::None);
        let transport = Transport::new(tls.map(TlsConfig::new_connection));
        let info = Rc::new(ConnectionInfo {
            trusted_proxies: context.trusted_proxies_for(&peer),
            peer,
            local: worker.intern_local_addr(to_connection_addr(stream.local_addr(), || None)),
            behind_gateway: context.limits.behind_gateway,
            worker_id: worker.admission.worker_id(),
            ..ConnectionInfo::default()
        });
        let protocol = h1::Connection::new(&context.proto_limits);
        let timer = worker.timers.timer();
        let needs_slot = context.needs_reserved_slot(worker.reserved_slot_count);
        let reserved_slot = needs_slot
            .then(|| Box::new(worker.reserved_slots.acquire(&timer, worker.driver.now())));
        Self {
            worker,
            listener,
            stream,
            preamble,
            transport,
            timer,
            protocol,
            http2: None,
            info,
            guard,
            accepted_at: now,
            idle_since: now,
            is_flush_time_unknown: false,
            active: None,
            client_permit,
            reserved_slot,
            yield_gate: None,
            budget_used: 0,
            _reservation: MemoryReservation::new(size_of::<Self>() + TASK_BYTES),
        }
    }
}

impl<D: Driver> Future for Connection<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.yield_gate.as_ref().is_some_and(|gate| gate.is_closed()) {
            return Poll::Pending;
        }
        let memory_before = memory::reserved();
        if this.reserved_slot.is_some() && this.poll_eviction().is_ready() {
            return Poll::Ready(());
        }
        // Discard a request to yield that another task of this thread has made.
        let _ = coop::take_yield_request();
        if D::SELF_WAKE_YIELDS {
            // This driver polls each task at most once per iteration of its loop. Other drivers may
            // poll a task that wakes itself many times in one iteration, so for them the budget
            // spans several polls.
            this.budget_used = 0;
        }
        loop {
            let mut state = match this.active.take() {
                Some(state) => state,
                None if this.preamble == Preamble::Untrusted => {
                    this.activate(Activation::Close(CloseReason::UntrustedProxy))
                }
                None => match this.poll_idle(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(activation) => {
                        let state = this.activate(activation);
                        this.budget_used += 1 + drive::budget_for(state.io.input.bytes_received());
                        state
                    }
                },
            };
            match this.drive(&mut state, cx) {
                Poll::Pending => {
                    // A waiting connection must not hold the driver's buffers.
                    state.io.input.release_chunk();
                    if state.has_tunnel() {
                        state.io.shrink();
                    }
                    state.update_reservation();
                    this.worker.admission.publish_memory();
                    if memory::reserved() > memory_before && !this.may_reserve_more(&state) {
                        return this.close_over_memory(state);
                    }
                    this.guard.set_state(state.phase.connection_state());
                    this.active = Some(state);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    let mut restarts_idle_time = state.http1.requires_idle_restart();
                    if matches!(state.phase, Phase::Http2) {
                        restarts_idle_time |= state.http2.has_ended_exchange();
                        this.http2 = state.http2.take_core();
                    }
                    this.deactivate(state);
                    let is_http2 = this.http2.is_some();
                    this.guard.set_state(if is_http2 {
                        ConnectionState::Http2Idle
                    } else {
                        ConnectionState::Http1Idle
                    });
                    if restarts_idle_time {
                        this.idle_since = to_millis(this.worker.driver.now());
                        this.is_flush_time_unknown = true;
                    }
                }
                Poll::Ready(Some(reason)) => return this.finish(state, &reason),
            }
        }
    }
}

/// Why an idle connection becomes busy.
enum Activation<D: Driver> {
    /// It has received these bytes.
    Received(<D::Stream as Stream>::Chunk),
    /// It must send, although nothing was received: the rest of its last response, or GOAWAY.
    MustSend,
    /// It must close for this reason.
    Close(CloseReason),
}

impl<D: Driver> Connection<D> {
    /// Borrows an [`ActiveState`] from the pool and makes the connection busy.
    fn activate(&mut self, activation: Activation<D>) -> Box<ActiveState<D>> {
        let mut state = self.listener.active_state_pool.get();
        if let Some(core) = self.http2.take() {
            state.http2.resume(core);
            state.phase = Phase::Http2;
        }
        match activation {
            // `poll` checks this flag of `http1` for HTTP/2 connections as well.
            Activation::MustSend => state.http1.require_idle_restart(),
            Activation::Received(chunk) => {
                let result = self.on_chunk(&mut state, chunk);
                // Called before `fail_tls`, whose `Phase::Closing` it would replace.
                self.start_phase(&mut state);
                if let Err(error) = result {
                    self.fail_tls(&mut state, &error);
                }
            }
            Activation::Close(reason) => {
                // Each of these two reasons can be caused by more than one limit, so `finish` does
                // not know which one to count.
                match reason {
                    CloseReason::HandshakeTimeout => {
                        self.worker.instrumentation.record_limit("handshake_timeout")
                    }
                    CloseReason::IdleTimeout => {
                        self.worker.instrumentation.record_limit("idle_timeout")
                    }
                    _ => {}
                }
                self.start_close(&mut state, Close { reason, linger: false });
            }
        }
        state
    }

    /// Runs one turn of the current phase. Returns `None` when a connection in [`Phase::Closing`]
    /// has closed.
    fn turn(&mut self, state: &mut ActiveState<D>, cx: &mut Context<'_>) -> Option<Action> {
        match state.phase {
            Phase::ProxyHeader(_) => return Some(self.read_proxy_header(state)),
            Phase::TlsHandshake(_) => self.resume_tls_handshake(state, cx),
            _ => {}
        }
        let mut conn = self.context(&mut state.io);
        Some(match &mut state.phase {
            Phase::Http1 => state.http1.turn(&mut conn, cx),
            Phase::Http2 => {
                let action = state.http2.turn(&mut conn, cx);
                self.detach_http2_handlers(state);
                action
            }
            Phase::TlsHandshake(permit) => {
                let action = check_tls_handshake(permit, &mut conn);
                if matches!(action, Action::Continue) {
                    let is_http2 = conn.transport.is_http2();
                    let elapsed = conn.worker.driver.now().saturating_sub(conn.accepted_at);
                    conn.worker.instrumentation.record_handshake(conn.info.tls.as_deref(), elapsed);
                    self.idle_since = to_millis(self.worker.driver.now());
                    state.phase = if is_http2 { Phase::Http2 } else { Phase::Http1 };
                }
                action
            }
            Phase::ProtocolDetection => {
                let (action, phase) = detect_protocol(&mut conn);
                state.phase = phase;
                action
            }
            Phase::ProxyHeader(_) => unreachable!("this phase is handled above"),
            Phase::Upgraded(upgraded) => upgraded.turn(&mut conn, cx),
            Phase::Closing(closing) => return closing.turn(&mut conn),
        })
    }

    /// Passes output to the driver, and then waits for the events in `interest`, a deadline, or a
    /// forced close.
    fn wait(
        &mut self,
        state: &mut ActiveState<D>,
        interest: Interest,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let mut has_room = false;
        // Skipped if the connection only waits for bytes: `poll_readable` below then reports a
        // failed connection.
        if interest.writable || !interest.readable || !state.io.output.is_empty() {
            match self.stream.poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Poll::Ready(WakeReason::Io(error.kind())),
                Poll::Ready(Ok(())) => {
                    if let Err(wake_reason) = self.flush(state) {
                        return Poll::Ready(wake_reason);
                    }
                    // Receive before reporting room to send: the driver may have room all the time,
                    // and the peer's bytes must still be read. Also report room if `flush` has left
                    // output because of a zero-copy chunk: the wait after the next turn sends more.
                    has_room = interest.writable || !state.io.output.is_empty();
                    if has_room && !interest.readable {
                        return Poll::Ready(WakeReason::Ready);
                    }
                    // Without `poll_readable`, nothing below wakes the task if sending this output
                    // fails.
                    if !interest.readable
                        && let Poll::Ready(Err(error)) = self.stream.poll_flush(cx)
                    {
                        return Poll::Ready(WakeReason::Io(error.kind()));
                    }
                }
            }
        }
        if interest.readable
            && let Poll::Ready(wake_reason) = self.poll_readable(state, cx)
        {
            return Poll::Ready(wake_reason);
        }
        if has_room {
            return Poll::Ready(WakeReason::Ready);
        }
        self.await_deadline(state, cx)
    }

    /// Waits for the first deadline or a forced close.
    fn await_deadline(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let (worker, io) = (&*self.worker, &mut state.io);
        if worker.lifecycle() >= Lifecycle::ForceClosing {
            // The shutdown report states whether the last response was sent. If the response waits
            // only for the end of the driver's loop iteration, that is known soon, so wait for it.
            if self.stream.is_writable() && self.stream.poll_flush(cx).is_pending() {
                return Poll::Pending;
            }
            return Poll::Ready(WakeReason::ForceClose);
        }
        let rate = self.listener.context.limits.min_rate();
        if self.stream.is_flushed() {
            io.on_flushed(self.stream.bytes_written());
        } else {
            let deadline =
                io.send_rate.start(worker.driver.now(), self.stream.bytes_written(), rate);
            io.deadlines.set(TimeoutKind::Send, deadline);
        }
        loop {
            match io.deadlines.next_deadline() {
                Some(deadline) => self.timer.set(deadline),
                None => self.timer.clear(),
            }
            if self.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = worker.driver.now();
            match io.deadlines.pop_expired(now) {
                Some(TimeoutKind::Send) => {
                    let progress = self.stream.bytes_written();
                    if self.stream.is_flushed() {
                        io.on_flushed(progress);
                    } else if io.send_rate.is_too_slow(now, progress, rate) {
                        return Poll::Ready(WakeReason::Timeout(TimeoutKind::Send));
                    } else {
                        io.deadlines
                            .set(TimeoutKind::Send, io.send_rate.start(now, progress, rate));
                    }
                }
                Some(TimeoutKind::Receive) => {
                    let received = io.input.payload_bytes();
                    if io.receive_rate.is_too_slow(now, received, rate) {
                        return Poll::Ready(
                            self.timed_out_unless_readable(state, TimeoutKind::Receive),
                        );
                    }
                    io.deadlines
                        .set(TimeoutKind::Receive, io.receive_rate.start(now, received, rate));
                }
                Some(kind @ (TimeoutKind::Handshake | TimeoutKind::Head)) => {
                    return Poll::Ready(self.timed_out_unless_readable(state, kind));
                }
                Some(kind) => return Poll::Ready(WakeReason::Timeout(kind)),
                // Not expected: the timer does not fire before the first deadline.
                None => return Poll::Ready(WakeReason::Ready),
            }
        }
    }

    /// Returns [`WakeReason::Timeout`], unless the peer's data has arrived and the worker was only
    /// too busy to receive it.
    fn timed_out_unless_readable(
        &mut self,
        state: &mut ActiveState<D>,
        kind: TimeoutKind,
    ) -> WakeReason {
        if state.io.input.unread().len() >= UNPARSED_BYTES_MAX {
            return WakeReason::Timeout(kind);
        }
        let Some(chunk) = self.stream.try_recv() else { return WakeReason::Timeout(kind) };
        // If the data is still incomplete after this chunk, the deadline expires in the next wait.
        state.io.deadlines.set(kind, self.worker.driver.now());
        self.on_chunk(state, chunk).map_or_else(WakeReason::Tls, |()| WakeReason::Ready)
    }

    /// Passes output to the driver, unless earlier output waits for the peer to read.
    fn flush(&mut self, state: &mut ActiveState<D>) -> Result<(), WakeReason> {
        let io = &mut state.io;
        if io.output.is_empty() || !self.stream.is_writable() {
            return Ok(());
        }
        if self.stream.is_flushed() {
            io.on_flushed(self.stream.bytes_written());
        }
        let max = self.listener.context.limits.write_buffer_bytes_max;
        let flushed = io
            .output
            .flush(&self.stream, &mut self.transport, max)
            .map_err(|_error| WakeReason::Io(io::ErrorKind::InvalidData))?;
        io.unflushed_bytes += flushed.accounted_bytes;
        self.worker.instrumentation.record_send(flushed.bytes);
        Ok(())
    }

    /// What a protocol can access during a turn.
    fn context<'t>(&'t mut self, io: &'t mut ConnectionIo<D>) -> ConnectionContext<'t, D> {
        ConnectionContext {
            accepted_at: self.accepted_at(),
            worker: &self.worker,
            listener: &self.listener.context,
            stream: &self.stream,
            transport: &mut self.transport,
            protocol: &mut self.protocol,
            info: &mut self.info,
            io,
            uses_reserved_slot: self.reserved_slot.is_some(),
        }
    }

    fn accepted_at(&self) -> Duration {
        Duration::from_millis(self.accepted_at)
    }
}

fn to_millis(time: Duration) -> u64 {
    // Avoids the 128-bit division of `as_millis`.
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_millis()))
}
