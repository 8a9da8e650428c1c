//! Drives one connection from accept to close.
//!
//! A [`Connection`] is a hand-written future. While it waits for a request, it is idle and holds no
//! buffers. When bytes arrive, it borrows a [`Session`] from the worker's pool and alternates two
//! steps. [`Connection::turn`] runs the protocol as far as it can. [`Connection::wait`] passes
//! output to the driver and suspends until bytes arrive, the driver has room for output, a deadline
//! expires, or the worker receives an [`Order`]. `wait` is the only place that suspends a busy
//! connection.

mod active_state;
mod close;
mod drive;
mod handshake;
mod idle;
mod lingering;
mod upgraded;
mod yield_gate;

pub(crate) use self::active_state::{Entrance, sessions};

use self::active_state::{Phase, Session};
use self::handshake::{shake_hands, tell_protocol};
use self::yield_gate::Gate;
use crate::admission::Connected;
use crate::admission::connections::Open;
use crate::admission::reserved_slots::ByWicket;
use crate::http2::Core;
use crate::io::Io;
use crate::io::context::{Close, For, Link, Turn};
use crate::io::timeouts::Wait;
use crate::io::transport::Stage;
use crate::listener::peer;
use crate::listener::proxy_protocol::{Beginning, ProxyProtocol};
use crate::observe::close_reason::Ended;
use crate::observe::metrics::Place;
use crate::timer_wheel::Alarm;
use crate::worker::Worker;
use crate::worker::lifecycle::Order;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1;
use peregrine_tls::{Reject as TlsReject, Tls};
use peregrine_web::account::{self, Charge};
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::turn;
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
const UNREAD_BYTES_MAX: usize = 64 * 1024;

/// The reason why a wait ended.
enum Event {
    /// Bytes or the end of the peer's sending side arrived, the driver has room for output, or the
    /// protocol needs another turn.
    Woken,
    /// A deadline expired.
    Late(Wait),
    /// The connection failed.
    Broken(io::ErrorKind),
    /// The TLS session did not accept the received bytes.
    NoTls(TlsReject),
    /// The worker received [`Order::Cut`], so the connection must end at once.
    Cut,
}

/// A connection. An idle connection consists of this struct only.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct Connection<D: Driver> {
    session: Option<Box<Session<D>>>,
    /// The reserved slot, if the connection uses one.
    by_wicket: Option<Box<ByWicket>>,
    /// `None` if the connection never had to yield.
    gate: Option<Arc<Gate>>,
    /// Events since the connection last yielded.
    events: usize,
    beginning: Beginning,
    entrance: Rc<Entrance<D>>,
    worker: Rc<Worker<D>>,
    stage: Stage,
    stream: D::Stream,
    open: Open,
    alarm: Alarm,
    /// When the connection was accepted, its handshake ended, or its last exchange ended, whichever
    /// is latest. In milliseconds of the driver's clock.
    since: u64,
    /// Whether `since` is only an estimate: the kernel may not have sent the last response yet.
    is_leaving: bool,
    /// The HTTP/2 state of an idle connection. An HTTP/2 connection does not use `protocol`.
    http2: Option<Box<Core>>,
    protocol: h1::Connection,
    info: Rc<ConnectionInfo>,
    /// When the connection was accepted, in milliseconds of the driver's clock.
    born: u64,
    /// Counts this connection towards its client's limit, until it is dropped.
    client: Option<Box<Connected>>,
    _charge: Charge,
}

impl<D: Driver> Unpin for Connection<D> {}

impl<D: Driver> Connection<D> {
    pub(crate) fn new(
        worker: Rc<Worker<D>>,
        entrance: Rc<Entrance<D>>,
        stream: D::Stream,
        open: Open,
        client: Option<Box<Connected>>,
    ) -> Self {
        let (now, door) = (milliseconds(worker.driver.now()), &entrance.door);
        let peer_of = peer(stream.peer(), || stream.credentials());
        let beginning = |settings: &ProxyProtocol| settings.beginning(&peer_of);
        let beginning = door.proxy_protocol.as_ref().map_or(Beginning::Itself, beginning);
        let tls = door.tls.as_ref().filter(|_| beginning == Beginning::Itself);
        let stage = Stage::new(tls.map(Tls::session));
        let info = Rc::new(ConnectionInfo {
            proxies: door.proxies_at(&peer_of),
            peer: peer_of,
            local: worker.local(peer(stream.local(), || None)),
            behind_gateway: door.limits.behind_gateway,
            worker: worker.overload.number(),
            ..ConnectionInfo::default()
        });
        let protocol = h1::Connection::new(&door.protocol);
        let alarm = worker.wheel.alarm();
        let by_wicket = door.is_narrow(worker.spare_connections);
        let by_wicket =
            by_wicket.then(|| Box::new(worker.wicket.enter(&alarm, worker.driver.now())));
        Self {
            worker,
            entrance,
            stream,
            beginning,
            stage,
            alarm,
            protocol,
            http2: None,
            info,
            open,
            born: now,
            since: now,
            is_leaving: false,
            session: None,
            client,
            by_wicket,
            gate: None,
            events: 0,
            _charge: Charge::of(size_of::<Self>() + TASK_BYTES),
        }
    }
}

