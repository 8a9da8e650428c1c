//! What a protocol works with during a turn: the way to the peer, and the times that count.

use super::Io;
use super::timeouts::Wait;
use super::transfer_rate::Meter;
use super::transport::Stage;
use crate::admission::{Admitted, Asking, Refusal};
use crate::listener::Door;
use crate::observe::close_reason::Ended;
use crate::worker::Worker;
use crate::worker::lifecycle::{Order, first_of};
use peregrine_driver::{Driver, Stream};
use peregrine_proto::{Reject, h1};
use peregrine_web::application::Target;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::head::Head;
use peregrine_web::panics::contained;
use peregrine_web::upgrade::OnUpgrade;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

/// A busy connection during one turn.
pub(crate) struct Link<'t, D: Driver> {
    pub(crate) worker: &'t Rc<Worker<D>>,
    /// What the connection shares with those of the same listener.
    pub(crate) door: &'t Door,
    pub(crate) stream: &'t D::Stream,
    pub(crate) stage: &'t mut Stage,
    /// The protocol core of HTTP/1.
    pub(crate) protocol: &'t mut h1::Connection,
    pub(crate) info: &'t mut Rc<ConnectionInfo>,
    pub(crate) io: &'t mut Io<D>,
    /// When the connection began, on the driver's clock.
    pub(crate) born: Duration,
    /// Did the connection come when there was little room?
    pub(crate) is_by_wicket: bool,
}

/// What a turn of a protocol came to.
#[derive(Debug)]
pub(crate) enum Turn {
    /// There is more to do at once.
    Again,
    /// There is more to do, but others should have their turn first. What has come meanwhile is read before the next turn, if it
    /// is for that.
    Yield(For),
    /// Nothing can be done until something happens.
    Wait(For),
    /// Everything is answered. When it is sent, the connection is idle.
    Rest,
    /// Another protocol takes over.
    Upgrade(OnUpgrade),
    /// The connection is to be closed.
    Close(Close),
}

/// What may happen that a protocol waits for, beside its exchange, its deadlines and an order.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct For {
    /// More bytes, or the peer's end.
    pub(crate) bytes: bool,
    /// Room for more to be sent.
    pub(crate) room: bool,
}

/// How a connection is to be closed.
#[derive(Debug)]
pub(crate) struct Close {
    pub(crate) ended: Ended,
    /// The peer may still be sending: for a while the server receives that and throws it away.
    /// Closing a socket that has unread input makes the kernel send a reset, and a reset takes the
    /// answer away from a peer that has not read it yet (RFC 9112 §9.6).
    pub(crate) lingers: bool,
}

impl Turn {
    pub(crate) fn close(ended: Ended) -> Self {
        Self::Close(Close { ended, lingers: false })
    }

    pub(crate) fn linger(ended: Ended) -> Self {
        Self::Close(Close { ended, lingers: true })
    }
}

