//! One connection, from its first byte to its last: the loop that drives everything else.
//!
//! The connection is a future of one state. Waiting for a request it is `idle` and holds no buffers.
//! When bytes come it leases a [`Session`] and works, turn by turn: the protocol does what can be done
//! ([`Connection::turn`]), then [`Connection::wait`] hands what was written to the driver and asks for
//! whatever may happen next: bytes, room, a deadline, an order. That is the only place that waits.

use crate::closing::Closing;
use crate::deadlines::Wait;
use crate::detached;
use crate::ended::Ended;
use crate::handshakes::Handshake;
use crate::http1::Http1;
use crate::link::{Close, For, Io, Link, Turn};
use crate::observe::Open;
use crate::stage::Stage;
use crate::upgraded::Upgrade;
use crate::wheel::Alarm;
use crate::worker::{Cut, Order, Worker};
use peregrine_driver::{Address, Driver, Stream};
use peregrine_proto::h1::{self, Waiting};
use peregrine_tls::Reject as TlsReject;
use peregrine_web::connection::{ConnectionInfo, Peer};
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Sessions kept for the next connections that have something to do; more are freed.
const SESSIONS_MAX: usize = 128;

/// Buffers that grew beyond this on a lease are freed when it is given back.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Things that may happen to a connection before others have their turn.
const EVENTS_PER_POLL: usize = 64;

/// What connections of a worker lease while they have something to do.
pub(crate) struct Sessions<D: Driver>(RefCell<Vec<Box<Session<D>>>>);

/// What a connection has while it works, and not while it waits for a request.
struct Session<D: Driver> {
    io: Io<D>,
    http1: Http1,
    phase: Phase,
}

/// What has the connection at present.
enum Phase {
    /// TLS shakes hands.
    Handshake(Handshake),
    /// Requests and responses.
    Http1,
    /// Another protocol.
    Upgraded(Box<Upgrade>),
    /// The end.
    Closing(Closing),
}

/// What came of waiting.
enum Event {
    /// Bytes came, or the peer's end, or there is room, or it is time to look again.
    Woken,
    /// The time of a wait is over.
    Late(Wait),
    /// The connection broke.
    Broken(io::ErrorKind),
    /// What came is no TLS.
    NoTls(TlsReject),
    /// It is to end at once.
    Cut,
}

/// A connection. What an idle one costs is what this struct has.
pub(crate) struct Connection<D: Driver> {
    worker: Rc<Worker<D>>,
    sessions: Rc<Sessions<D>>,
    stream: D::Stream,
    stage: Stage,
    alarm: Alarm,
    protocol: h1::Connection,
    info: Rc<ConnectionInfo>,
    open: Open,
    /// When the connection began, in milliseconds of the driver's clock.
    born: u64,
    /// When the handshake or the last exchange ended.
    since: u64,
    session: Option<Box<Session<D>>>,
}

impl<D: Driver> Unpin for Connection<D> {}

impl<D: Driver> Default for Sessions<D> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<D: Driver> Sessions<D> {
    fn lease(&self) -> Box<Session<D>> {
        let kept = self.0.borrow_mut().pop();
        kept.unwrap_or_else(|| {
            Box::new(Session { io: Io::new(), http1: Http1::default(), phase: Phase::Http1 })
        })
    }

    fn give_back(&self, mut session: Box<Session<D>>) {
        session.io.reset(BUFFER_BYTES_MAX);
        session.http1.reset();
        session.phase = Phase::Http1;
        let mut kept = self.0.borrow_mut();
        if kept.len() < SESSIONS_MAX {
            kept.push(session);
        }
    }
}