impl<D: Driver> Future for Connection<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.gate.as_ref().is_some_and(|gate| gate.is_shut()) {
            return Poll::Pending;
        }
        let held = account::held();
        if this.by_wicket.is_some() && this.gives_way().is_ready() {
            return Poll::Ready(());
        }
        let _ = turn::take_asked();
        if D::IS_FAIR_TO_OTHERS {
            // This driver polls each task at most once per turn. Other drivers may poll a task that
            // wakes itself many times in one turn, so for them the count continues.
            this.events = 0;
        }
        loop {
            let mut session = match this.session.take() {
                Some(session) => session,
                None if this.beginning == Beginning::Refused => this.begin(Err(Ended::NoProxy)),
                None => match this.poll_idle(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(first) => {
                        let session = this.begin(first);
                        this.events += 1 + drive::events_of(session.io.reader.received());
                        session
                    }
                },
            };
            match this.work(&mut session, context) {
                Poll::Pending => {
                    // Idle connections must not keep the driver's buffers.
                    session.io.reader.settle();
                    if session.is_tunnel() {
                        session.io.slim();
                    }
                    session.weigh();
                    this.worker.overload.show_memory();
                    if account::held() > held && !this.may_grow(&session) {
                        return this.outgrown(session);
                    }
                    this.open.moves(session.phase.place());
                    this.session = Some(session);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    let mut has_progressed = session.http1.has_answered();
                    if matches!(session.phase, Phase::Http2) {
                        has_progressed |= session.http2.has_progressed();
                        this.http2 = session.http2.take_core();
                    }
                    this.give_back(session);
                    let is_http2 = this.http2.is_some();
                    this.open.moves(if is_http2 { Place::Http2Idle } else { Place::Http1Idle });
                    if has_progressed {
                        this.since = milliseconds(this.worker.driver.now());
                        this.is_leaving = true;
                    }
                }
                Poll::Ready(Some(ended)) => return this.ends(session, &ended),
            }
        }
    }
}

/// What makes a connection busy: its first bytes, `None` if it has work to do without bytes, or the
/// reason to close it.
type FirstBytes<D> = Result<Option<<<D as Driver>::Stream as Stream>::Chunk>, Ended>;

impl<D: Driver> Connection<D> {
    /// Borrows a session and starts to work.
    fn begin(&mut self, first: FirstBytes<D>) -> Box<Session<D>> {
        let mut session = self.entrance.sessions.take();
        if let Some(core) = self.http2.take() {
            session.http2.resume(core);
            session.phase = Phase::Http2;
        }
        match first {
            Ok(None) => session.http1.goes_on(),
            Ok(Some(chunk)) => {
                let is_taken = self.take(&mut session, chunk);
                self.begin_phase(&mut session);
                if let Err(reject) = is_taken {
                    self.refuse_tls(&mut session, &reject);
                }
            }
            Err(ended) => {
                match ended {
                    Ended::HandshakeLate => self.worker.observed.limit("handshake_timeout"),
                    Ended::Idle => self.worker.observed.limit("idle_timeout"),
                    _ => {}
                }
                self.end(&mut session, Close { ended, lingers: false });
            }
        }
        session
    }

    /// Runs one turn of the current phase. Returns `None` if the connection is over.
    fn turn(&mut self, session: &mut Session<D>, context: &mut Context<'_>) -> Option<Turn> {
        match session.phase {
            Phase::Header(_) => return Some(self.read_header(session)),
            Phase::Handshake(_) => self.go_on_shaking_hands(session, context),
            _ => {}
        }
        let mut link = self.link(&mut session.io);
        Some(match &mut session.phase {
            Phase::Http1 => session.http1.turn(&mut link, context),
            Phase::Http2 => {
                let turn = session.http2.turn(&mut link, context);
                self.detach(session);
                turn
            }
            Phase::Handshake(handshake) => {
                let turn = shake_hands(handshake, &mut link);
                if matches!(turn, Turn::Again) {
                    let is_http2 = link.stage.is_http2();
                    let took = link.worker.driver.now().saturating_sub(link.born);
                    link.worker.observed.agreed(link.info.tls.as_deref(), took);
                    self.since = milliseconds(self.worker.driver.now());
                    session.phase = if is_http2 { Phase::Http2 } else { Phase::Http1 };
                }
                turn
            }
            Phase::Preface => {
                let (turn, phase) = tell_protocol(&mut link);
                session.phase = phase;
                turn
            }
            Phase::Header(_) => unreachable!("this phase is handled above"),
            Phase::Upgraded(upgrade) => upgrade.turn(&mut link, context),
            Phase::Closing(closing) => return closing.turn(&mut link),
        })
    }

