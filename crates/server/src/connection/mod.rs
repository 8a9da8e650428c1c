//! Drives one connection from accept to close.
//!
//! A [`Connection`] is a hand-written future. While it waits for a request, it is idle and holds no
//! buffers. When bytes arrive, it borrows an [`ActiveState`] from the worker's pool and alternates
//! two steps. [`Connection::turn`] runs the protocol as far as it can. [`Connection::wait`] passes
//! output to the driver and suspends until bytes arrive, the driver has room for output, a deadline
//! expires, or the worker receives a [`Lifecycle`]. `wait` is the only place that suspends a busy
//! connection.

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
use self::handshake::{advance_tls_handshake, detect_protocol};
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
use crate::listener::to_peer;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ConnectionState;
use crate::timer_wheel::Timer;
use crate::worker::Worker;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1;
use peregrine_tls::{TlsConfig, TlsConnectionError as TlsReject};
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

/// If this many bytes are received but not parsed, further bytes do not extend a deadline.
const UNPARSED_BYTES_MAX: usize = 64 * 1024;

/// The reason why a wait ended.
enum WakeReason {
    /// Bytes or the end of the peer's sending side arrived, the driver has room for output, or the
    /// protocol needs another turn.
    Ready,
    /// A deadline expired.
    Timeout(TimeoutKind),
    /// The connection failed.
    Io(io::ErrorKind),
    /// The TLS session did not accept the received bytes.
    Tls(TlsReject),
    /// The worker received [`Lifecycle::ForceClosing`], so the connection must end at once.
    ForceClose,
}

/// A connection. An idle connection consists of this struct only.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct Connection<D: Driver> {
    active: Option<Box<ActiveState<D>>>,
    /// The reserved slot, if the connection uses one.
    reserved_slot: Option<Box<ReservedSlot>>,
    /// `None` if the connection never had to yield.
    yield_gate: Option<Arc<YieldGate>>,
    /// Events since the connection last yielded.
    budget_used: usize,
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
    /// Whether `idle_since` is only an estimate: the kernel may not have sent the last response
    /// yet.
    is_flush_time_unknown: bool,
    /// The HTTP/2 state of an idle connection. An HTTP/2 connection does not use `protocol`.
    http2: Option<Box<Http2Core>>,
    protocol: h1::Connection,
    info: Rc<ConnectionInfo>,
    /// When the connection was accepted, in milliseconds of the driver's clock.
    accepted_at: u64,
    /// Counts this connection towards its client's limit, until it is dropped.
    client_permit: Option<Box<ClientConnectionPermit>>,
    _reservation: MemoryReservation,
}

impl<D: Driver> Unpin for Connection<D> {}

