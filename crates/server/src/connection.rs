//! One HTTP/1 connection, from its first byte to its last, as straight-line code.
//!
//! Waiting for a request, a connection is the future of [`serve`] and holds no buffers. When bytes
//! come it leases a desk and works on them in [`converse`], whose future lives on the desk too, until
//! everything is answered and sent; then it gives the desk back.

use crate::deadline::Alarm;
use crate::ended::Ended;
use crate::exchange::{self, Turn};
use crate::inbox::Inbox;
use crate::link::{Filled, Link};
use crate::observe::Open;
use crate::respond;
use crate::stage::Stage;
use crate::worker::{Cut, Interrupt, Order, Until, Worker};
use peregrine_driver::{Address, Driver, Stream};
use peregrine_proto::h1::{self, Event, Next, Waiting};
use peregrine_proto::{HeadIndex, Method, Reject};
use peregrine_slot::FutureSlot;
use peregrine_web::connection::{ConnectionInfo, Peer};
use peregrine_web::head::Head;
use peregrine_web::route::readable;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Buffers that grew beyond this while they were on a desk are freed when it is given back.
const DESK_BYTES_MAX: usize = 64 * 1024;

/// What a connection works with, leased from its worker.
pub(crate) struct Desk<C> {
    inbox: Inbox<C>,
    outbox: Vec<u8>,
    wire: Vec<u8>,
    /// The handler's future.
    handler: FutureSlot,
    /// For the calls of the protocol core that meet no head.
    spare: HeadIndex,
}

impl<C: Deref<Target = [u8]>> Default for Desk<C> {
    fn default() -> Self {
        Self {
            inbox: Inbox::new(),
            outbox: Vec::new(),
            wire: Vec::new(),
            handler: FutureSlot::new(),
            spare: HeadIndex::default(),
        }
    }
}

impl<C: Deref<Target = [u8]>> Desk<C> {
    pub(crate) fn reset(&mut self) {
        self.inbox.reset(DESK_BYTES_MAX);
        for buffer in [&mut self.outbox, &mut self.wire] {
            buffer.clear();
            if buffer.capacity() > DESK_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
    }
}

/// Serves one connection to its end.
///
/// What this future keeps is what an idle connection costs, so it keeps little: it waits here by
/// itself, and everything larger lives on a desk.
#[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice")]
pub(crate) fn serve<D: Driver>(
    worker: Rc<Worker<D>>,
    stream: D::Stream,
    mut stage: Stage,
    open: Open,
) -> impl Future<Output = ()> {
    async move {
        let worker = &*worker;
        let alarm = worker.wheel.alarm();
        let mut info = Rc::new(ConnectionInfo {
            peer: peer(stream.peer()),
            local: worker.local(peer(stream.local())),
            ..ConnectionInfo::default()
        });
        let mut protocol = h1::Connection::new(&worker.protocol);
        // Bytes that complete nothing, such as a piece of a TLS record, do not renew the peer's time.
        let now = worker.driver.now();
        let mut patience = Patience { born: milliseconds(now), since: milliseconds(now) };
        loop {
            let received = {
                let until = patience.until(worker, &stage, &protocol);
                let recv = pin!(stream.recv());
                worker.within(&alarm, until, Order::Drain, recv).await
            };
            let first = match patience.judge(worker, &stage, &protocol, received) {
                Ok(chunk) => chunk,
                Err(ended) => {
                    let mut lease = worker.lease();
                    lease.place.place(say_goodbye(worker, &alarm, &stream, &mut stage)).await;
                    worker.give_back(lease);
                    return log(&info, &open, &ended);
                }
            };
            let mut lease = worker.lease();
            let desk = &mut *lease.desk;
            let link = Link {
                worker,
                stream: &stream,
                stage: &mut stage,
                alarm: &alarm,
                inbox: &mut desk.inbox,
                outbox: &mut desk.outbox,
                wire: &mut desk.wire,
                is_ended: false,
            };
            let talk = Talk {
                link,
                protocol: &mut protocol,
                spare: &mut desk.spare,
                info: &mut info,
                born: patience.born(),
                is_last: false,
                request: None,
            };
            let result = lease.place.place(converse(talk, &mut desk.handler, first)).await;
            worker.give_back(lease);
            match result {
                Ok(Progress::None) => {}
                Ok(Progress::Made) => patience.since = milliseconds(worker.driver.now()),
                Err(ended) => return log(&info, &open, &ended),
            }
        }
    }
}

fn log(info: &ConnectionInfo, open: &Open, ended: &Ended) {
    open.ended(ended);
    tracing::debug!(target: "peregrine", peer = %info.peer, %ended, "connection ended");
}

/// From when a connection's waits are counted, in milliseconds of the driver's clock. Every idle
/// connection keeps this, so it is small.
#[derive(Clone, Copy)]
struct Patience {
    /// When the connection began.
    born: u64,
    /// When the handshake or the last exchange ended.
    since: u64,
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Did working bring the connection forward?
enum Progress {
    /// A request was answered, or the handshake is complete.
    Made,
    None,
}

impl Patience {
    fn born(self) -> Duration {
        Duration::from_millis(self.born)
    }

