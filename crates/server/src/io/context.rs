//! What a protocol can access during a turn: the connection's input, output and deadlines, and the
//! state of its listener and worker.

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
    /// The state shared by the connections of the listener.
    pub(crate) door: &'t Door,
    pub(crate) stream: &'t D::Stream,
    pub(crate) stage: &'t mut Stage,
    /// The protocol core of HTTP/1.
    pub(crate) protocol: &'t mut h1::Connection,
    pub(crate) info: &'t mut Rc<ConnectionInfo>,
    pub(crate) io: &'t mut Io<D>,
    /// When the connection was accepted, on the driver's clock.
    pub(crate) born: Duration,
    /// Whether the connection uses a reserved slot.
    pub(crate) is_by_wicket: bool,
}

/// What the connection must do after a protocol's turn.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Run another turn at once.
    Again,
    /// Run another turn after other tasks have been polled. If `For` includes bytes, receive before
    /// that.
    Yield(For),
    /// Wait until something happens.
    Wait(For),
    /// No request is in progress. The connection is idle once all output is sent.
    Rest,
    /// Switch to another protocol.
    Upgrade(OnUpgrade),
    /// Close the connection.
    Close(Close),
}

/// The I/O events that a protocol waits for. Wake-ups by its exchanges, deadlines and orders end
/// every wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct For {
    /// More bytes, or the end of the peer's sending side.
    pub(crate) bytes: bool,
    /// Room to send more.
    pub(crate) room: bool,
}

/// How a connection is to be closed.
#[derive(Debug)]
pub(crate) struct Close {
    pub(crate) ended: Ended,
    /// Whether the server receives and discards data for a while, because the peer may still be
    /// sending. If a socket is closed with unread input, the kernel sends a reset, and a reset may
    /// destroy a response that the peer has not read yet (RFC 9112 §9.6).
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
    /// Returns whether so much output is waiting that no more may be produced.
    pub(crate) fn is_full(&self) -> bool {
        self.io.writer.is_full(self.door.limits.pending_output_bytes_max.max(1))
    }

    /// Returns whether the driver sends parts of files itself. With TLS it cannot, because the
    /// content must be read and encrypted.
    pub(crate) fn sends_files(&self) -> bool {
        matches!(self.stage, Stage::Plain) && self.stream.sends_files()
    }

    /// Returns whether more may be received before the current request is answered.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.io.reader.unread().len() < self.door.limits.read_ahead_bytes_max
    }

    /// Returns whether so much output is waiting that HTTP/2 must stop reading. It continues to
    /// read while the output is only `is_full`, because the peer's frames open windows and reset
    /// streams, and require only small replies.
    pub(crate) fn is_flooded(&self) -> bool {
        self.io.writer.plain.len() / 2 >= self.door.limits.pending_output_bytes_max.max(1)
    }

    /// Returns whether the peer has ended its sending side.
    pub(crate) fn is_ended(&self) -> bool {
        self.io.reader.is_ended(self.stage)
    }

    // RFC 9110 §7.4: reject a request if the connection is not secured for the request's origin.
    #[inline]
    pub(crate) fn check_origin(&mut self, head: &Head) -> Result<(), Reject> {
        // A trusted proxy may have used TLS with its client.
        let is_secure = self.info.is_secure() || self.info.proxies.is_some();
        if let Err(reject) = head.index().check_scheme(is_secure) {
            return Err(tell_misdirected(reject));
        }
        let Some(hosts) = self.stage.hosts() else { return Ok(()) };
        // Only HTTP/1.0 may omit the host.
        let authority = head.authority();
        let is_covered = authority.is_empty() || hosts.cover(authority);
        if is_covered { Ok(()) } else { Err(Reject::Misdirected) }
    }

    /// Admits a request or returns why it is rejected.
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

    /// Starts to wait for content from the peer, which must arrive at the minimum rate.
    pub(crate) fn await_content(&mut self) {
        let (now, rate) = (self.worker.driver.now(), self.door.limits.rate());
        let until = self.io.receiving.wait(now, self.io.reader.brought(), rate);
        self.io.deadlines.clear(Wait::Traffic);
        self.io.deadlines.set(Wait::Receive, until);
    }

    /// Starts to wait for content in a conversation: the response has begun, so either side may
    /// send next.
    pub(crate) fn await_word(&mut self) {
        self.io.deadlines.clear(Wait::Receive);
        let rate = self.door.limits.conversation();
        let until = self.io.talking.wait(self.worker.driver.now(), self.moved(), rate);
        self.io.deadlines.set(Wait::Traffic, until);
    }

    /// Returns whether both sides of a conversation have been silent for too long.
    pub(crate) fn is_silent(&mut self) -> bool {
        let rate = self.door.limits.conversation();
        self.io.talking.is_late(self.worker.driver.now(), self.moved(), rate)
    }

    /// Bytes that moved in either direction.
    fn moved(&self) -> u64 {
        self.io.reader.received().wrapping_add(self.stream.progress())
    }

    /// Stops waiting for content, so that no further time counts against the peer.
    pub(crate) fn pause_content(&mut self) {
        let (now, rate) = (self.worker.driver.now(), self.door.limits.rate());
        self.io.receiving.pause(now, self.io.reader.brought(), rate);
        self.io.talking = Meter::default();
        self.io.deadlines.clear(Wait::Receive);
        self.io.deadlines.clear(Wait::Traffic);
    }

    /// Returns whether the current request must be the connection's last one, because the worker is
    /// shutting down or the connection has reached its maximum age.
    pub(crate) fn is_to_close(&self) -> bool {
        let has_life = self.door.limits.lifetime_max.is_some();
        self.worker.order() >= Order::LameDuck
            || has_life && self.worker.driver.now() >= self.end_of_life()
    }

    /// When the connection reaches its maximum age.
    pub(crate) fn end_of_life(&self) -> Duration {
        self.door.limits.end_of_life(self.born)
    }
}

/// Ends queue-delay rejections if no more requests arrive, which would otherwise end them.
async fn watch_refusing<D: Driver>(worker: Rc<Worker<D>>) {
    let alarm = worker.wheel.alarm();
    while let Some(at) = worker.overload.look_again_at(worker.driver.now())
        && worker.order() < Order::Cut
    {
        first_of(worker.driver.sleep_until(at), worker.ordered(&alarm, Order::Cut)).await;
    }
}

/// Logs once why requests get a 421 if a gateway in front of this server terminates TLS.
#[cold]
fn tell_misdirected(reject: Reject) -> Reject {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        contained(|| {
            tracing::warn!(target: "peregrine",
            "a request for https arrived on a plain connection and got a 421: if a gateway in \
             front of this server uses TLS with the clients, name it in Server::trusted_proxies, \
             or set Limits::behind_gateway")
        });
    });
    reject
}