impl<D: Driver> Connection<D> {
    pub(crate) fn new(
        worker: Rc<Worker<D>>,
        entrance: Rc<ListenerState<D>>,
        stream: D::Stream,
        open: ConnectionGuard,
        client: Option<Box<ClientConnectionPermit>>,
    ) -> Self {
        let (now, door) = (milliseconds(worker.driver.now()), &entrance.context);
        let peer_of = to_peer(stream.peer_addr(), || stream.peer_credentials());
        let beginning = |settings: &ProxyProtocol| settings.preamble_for(&peer_of);
        let beginning = door.proxy_protocol.as_ref().map_or(Preamble::None, beginning);
        let tls = door.tls.as_ref().filter(|_| beginning == Preamble::None);
        let stage = Transport::new(tls.map(TlsConfig::new_connection));
        let info = Rc::new(ConnectionInfo {
            trusted_proxies: door.trusted_proxies_for(&peer_of),
            peer: peer_of,
            local: worker.intern_local_addr(to_peer(stream.local_addr(), || None)),
            behind_gateway: door.limits.behind_gateway,
            worker_id: worker.admission.worker_id(),
            ..ConnectionInfo::default()
        });
        let protocol = h1::Connection::new(&door.protocol);
        let alarm = worker.timers.timer();
        let by_wicket = door.needs_reserved_slot(worker.reserved_connections);
        let by_wicket =
            by_wicket.then(|| Box::new(worker.reserved_slots.acquire(&alarm, worker.driver.now())));
        Self {
            worker,
            listener: entrance,
            stream,
            preamble: beginning,
            transport: stage,
            timer: alarm,
            protocol,
            http2: None,
            info,
            guard: open,
            accepted_at: now,
            idle_since: now,
            is_flush_time_unknown: false,
            active: None,
            client_permit: client,
            reserved_slot: by_wicket,
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
        let held = memory::reserved();
        if this.reserved_slot.is_some() && this.poll_eviction().is_ready() {
            return Poll::Ready(());
        }
        let _ = coop::take_yield_request();
        if D::SELF_WAKE_YIELDS {
            // This driver polls each task at most once per iteration of its loop. Other drivers may
            // poll a task that wakes itself many times in one iteration, so for them the count
            // continues.
            this.budget_used = 0;
        }
        loop {
            let mut session = match this.active.take() {
                Some(session) => session,
                None if this.preamble == Preamble::Untrusted => {
                    this.activate(Err(CloseReason::UntrustedProxy))
                }
                None => match this.poll_idle(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(first) => {
                        let session = this.activate(first);
                        this.budget_used +=
                            1 + drive::budget_for(session.io.input.bytes_received());
                        session
                    }
                },
            };
            match this.drive(&mut session, cx) {
                Poll::Pending => {
                    // Idle connections must not keep the driver's buffers.
                    session.io.input.release_chunk();
                    if session.has_tunnel() {
                        session.io.shrink();
                    }
                    session.update_reservation();
                    this.worker.admission.publish_memory();
                    if memory::reserved() > held && !this.may_reserve_more(&session) {
                        return this.close_over_memory(session);
                    }
                    this.guard.set_state(session.phase.connection_state());
                    this.active = Some(session);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    let mut has_progressed = session.http1.has_responded();
                    if matches!(session.phase, Phase::Http2) {
                        has_progressed |= session.http2.has_closed_stream();
                        this.http2 = session.http2.take_core();
                    }
                    this.deactivate(session);
                    let is_http2 = this.http2.is_some();
                    this.guard.set_state(if is_http2 {
                        ConnectionState::Http2Idle
                    } else {
                        ConnectionState::Http1Idle
                    });
                    if has_progressed {
                        this.idle_since = milliseconds(this.worker.driver.now());
                        this.is_flush_time_unknown = true;
                    }
                }
                Poll::Ready(Some(ended)) => return this.finish(session, &ended),
            }
        }
    }
}

/// What makes a connection busy: its first bytes, `None` if it has work to do without bytes, or the
/// reason to close it.
type Activation<D> = Result<Option<<<D as Driver>::Stream as Stream>::Chunk>, CloseReason>;

impl<D: Driver> Connection<D> {
    /// Borrows a session and starts to work.
    fn activate(&mut self, first: Activation<D>) -> Box<ActiveState<D>> {
        let mut session = self.listener.active_states.get();
        if let Some(core) = self.http2.take() {
            session.http2.resume(core);
            session.phase = Phase::Http2;
        }
        match first {
            Ok(None) => session.http1.mark_flush_pending(),
            Ok(Some(chunk)) => {
                let is_taken = self.on_chunk(&mut session, chunk);
                self.start_phase(&mut session);
                if let Err(reject) = is_taken {
                    self.fail_tls(&mut session, &reject);
                }
            }
            Err(ended) => {
                match ended {
                    CloseReason::HandshakeTimeout => {
                        self.worker.instrumentation.record_limit("handshake_timeout")
                    }
                    CloseReason::IdleTimeout => {
                        self.worker.instrumentation.record_limit("idle_timeout")
                    }
                    _ => {}
                }
                self.start_close(&mut session, Close { reason: ended, linger: false });
            }
        }
        session
    }

    /// Runs one turn of the current phase. Returns `None` if the connection is over.
    fn turn(&mut self, session: &mut ActiveState<D>, cx: &mut Context<'_>) -> Option<Action> {
        match session.phase {
            Phase::ProxyHeader(_) => return Some(self.read_proxy_header(session)),
            Phase::TlsHandshake(_) => self.resume_tls_handshake(session, cx),
            _ => {}
        }
        let mut link = self.context(&mut session.io);
        Some(match &mut session.phase {
            Phase::Http1 => session.http1.turn(&mut link, cx),
            Phase::Http2 => {
                let turn = session.http2.turn(&mut link, cx);
                self.detach_http2_handlers(session);
                turn
            }
            Phase::TlsHandshake(handshake) => {
                let turn = advance_tls_handshake(handshake, &mut link);
                if matches!(turn, Action::Continue) {
                    let is_http2 = link.transport.is_http2();
                    let took = link.worker.driver.now().saturating_sub(link.accepted_at);
                    link.worker.instrumentation.record_handshake(link.info.tls.as_deref(), took);
                    self.idle_since = milliseconds(self.worker.driver.now());
                    session.phase = if is_http2 { Phase::Http2 } else { Phase::Http1 };
                }
                turn
            }
            Phase::ProtocolDetection => {
                let (turn, phase) = detect_protocol(&mut link);
                session.phase = phase;
                turn
            }
            Phase::ProxyHeader(_) => unreachable!("this phase is handled above"),
            Phase::Upgraded(upgrade) => upgrade.turn(&mut link, cx),
            Phase::Closing(closing) => return closing.turn(&mut link),
        })
    }