    /// Passes output to the driver, then waits until something happens. No other method suspends a
    /// busy connection.
    fn wait(
        &mut self,
        session: &mut Session<D>,
        what: For,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        let mut has_room = false;
        // If the connection waits for bytes, `poll_bytes` below reports a failed connection.
        if what.room || !what.bytes || !session.io.writer.is_empty() {
            match self.stream.poll_sent(context) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Broken(error.kind())),
                Poll::Ready(Ok(())) => {
                    if let Err(event) = self.flush(session) {
                        return Poll::Ready(event);
                    }
                    // Receive before reporting room to send. The driver may have room for hours,
                    // and the peer's bytes must still be read. Output behind shared bytes is sent
                    // in the next turn.
                    has_room = what.room || !session.io.writer.is_empty();
                    if has_room && !what.bytes {
                        return Poll::Ready(Event::Woken);
                    }
                    if !what.bytes
                        && let Poll::Ready(Err(error)) = self.stream.poll_sent(context)
                    {
                        return Poll::Ready(Event::Broken(error.kind()));
                    }
                }
            }
        }
        if what.bytes
            && let Poll::Ready(event) = self.poll_bytes(session, context)
        {
            return Poll::Ready(event);
        }
        if has_room {
            return Poll::Ready(Event::Woken);
        }
        self.await_deadline(session, context)
    }

    /// Waits for the first deadline or the order to cut.
    fn await_deadline(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        let (worker, io) = (&*self.worker, &mut session.io);
        if worker.order() >= Order::Cut {
            // The shutdown report says whether the peer has received the last data. The driver will
            // know that in a moment, so wait for it.
            if self.stream.has_room() && self.stream.poll_sent(context).is_pending() {
                return Poll::Pending;
            }
            return Poll::Ready(Event::Cut);
        }
        let rate = self.entrance.door.limits.rate();
        if self.stream.is_sent() {
            io.everything_is_sent(self.stream.progress());
        } else {
            let until = io.sending.wait(worker.driver.now(), self.stream.progress(), rate);
            io.deadlines.set(Wait::Send, until);
        }
        loop {
            match io.deadlines.first() {
                Some(at) => self.alarm.set(at),
                None => self.alarm.clear(),
            }
            if self.alarm.poll(context).is_pending() {
                return Poll::Pending;
            }
            let now = worker.driver.now();
            match io.deadlines.take_passed(now) {
                Some(Wait::Send) => {
                    let progress = self.stream.progress();
                    if self.stream.is_sent() {
                        io.everything_is_sent(progress);
                    } else if io.sending.is_late(now, progress, rate) {
                        return Poll::Ready(Event::Late(Wait::Send));
                    } else {
                        io.deadlines.set(Wait::Send, io.sending.wait(now, progress, rate));
                    }
                }
                Some(Wait::Receive) => {
                    let received = io.reader.brought();
                    if io.receiving.is_late(now, received, rate) {
                        return Poll::Ready(self.late_unless_here(session, Wait::Receive));
                    }
                    io.deadlines.set(Wait::Receive, io.receiving.wait(now, received, rate));
                }
                Some(wait @ (Wait::Handshake | Wait::Head)) => {
                    return Poll::Ready(self.late_unless_here(session, wait));
                }
                Some(wait) => return Poll::Ready(Event::Late(wait)),
                None => return Poll::Ready(Event::Woken),
            }
        }
    }

    /// Returns [`Event::Late`], unless the peer's data has arrived and the worker was only too busy
    /// to receive it.
    fn late_unless_here(&mut self, session: &mut Session<D>, wait: Wait) -> Event {
        if session.io.reader.unread().len() >= UNREAD_BYTES_MAX {
            return Event::Late(wait);
        }
        let Some(chunk) = self.stream.recv_now() else { return Event::Late(wait) };
        // If this data is still incomplete, the deadline expires at once.
        session.io.deadlines.set(wait, self.worker.driver.now());
        self.take(session, chunk).map_or_else(Event::NoTls, |()| Event::Woken)
    }

    /// Passes output to the driver, if the driver has room.
    fn flush(&mut self, session: &mut Session<D>) -> Result<(), Event> {
        let io = &mut session.io;
        if io.writer.is_empty() || !self.stream.has_room() {
            return Ok(());
        }
        if self.stream.is_sent() {
            io.everything_is_sent(self.stream.progress());
        }
        let most = self.entrance.door.limits.pending_output_bytes_max;
        let given = io
            .writer
            .flush(&self.stream, &mut self.stage, most)
            .map_err(|_error| Event::Broken(io::ErrorKind::InvalidData))?;
        io.unsent_bytes += given.held_bytes;
        self.worker.observed.send(given.bytes);
        Ok(())
    }

    /// The context for a turn.
    fn link<'t>(&'t mut self, io: &'t mut Io<D>) -> Link<'t, D> {
        Link {
            born: self.born(),
            worker: &self.worker,
            door: &self.entrance.door,
            stream: &self.stream,
            stage: &mut self.stage,
            protocol: &mut self.protocol,
            info: &mut self.info,
            io,
            is_by_wicket: self.by_wicket.is_some(),
        }
    }

    fn born(&self) -> Duration {
        Duration::from_millis(self.born)
    }
}

fn milliseconds(time: Duration) -> u64 {
    // Avoids the 128-bit division of `as_millis`.
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_millis()))
}