    /// How long to wait for the first bytes of a request.
    fn until<D: Driver>(
        self,
        worker: &Worker<D>,
        stage: &Stage,
        protocol: &h1::Connection,
    ) -> Until {
        let limits = &worker.limits;
        let patience = match (stage.is_handshaking(), protocol.waiting()) {
            (true, _) => limits.handshake_timeout,
            (false, Waiting::FirstByte) => limits.first_byte_timeout,
            (false, _) => limits.idle_timeout,
        };
        let age_max = limits.lifetime_max.unwrap_or(Duration::MAX);
        let end_of_life = self.born().saturating_add(age_max);
        Until::At(end_of_life.min(Duration::from_millis(self.since).saturating_add(patience)))
    }

    /// What came of waiting: the first bytes, or the reason to end.
    fn judge<D: Driver, C: Deref<Target = [u8]>>(
        self,
        worker: &Worker<D>,
        stage: &Stage,
        protocol: &h1::Connection,
        received: Result<io::Result<C>, Interrupt>,
    ) -> Result<C, Ended> {
        match received {
            Ok(Ok(chunk)) if chunk.is_empty() => Err(Ended::PeerClosed),
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(Ended::Broken(error.kind())),
            Err(Interrupt::Order) => Err(Ended::Drained),
            Err(Interrupt::Deadline) => Err(match worker.limits.lifetime_max {
                Some(age) if self.born().saturating_add(age) <= worker.driver.now() => {
                    Ended::Lifetime
                }
                _ if stage.is_handshaking() => Ended::HandshakeLate,
                _ if protocol.waiting() == Waiting::FirstByte => Ended::FirstByteLate,
                _ => Ended::Idle,
            }),
        }
    }
}

/// Says goodbye on a connection on which nothing is in progress.
async fn say_goodbye<D: Driver>(
    worker: &Worker<D>,
    alarm: &Alarm,
    stream: &D::Stream,
    stage: &mut Stage,
) {
    let mut out = Vec::new();
    if let Stage::Tls(tls) = stage {
        tls.session.close(&mut out);
    }
    let farewell = pin!(async {
        if !out.is_empty() {
            let _ = stream.send(out).await;
        }
        let _ = stream.finish().await;
    });
    let until = Until::In(worker.limits.linger_timeout);
    let _ = worker.within(alarm, until, Order::Cut, farewell).await;
}

/// A connection that has something to do.
pub(crate) struct Talk<'c, D: Driver> {
    pub(crate) link: Link<'c, D>,
    pub(crate) protocol: &'c mut h1::Connection,
    pub(crate) spare: &'c mut HeadIndex,
    pub(crate) info: &'c mut Rc<ConnectionInfo>,
    born: Duration,
    /// The peer said that it sends no further request.
    pub(crate) is_last: bool,
    /// The last request, until its response is sent.
    pub(crate) request: Option<Asked<'c>>,
}

/// What names a request in the report of a shutdown.
pub(crate) struct Asked<'c> {
    pub(crate) method: Method,
    /// The route's pattern: a path may hold what no report should.
    pub(crate) pattern: Option<&'c str>,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = self.method.name().unwrap_or("(extension)");
        write!(f, "{method} {}", readable(self.pattern.unwrap_or("(no route)")))
    }
}