    /// Passes output to the driver, then waits until something happens. No other method suspends a
    /// busy connection.
    fn wait(
        &mut self,
        session: &mut ActiveState<D>,
        what: Interest,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let mut has_room = false;
        // If the connection waits for bytes, `poll_readable` below reports a failed connection.
        if what.writable || !what.readable || !session.io.output.is_empty() {
            match self.stream.poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Poll::Ready(WakeReason::Io(error.kind())),
                Poll::Ready(Ok(())) => {
                    if let Err(event) = self.flush(session) {
                        return Poll::Ready(event);
                    }
                    // Receive before reporting room to send. The driver may have room for hours,
                    // and the peer's bytes must still be read. Output behind shared bytes is sent
                    // in the next turn.
                    has_room = what.writable || !session.io.output.is_empty();
                    if has_room && !what.readable {
                        return Poll::Ready(WakeReason::Ready);
                    }
                    if !what.readable
                        && let Poll::Ready(Err(error)) = self.stream.poll_flush(cx)
                    {
                        return Poll::Ready(WakeReason::Io(error.kind()));
                    }
                }
            }
        }
        if what.readable
            && let Poll::Ready(event) = self.poll_readable(session, cx)
        {
            return Poll::Ready(event);
        }
        if has_room {
            return Poll::Ready(WakeReason::Ready);
        }
        self.await_deadline(session, cx)
    }

    /// Waits for the first deadline or a forced close.
    fn await_deadline(
        &mut self,
        session: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let (worker, io) = (&*self.worker, &mut session.io);
        if worker.lifecycle() >= Lifecycle::ForceClosing {
            // The shutdown report says whether the peer has received the last data. The driver will
            // know that in a moment, so wait for it.
            if self.stream.is_writable() && self.stream.poll_flush(cx).is_pending() {
                return Poll::Pending;
            }
            return Poll::Ready(WakeReason::ForceClose);
        }
        let rate = self.listener.context.limits.min_rate();
        if self.stream.is_flushed() {
            io.on_flushed(self.stream.bytes_written());
        } else {
            let until = io.send_rate.start(worker.driver.now(), self.stream.bytes_written(), rate);
            io.deadlines.set(TimeoutKind::Send, until);
        }
        loop {
            match io.deadlines.next_deadline() {
                Some(at) => self.timer.set(at),
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
                            self.timed_out_unless_readable(session, TimeoutKind::Receive),
                        );
                    }
                    io.deadlines
                        .set(TimeoutKind::Receive, io.receive_rate.start(now, received, rate));
                }
                Some(wait @ (TimeoutKind::Handshake | TimeoutKind::Head)) => {
                    return Poll::Ready(self.timed_out_unless_readable(session, wait));
                }
                Some(wait) => return Poll::Ready(WakeReason::Timeout(wait)),
                None => return Poll::Ready(WakeReason::Ready),
            }
        }
    }

    /// Returns [`WakeReason::Timeout`], unless the peer's data has arrived and the worker was only
    /// too busy to receive it.
    fn timed_out_unless_readable(
        &mut self,
        session: &mut ActiveState<D>,
        wait: TimeoutKind,
    ) -> WakeReason {
        if session.io.input.unread().len() >= UNPARSED_BYTES_MAX {
            return WakeReason::Timeout(wait);
        }
        let Some(chunk) = self.stream.try_recv() else { return WakeReason::Timeout(wait) };
        // If this data is still incomplete, the deadline expires at once.
        session.io.deadlines.set(wait, self.worker.driver.now());
        self.on_chunk(session, chunk).map_or_else(WakeReason::Tls, |()| WakeReason::Ready)
    }

    /// Passes output to the driver, if the driver has room.
    fn flush(&mut self, session: &mut ActiveState<D>) -> Result<(), WakeReason> {
        let io = &mut session.io;
        if io.output.is_empty() || !self.stream.is_writable() {
            return Ok(());
        }
        if self.stream.is_flushed() {
            io.on_flushed(self.stream.bytes_written());
        }
        let most = self.listener.context.limits.write_buffer_bytes_max;
        let given = io
            .output
            .flush(&self.stream, &mut self.transport, most)
            .map_err(|_error| WakeReason::Io(io::ErrorKind::InvalidData))?;
        io.unflushed_bytes += given.accounted_bytes;
        self.worker.instrumentation.record_send(given.bytes);
        Ok(())
    }

    /// The context for a turn.
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
            is_reserved: self.reserved_slot.is_some(),
        }
    }

    fn accepted_at(&self) -> Duration {
        Duration::from_millis(self.accepted_at)
    }
}

fn milliseconds(time: Duration) -> u64 {
    // Avoids the 128-bit division of `as_millis`.
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_millis()))
}