impl<D: Driver> Connection<D> {
    pub(crate) fn new(
        worker: Rc<Worker<D>>,
        sessions: Rc<Sessions<D>>,
        stream: D::Stream,
        stage: Stage,
        open: Open,
    ) -> Self {
        let now = milliseconds(worker.driver.now());
        let info = Rc::new(ConnectionInfo {
            peer: peer(stream.peer()),
            local: worker.local(peer(stream.local())),
            ..ConnectionInfo::default()
        });
        let protocol = h1::Connection::new(&worker.protocol);
        let alarm = worker.wheel.alarm();
        let (born, since, session) = (now, now, None);
        Self { worker, sessions, stream, stage, alarm, protocol, info, open, born, since, session }
    }
}

impl<D: Driver> Future for Connection<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let mut session = match this.session.take() {
                Some(session) => session,
                None => match this.poll_idle(context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(begun) => this.begin(begun),
                },
            };
            match this.work(&mut session, context) {
                Poll::Pending => {
                    // The driver's buffers are for those who have something to do.
                    session.io.reader.settle();
                    this.session = Some(session);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    let has_progressed = session.http1.has_answered();
                    this.sessions.give_back(session);
                    if has_progressed {
                        this.since = milliseconds(this.worker.driver.now());
                    }
                }
                Poll::Ready(Some(ended)) => {
                    this.sessions.give_back(session);
                    this.open.ended(&ended);
                    let peer = &this.info.peer;
                    tracing::debug!(target: "peregrine", %peer, %ended, "connection ended");
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// The first bytes of what there is to do, or the reason to end.
type Begun<D> = Result<<<D as Driver>::Stream as Stream>::Chunk, Ended>;

impl<D: Driver> Connection<D> {
    /// Waits for the first bytes of a request, or of a handshake.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<Begun<D>> {
        match self.stream.poll_recv(context) {
            Poll::Ready(Ok(chunk)) if chunk.is_empty() => {
                return Poll::Ready(Err(Ended::PeerClosed));
            }
            Poll::Ready(Ok(chunk)) => return Poll::Ready(Ok(chunk)),
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Ended::Broken(error.kind()))),
            Poll::Pending => {}
        }
        let (worker, limits) = (&*self.worker, &self.worker.limits);
        let patience = match (self.stage.is_handshaking(), self.protocol.waiting()) {
            (true, _) => limits.handshake_timeout,
            (false, Waiting::FirstByte) => limits.first_byte_timeout,
            (false, _) => limits.idle_timeout,
        };
        let since = Duration::from_millis(self.since);
        let end_of_life = self.born().saturating_add(limits.lifetime_max.unwrap_or(Duration::MAX));
        let drained = match worker.order() {
            Order::Serve | Order::LameDuck => Duration::MAX,
            // A request may be under way to a connection that is idle.
            Order::Drain => worker.ordered_at().saturating_add(limits.drain_idle_timeout),
            Order::Cut => Duration::ZERO,
        };
        let until = since.saturating_add(patience).min(end_of_life).min(drained);
        let is_drained = drained != Duration::MAX && drained <= worker.driver.now();
        self.alarm.set(until);
        if !is_drained && self.alarm.poll(context).is_pending() {
            return Poll::Pending;
        }
        let now = worker.driver.now();
        Poll::Ready(Err(match () {
            () if drained <= now => Ended::Drained,
            () if end_of_life <= now => Ended::Lifetime,
            () if self.stage.is_handshaking() => Ended::HandshakeLate,
            () if self.protocol.waiting() == Waiting::FirstByte => Ended::FirstByteLate,
            () => Ended::Idle,
        }))
    }

    /// Leases what it takes to work.
    fn begin(&mut self, begun: Begun<D>) -> Box<Session<D>> {
        let mut session = self.sessions.lease();
        match begun {
            Ok(chunk) => {
                if self.stage.is_handshaking() {
                    let (worker, limits) = (&*self.worker, &self.worker.limits);
                    let handshakes = &worker.handshakes;
                    let handshake =
                        handshakes.begin(&worker.wheel, &self.alarm, limits.handshakes_max);
                    session.phase = Phase::Handshake(handshake);
                    let until = self.born().saturating_add(limits.handshake_timeout);
                    session.io.deadlines.set(Wait::Handshake, until);
                }
                if let Err(reject) = self.take(&mut session, chunk) {
                    self.refuse_tls(&mut session, &reject);
                }
            }
            Err(ended) => self.end(&mut session, Close { ended, lingers: false }),
        }
        session
    }

    /// Works until there is nothing to do. Ready when the connection is idle or, with its reason, over.
    fn work(&mut self, session: &mut Session<D>, context: &mut Context<'_>) -> Poll<Option<Ended>> {
        let mut events = 0;
        loop {
            let what = match self.turn(session, context) {
                Some(Turn::Again) => continue,
                Some(Turn::Yield) => {
                    events = EVENTS_PER_POLL;
                    For::default()
                }
                Some(Turn::Wait(what)) => what,
                Some(Turn::Rest) => {
                    let flushed = self.flush(session);
                    match flushed {
                        // Who takes a response slowly is no idle peer.
                        Ok(_) if session.io.writer.is_empty() && self.stream.is_sent() => {
                            return Poll::Ready(None);
                        }
                        Ok(_) => For { bytes: true, room: true },
                        Err(event) => match self.on_event(session, event) {
                            Some(ended) => return Poll::Ready(Some(ended)),
                            None => continue,
                        },
                    }
                }
                Some(Turn::Upgrade(upgrade)) => {
                    session.io.deadlines.clear_all();
                    session.io.hold = Some(self.worker.driver.hold());
                    session.phase = Phase::Upgraded(Box::new(Upgrade::new(upgrade)));
                    continue;
                }
                // Nobody is there to hear a goodbye, or nobody who is owed one.
                Some(Turn::Close(Close {
                    ended: ended @ (Ended::PeerLeft | Ended::HandshakeLate),
                    ..
                })) => return Poll::Ready(Some(self.abandon(session, ended))),
                Some(Turn::Close(close)) => {
                    self.end(session, close);
                    continue;
                }
                None => return Poll::Ready(Some(self.over(session))),
            };
            events += 1;
            let is_enough = events > EVENTS_PER_POLL;
            let waited = self.wait(session, if is_enough { For::default() } else { what }, context);
            if is_enough && waited.is_pending() {
                context.waker().wake_by_ref();
            }
            let Poll::Ready(event) = waited else { return Poll::Pending };
            if let Some(ended) = self.on_event(session, event) {
                return Poll::Ready(Some(ended));
            }
        }
    }

    /// Lets what has the connection do what can be done. `None`: the connection is over.
    fn turn(&mut self, session: &mut Session<D>, context: &mut Context<'_>) -> Option<Turn> {
        let born = self.born();
        let mut link = Link {
            worker: &self.worker,
            stream: &self.stream,
            stage: &mut self.stage,
            info: &mut self.info,
            io: &mut session.io,
            born,
        };
        Some(match &mut session.phase {
            Phase::Http1 => session.http1.turn(&mut self.protocol, &mut link, context),
            Phase::Handshake(handshake) => {
                let turn = shake_hands(handshake, &mut link);
                if matches!(turn, Turn::Again) {
                    self.since = milliseconds(self.worker.driver.now());
                    session.phase = Phase::Http1;
                }
                turn
            }
            Phase::Upgraded(upgrade) => upgrade.turn(&mut link, context),
            Phase::Closing(closing) => return closing.turn(&mut link),
        })
    }

    /// Waits until something happens: the only place that does. What was written goes to the driver
    /// first.
    fn wait(
        &mut self,
        session: &mut Session<D>,
        what: For,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        // Whoever waits for bytes learns from them that the connection broke.
        if what.room || !what.bytes || !session.io.writer.is_empty() {
            match self.stream.poll_sent(context) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Broken(error.kind())),
                Poll::Ready(Ok(())) => {
                    if let Err(event) = self.flush(session) {
                        return Poll::Ready(event);
                    }
                    if what.room {
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
        if what.bytes && !session.io.reader.is_ended(&self.stage) {
            match self.stream.poll_recv(context) {
                Poll::Ready(Ok(chunk)) if chunk.is_empty() => {
                    session.io.reader.end();
                    return Poll::Ready(Event::Woken);
                }
                Poll::Ready(Ok(chunk)) => {
                    return Poll::Ready(match self.take(session, chunk) {
                        Ok(()) => Event::Woken,
                        Err(reject) => Event::NoTls(reject),
                    });
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Broken(error.kind())),
                Poll::Pending => {}
            }
        }
        self.await_deadline(session, context)
    }

    /// Waits for the first deadline, or for the order to end.
    fn await_deadline(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        let (worker, io) = (&*self.worker, &mut session.io);
        if worker.order() >= Order::Cut {
            return Poll::Ready(Event::Cut);
        }
        let rate = worker.limits.rate();
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
                    let received = io.reader.received();
                    if io.receiving.is_late(now, received, rate) {
                        return Poll::Ready(Event::Late(Wait::Receive));
                    }
                    io.deadlines.set(Wait::Receive, io.receiving.wait(now, received, rate));
                }
                Some(wait) => return Poll::Ready(Event::Late(wait)),
                None => return Poll::Ready(Event::Woken),
            }
        }
    }

    /// Gives what is written to the driver, if it can take it.
    fn flush(&mut self, session: &mut Session<D>) -> Result<bool, Event> {
        let io = &mut session.io;
        if io.writer.is_empty() || !self.stream.is_sent() {
            return Ok(false);
        }
        io.everything_is_sent(self.stream.progress());
        self.worker.observed.send();
        io.writer
            .flush(&self.stream, &mut self.stage)
            .map_err(|_error| Event::Broken(io::ErrorKind::InvalidData))
    }

    fn take(
        &mut self,
        session: &mut Session<D>,
        chunk: <D::Stream as Stream>::Chunk,
    ) -> Result<(), TlsReject> {
        let io = &mut session.io;
        io.reader.take(chunk, &mut self.stage, &mut io.writer.records)
    }

    /// Something happened that a turn does not see by itself. The reason, if that is the end.
    fn on_event(&mut self, session: &mut Session<D>, event: Event) -> Option<Ended> {
        match event {
            Event::Woken => None,
            Event::NoTls(reject) => {
                self.refuse_tls(session, &reject);
                None
            }
            Event::Cut => Some(self.cut(session)),
            Event::Broken(kind) => Some(match &session.phase {
                Phase::Http1 if session.http1.is_busy() => self.abandon(session, Ended::PeerLeft),
                _ => self.abandon(session, Ended::Broken(kind)),
            }),
            Event::Late(Wait::Send) => Some(self.abandon(session, Ended::WriteStalled)),
            Event::Late(wait) => self.late(session, wait),
        }
    }

    fn late(&mut self, session: &mut Session<D>, wait: Wait) -> Option<Ended> {
        let born = self.born();
        let close = match &mut session.phase {
            Phase::Handshake(_) => return Some(self.abandon(session, Ended::HandshakeLate)),
            Phase::Upgraded(_) => Close { ended: Ended::Idle, lingers: false },
            Phase::Closing(_) => return Some(self.over(session)),
            Phase::Http1 => {
                let mut link = Link {
                    worker: &self.worker,
                    stream: &self.stream,
                    stage: &mut self.stage,
                    info: &mut self.info,
                    io: &mut session.io,
                    born,
                };
                match session.http1.late(wait, &mut self.protocol, &mut link) {
                    Turn::Close(close) => close,
                    _ => return None,
                }
            }
        };
        self.end(session, close);
        None
    }

    /// Begins to close the connection.
    fn end(&mut self, session: &mut Session<D>, close: Close) {
        if let Ended::Rejected(_) | Ended::TlsFailed(_) | Ended::PlainOnTls = &close.ended {
            self.worker.observed.refusal(&close.ended);
        }
        if matches!(close.ended, Ended::WriteStalled | Ended::ExchangeLate) {
            self.stream.reset_on_drop();
        }
        if matches!(session.phase, Phase::Http1) {
            self.keep_promise(session);
        }
        session.io.hold = None;
        session.io.deadlines.clear_all();
        session.phase = Phase::Closing(Closing::new(close));
    }

    /// The connection is over without a goodbye.
    fn abandon(&mut self, session: &mut Session<D>, ended: Ended) -> Ended {
        if !self.stream.is_sent() {
            self.stream.reset_on_drop();
        }
        match std::mem::replace(&mut session.phase, Phase::Http1) {
            // Why it was to be closed says more, as long as the answer may have arrived.
            Phase::Closing(closing) if !closing.is_sending() => return closing.into_ended(),
            Phase::Upgraded(mut upgrade) => upgrade.fail(),
            Phase::Http1 => self.keep_promise(session),
            Phase::Handshake(_) | Phase::Closing(_) => {}
        }
        ended
    }

    /// The connection was closed as it should.
    fn over(&mut self, session: &mut Session<D>) -> Ended {
        match std::mem::replace(&mut session.phase, Phase::Http1) {
            Phase::Closing(closing) => closing.into_ended(),
            _ => unreachable!("only a closing connection is over by itself"),
        }
    }

    /// The connection ends in the middle of its work, and the report of the shutdown names it.
    fn cut(&mut self, session: &mut Session<D>) -> Ended {
        if let Phase::Closing(closing) = &session.phase
            && !closing.is_sending()
        {
            return self.over(session);
        }
        if !self.stream.is_sent() {
            self.stream.reset_on_drop();
        }
        self.worker.cut.borrow_mut().push(Cut {
            peer: self.info.peer.to_string(),
            request: session.http1.asked().map(ToString::to_string),
            age: self.worker.driver.now().saturating_sub(self.born()),
        });
        Ended::Cut
    }

    /// A handler that was promised to run to its end does so as a task of the worker's.
    fn keep_promise(&mut self, session: &mut Session<D>) {
        session.http1.fail();
        if let Some(exchange) = session.http1.take_promised() {
            let left = session.io.deadlines.of(Wait::Handler);
            let peer = self.info.peer.to_string();
            detached::spawn(&self.worker, exchange, left, peer, self.born());
        }
    }

    fn refuse_tls(&mut self, session: &mut Session<D>, reject: &TlsReject) {
        let ended = match reject {
            TlsReject::PlainHttp => Ended::PlainOnTls,
            reject => Ended::TlsFailed(reject.to_string()),
        };
        if let Phase::Upgraded(upgrade) = &mut session.phase {
            upgrade.fail();
        }
        self.end(session, Close { ended, lingers: true });
    }

    fn born(&self) -> Duration {
        Duration::from_millis(self.born)
    }
}

/// Goes on with a handshake. [`Turn::Again`]: it is complete.
fn shake_hands<D: Driver>(handshake: &Handshake, link: &mut Link<'_, D>) -> Turn {
    if !link.stage.is_handshaking() {
        let tls = link.stage.info().map(Arc::new);
        *link.info = Rc::new(ConnectionInfo { tls, ..(**link.info).clone() });
        link.io.deadlines.clear(Wait::Handshake);
        return Turn::Again;
    }
    if handshake.is_over() {
        return Turn::close(Ended::HandshakeLate);
    }
    if link.is_ended() {
        return Turn::close(Ended::PeerLeft);
    }
    Turn::Wait(For { bytes: true, room: false })
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn peer(address: Address) -> Peer {
    match address {
        Address::Tcp(address) => Peer::Tcp(address),
        Address::Unix(path) => Peer::Unix(path),
        Address::Unknown => Peer::None,
    }
}