/// Answers requests until none is left unanswered. `Ok`: the connection is idle.
async fn converse<D: Driver>(
    mut talk: Talk<'_, D>,
    handler: &mut FutureSlot,
    first: <D::Stream as Stream>::Chunk,
) -> Result<Progress, Ended> {
    let result = talk.run(handler, first).await;
    if matches!(result, Err(Ended::Cut)) {
        let worker = talk.link.worker;
        worker.cut.borrow_mut().push(Cut {
            peer: talk.info.peer.to_string(),
            request: talk.request.take().map(|asked| asked.to_string()),
            age: worker.driver.now() - talk.born,
        });
    }
    result
}

impl<D: Driver> Talk<'_, D> {
    async fn run(
        &mut self,
        handler: &mut FutureSlot,
        first: <D::Stream as Stream>::Chunk,
    ) -> Result<Progress, Ended> {
        let worker = self.link.worker;
        let mut progress = Progress::None;
        if self.link.stage.is_handshaking() {
            Box::pin(self.shake_hands(first)).await?;
            progress = Progress::Made;
        } else {
            self.link.take(first).await?;
        }
        let mut head = Head::take();
        let mut head_deadline = None;
        loop {
            let unread = self.link.inbox.unread();
            let (used, event) = self.protocol.receive(&worker.protocol, unread, head.index_mut());
            match event {
                Event::Head(framing) => {
                    let skip = usize::from(framing.skip);
                    head.set_bytes(&self.link.inbox.unread()[skip..used]);
                    self.link.inbox.consume(used);
                    head_deadline = None;
                    worker.observed.request();
                    let turn = exchange::run(self, handler, head, framing).await?;
                    self.after(turn).await?;
                    progress = Progress::Made;
                    head = Head::take();
                }
                Event::NeedInput => {
                    self.link.inbox.consume(used);
                    self.link.flush().await?;
                    self.request = None;
                    if self.link.inbox.is_empty() && is_between(self.protocol.waiting()) {
                        self.rest().await?;
                        return Ok(progress);
                    }
                    let now = worker.driver.now();
                    let late = now.saturating_add(worker.limits.head_timeout);
                    let at = *head_deadline.get_or_insert(late);
                    Box::pin(self.fill_head(at)).await?;
                }
                Event::Reject(reject) => return Err(Box::pin(self.reject(reject)).await),
                Event::Closed => return Err(Box::pin(self.close(Ended::Agreed)).await),
                Event::Data(_) | Event::End | Event::NeedRespond | Event::Upgraded => {
                    unreachable!("an exchange leaves the protocol before the next head")
                }
            }
        }
    }

    /// The handshake of TLS, up to the first plaintext or the wait for it.
    async fn shake_hands(&mut self, first: <D::Stream as Stream>::Chunk) -> Result<(), Ended> {
        let worker = self.link.worker;
        let until = Until::At(self.born.saturating_add(worker.limits.handshake_timeout));
        let (wheel, alarm) = (&worker.wheel, self.link.alarm);
        let _one = worker.handshakes.begin(wheel, alarm, worker.limits.handshakes_max);
        self.link.take(first).await?;
        while self.link.stage.is_handshaking() {
            // A record that completes the handshake and holds no plaintext leaves `fill` waiting
            // for more, so the stage is driven by hand here.
            let recv = pin!(self.link.stream.recv());
            match worker.within(self.link.alarm, until, Order::Cut, recv).await {
                Ok(Ok(chunk)) if chunk.is_empty() => return Err(Ended::PeerLeft),
                Ok(Ok(chunk)) => self.link.take(chunk).await?,
                Ok(Err(error)) => return Err(Ended::Broken(error.kind())),
                Err(Interrupt::Deadline) => return Err(Ended::HandshakeLate),
                Err(Interrupt::Order) => return Err(Ended::Cut),
            };
        }
        let tls = self.link.stage.info().map(Arc::new);
        *self.info = Rc::new(ConnectionInfo { tls, ..(**self.info).clone() });
        Ok(())
    }

    /// Everything is answered and sent. May the connection wait for another request?
    async fn rest(&mut self) -> Result<(), Ended> {
        if self.link.is_ended || self.link.stage.is_closed() {
            return Err(Box::pin(self.close(Ended::PeerClosed)).await);
        }
        Ok(())
    }

    async fn fill_head(&mut self, at: Duration) -> Result<(), Ended> {
        match self.link.fill(Until::At(at)).await? {
            Filled::Bytes => Ok(()),
            Filled::End => match self.protocol.close_receive() {
                Event::Reject(reject) => Err(self.reject(reject).await),
                _ => Err(self.close(Ended::PeerClosed).await),
            },
            Filled::Late => {
                respond::head_late(self);
                Err(self.close_unread(Ended::HeadLate).await)
            }
        }
    }

    /// After a response: the next request, the rest of this one's body, or the end.
    async fn after(&mut self, turn: Turn) -> Result<(), Ended> {
        if let Turn::Upgrade(upgrade) = turn {
            return Err(Box::pin(crate::upgrade::run(self, upgrade)).await);
        }
        loop {
            match self.protocol.next() {
                Next::Request if self.link.is_full() => return self.link.flush().await,
                Next::Request => return Ok(()),
                Next::FinishBody => Box::pin(self.throw_away_body()).await?,
                Next::Close | Next::Respond | Next::Upgraded => {
                    let is_whole = self.is_last && self.link.inbox.is_empty();
                    let ended = match turn {
                        Turn::Answered if is_whole => {
                            return Err(Box::pin(self.close(Ended::Agreed)).await);
                        }
                        Turn::Panicked => Ended::HandlerPanicked,
                        Turn::Rejected(reject) => Ended::Rejected(reject),
                        _ if self.link.worker.order() >= Order::Drain => Ended::Drained,
                        _ => Ended::Agreed,
                    };
                    return Err(Box::pin(self.close_unread(ended)).await);
                }
            }
        }
    }

    /// Reads what the handler left of its request's body, so that the next request can be found.
    async fn throw_away_body(&mut self) -> Result<(), Ended> {
        // The answer first: a peer that waits for it may never send the rest.
        self.link.flush().await?;
        let worker = self.link.worker;
        let until = Until::At(worker.driver.now().saturating_add(worker.limits.body_grace));
        while self.protocol.next() == Next::FinishBody {
            let unread = self.link.inbox.unread();
            let (used, event) = self.protocol.receive(&worker.protocol, unread, self.spare);
            self.link.inbox.consume(used);
            match event {
                Event::NeedInput => match self.link.fill(until).await? {
                    Filled::Bytes => {}
                    Filled::End => return Err(self.close(Ended::PeerLeft).await),
                    Filled::Late => return Err(self.close_unread(Ended::BodySlow).await),
                },
                Event::Reject(reject) => {
                    return Err(self.close_unread(Ended::Rejected(reject)).await);
                }
                Event::Closed => return Err(self.close_unread(Ended::Agreed).await),
                _ => {}
            }
        }
        Ok(())
    }

    /// Answers a broken rule and closes.
    pub(crate) async fn reject(&mut self, reject: Reject) -> Ended {
        respond::rejected(self, reject);
        self.close_unread(Ended::Rejected(reject)).await
    }

    async fn close(&mut self, ended: Ended) -> Ended {
        self.link.close(false).await.err().unwrap_or(ended)
    }

    /// Closes while the peer may still be sending.
    pub(crate) async fn close_unread(&mut self, ended: Ended) -> Ended {
        let unread = !self.link.is_ended;
        self.link.close(unread).await.err().unwrap_or(ended)
    }

    /// No request is to follow the present one, because the worker drains or the connection is old.
    pub(crate) fn drain_if_due(&mut self) {
        let worker = self.link.worker;
        let is_old = worker
            .limits
            .lifetime_max
            .is_some_and(|lifetime| worker.driver.now() >= self.born.saturating_add(lifetime));
        if is_old || worker.order() >= Order::Drain {
            self.protocol.drain();
        }
    }
}

fn is_between(waiting: Waiting) -> bool {
    matches!(waiting, Waiting::FirstByte | Waiting::Idle)
}

fn peer(address: Address) -> Peer {
    match address {
        Address::Tcp(address) => Peer::Tcp(address),
        Address::Unix(path) => Peer::Unix(path),
        Address::Unknown => Peer::None,
    }
}