impl<D: Driver> Link<'_, D> {
    /// Has so much been written that it must be sent before more is produced?
    pub(crate) fn is_full(&self) -> bool {
        self.io.writer.is_full(self.door.limits.pending_output_bytes_max.max(1))
    }

    /// Are parts of files sent by the driver? Where records are made of them, they are read.
    pub(crate) fn sends_files(&self) -> bool {
        matches!(self.stage, Stage::Plain) && self.stream.sends_files()
    }

    /// Is there room to read what follows the present request?
    pub(crate) fn reads_ahead(&self) -> bool {
        self.io.reader.unread().len() < self.door.limits.read_ahead_bytes_max
    }

    /// Has so much been written that nothing more is read? HTTP/2 reads on when it is full: the peer's
    /// frames open windows, reset streams and ask for answers, all of which is little.
    pub(crate) fn is_flooded(&self) -> bool {
        self.io.writer.plain.len() / 2 >= self.door.limits.pending_output_bytes_max.max(1)
    }

    /// Did the peer end its sending side?
    pub(crate) fn is_ended(&self) -> bool {
        self.io.reader.is_ended(self.stage)
    }

    // RFC 9110 §7.4: a request for an origin that this connection is not secured for is misdirected.
    #[inline]
    pub(crate) fn check_origin(&mut self, head: &Head) -> Result<(), Reject> {
        // A trusted proxy has spoken TLS with its client, if it says so.
        let is_secure = self.info.is_secure() || self.info.proxies.is_some();
        if let Err(reject) = head.index().check_scheme(is_secure) {
            return Err(tell_misdirected(reject));
        }
        let Some(hosts) = self.stage.hosts() else { return Ok(()) };
        // Only HTTP/1.0 may name no host.
        let authority = head.authority();
        let is_covered = authority.is_empty() || hosts.cover(authority);
        if is_covered { Ok(()) } else { Err(Reject::Misdirected) }
    }

    /// Lets a request in, or says why not.
    #[inline]
    pub(crate) fn admit(
        &self,
        target: &Target<'_>,
        head: &Head,
        has_content: bool,
    ) -> Result<Admitted, Refusal> {
        let driver = &self.worker.driver;
        let is_by_wicket = self.is_by_wicket;
        let asking = Asking { target, head, info: self.info, has_content, is_by_wicket };
        let overload = &self.worker.overload;
        let admitted = overload.admit(&asking, || (driver.turn_began(), driver.recent_clock()));
        if overload.is_to_be_watched() {
            driver.spawn_boxed(Box::pin(watch_refusing(Rc::clone(self.worker))));
        }
        admitted
    }

    /// The server waits for content from the peer, which is to come at the least rate.
    pub(crate) fn await_content(&mut self) {
        let (now, rate) = (self.worker.driver.now(), self.door.limits.rate());
        let until = self.io.receiving.wait(now, self.io.reader.brought(), rate);
        self.io.deadlines.clear(Wait::Traffic);
        self.io.deadlines.set(Wait::Receive, until);
    }

    /// The server waits for content, and is answering already: either side may be the next to speak.
    pub(crate) fn await_word(&mut self) {
        self.io.deadlines.clear(Wait::Receive);
        let rate = self.door.limits.conversation();
        let until = self.io.talking.wait(self.worker.driver.now(), self.moved(), rate);
        self.io.deadlines.set(Wait::Traffic, until);
    }

    /// Did nobody say anything in a conversation for too long?
    pub(crate) fn is_silent(&mut self) -> bool {
        let rate = self.door.limits.conversation();
        self.io.talking.is_late(self.worker.driver.now(), self.moved(), rate)
    }

    /// Bytes that moved, either way.
    fn moved(&self) -> u64 {
        self.io.reader.received().wrapping_add(self.stream.progress())
    }

    /// The server does not wait for content any more, for now.
    pub(crate) fn pause_content(&mut self) {
        let (now, rate) = (self.worker.driver.now(), self.door.limits.rate());
        self.io.receiving.pause(now, self.io.reader.brought(), rate);
        self.io.talking = Meter::default();
        self.io.deadlines.clear(Wait::Receive);
        self.io.deadlines.clear(Wait::Traffic);
    }

    /// Is no request to follow the present one, because the worker drains or the connection is old?
    pub(crate) fn is_to_close(&self) -> bool {
        let has_life = self.door.limits.lifetime_max.is_some();
        self.worker.order() >= Order::LameDuck
            || has_life && self.worker.driver.now() >= self.end_of_life()
    }

    /// When the connection has lived for as long as it may.
    pub(crate) fn end_of_life(&self) -> Duration {
        self.door.limits.end_of_life(self.born)
    }
}

/// Notices when nobody is refused any more because nobody asks.
async fn watch_refusing<D: Driver>(worker: Rc<Worker<D>>) {
    let alarm = worker.wheel.alarm();
    while let Some(at) = worker.overload.look_again_at(worker.driver.now())
        && worker.order() < Order::Cut
    {
        first_of(worker.driver.sleep_until(at), worker.ordered(&alarm, Order::Cut)).await;
    }
}

/// Whoever put a gateway before this server should hear why it answers 421, once.
#[cold]
fn tell_misdirected(reject: Reject) -> Reject {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        contained(|| tracing::warn!(target: "peregrine",
            "a request for https came over a plain connection and was answered 421: if a gateway before \
             this server speaks TLS with the clients, name it in Server::trusted_proxies, or set \
             Limits::behind_gateway"));
    });
    reject
}
