//! One peer's connection, checked against the clock.

use super::world::World;
use crate::server::reply::{self, Reply};
use peregrine_driver_sim::{Client, SocketBuffers};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// More than all buffers hold together.
const READ_BYTES_MAX: usize = 10 << 20;

/// The result of waiting for data.
pub(super) enum Heard {
    /// A complete response.
    Reply(Reply),
    /// The server ended cleanly, with no request unanswered.
    End,
    /// The connection broke, or ended in the middle.
    Broken,
    /// Nothing until the time expired.
    Late,
}

/// A connection of a peer that knows what it should receive.
pub(super) struct Talk {
    pub(super) world: Rc<World>,
    pub(super) client: Client,
    kind: &'static str,
    began: Duration,
    /// When the peer last sent something.
    asked: Cell<Duration>,
    received: Vec<u8>,
}

impl Talk {
    /// Connects, with these buffers.
    pub(super) fn new(
        world: &Rc<World>,
        kind: &'static str,
        sockets: Option<SocketBuffers>,
    ) -> Self {
        let client = world.connect(sockets);
        world.meet(kind, client.address());
        let (world, now) = (Rc::clone(world), world.network.now());
        Self { world, client, kind, began: now, asked: Cell::new(now), received: Vec::new() }
    }

    pub(super) fn now(&self) -> Duration {
        self.world.network.now()
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.world.network.sleep(time).await;
    }

    /// Sends `bytes`, and waits until the peer's kernel has accepted them. Returns false if the
    /// connection broke.
    pub(super) async fn say(&self, bytes: impl AsRef<[u8]>) -> bool {
        self.asks();
        self.world.check_loans();
        let is_sent = self.client.send(bytes.as_ref()).await.is_ok();
        if !is_sent {
            self.is_over();
        }
        is_sent
    }

    /// Sends a GET request, which the shutdown report must list if it is cut.
    pub(super) async fn get(&self, path: &str) -> bool {
        self.say(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await
    }

    fn asks(&self) {
        self.asked.set(self.now());
        self.world.note(&self.client, |met, now| _ = met.waits_since.get_or_insert(now));
    }

    /// Resets the connection.
    pub(super) fn reset(&self) {
        self.client.reset();
        self.may_end(self.now());
        self.is_over();
    }

    /// From `at` on, the connection may end for a reason other than a cut.
    pub(super) fn may_end(&self, at: Duration) {
        self.world.note(&self.client, |met, _| met.may_end_from(at));
    }

    fn is_over(&self) {
        self.world.note(&self.client, |met, now| _ = met.over.get_or_insert(now));
    }

    /// Ends the peer's sending side.
    pub(super) async fn half_close(&self) {
        self.may_end(self.now());
        // This fails if the server was faster.
        let _ = self.client.half_close().await;
    }

    /// Asserts that these bytes are echoed.
    pub(super) async fn echoes(&mut self, bytes: &[u8]) -> bool {
        let until = self.now() + Duration::from_secs(10);
        while self.received.len() < bytes.len() {
            let left = until.saturating_sub(self.now());
            let receiving = self.client.recv();
            match crate::first_of(receiving, self.world.network.sleep(left)).await {
                Some(Ok(more)) if !more.is_empty() => self.received.extend(more),
                None => return false,
                Some(_) => {
                    self.is_over();
                    return false;
                }
            }
        }
        std::mem::take(&mut self.received) == bytes
    }

    /// Sends bytes, and reads the echo only after a pause: all of it must arrive.
    pub(super) async fn floods(&self, bytes: &[u8], pause: Duration) -> bool {
        self.asks();
        let reading = async {
            self.sleep(pause).await;
            self.world.check_loans();
            let mut all = Vec::new();
            while all.len() < bytes.len() {
                match self.client.recv().await {
                    Ok(more) if !more.is_empty() => all.extend(more),
                    _ => {
                        self.is_over();
                        return false;
                    }
                }
            }
            all == bytes
        };
        let (sent, is_same) = crate::both(self.client.send(bytes), reading).await;
        sent.is_ok() && is_same
    }

    /// Records a failure, unless the server is shutting down, when nearly anything may happen.
    pub(super) fn fault(&self, text: impl AsRef<str>) {
        if !self.world.is_ordered() {
            self.world.fault(self.told(text.as_ref()));
        }
    }

    fn told(&self, text: &str) -> String {
        format!("{} since {:?}, at {:?}: {text}", self.kind, self.began, self.now())
    }

    /// Asserts that the current time is not before `due.start` plus `time`, nor more than a tick
    /// after `due.end` plus `time`.
    pub(super) fn assert_now(&self, what: &str, due: Range<Duration>, time: Duration) {
        let now = self.now();
        if now + World::EARLY < due.start {
            self.fault(format!("{what} too early: not before {:?}", due.start));
        }
        if now > self.world.on_time(due.end, time) {
            self.fault(format!("{what} too late: at {:?}", due.end));
        }
    }

    /// The next response, or the end, before `until`. The end is recorded.
    pub(super) async fn hear(&mut self, until: Duration) -> Heard {
        let heard = self.hear_slowly(until, usize::MAX, Duration::ZERO).await;
        if matches!(heard, Heard::End | Heard::Broken) {
            self.is_over();
        }
        heard
    }

    /// The same, with a pause after each `piece` bytes, even if more arrive at once.
    pub(super) async fn hear_slowly(
        &mut self,
        until: Duration,
        piece: usize,
        pause: Duration,
    ) -> Heard {
        let mut missing = piece;
        loop {
            match reply::parse(&self.received, false, false) {
                Ok(Some((reply, used))) => {
                    self.received.drain(..used);
                    self.world.note(&self.client, |met, _| met.waits_since = None);
                    return Heard::Reply(reply);
                }
                Ok(None) => {}
                Err(fault) => {
                    self.world.fault(format!("{}: no HTTP: {fault}", self.kind));
                    return Heard::Broken;
                }
            }
            let left = until.saturating_sub(self.now());
            let receiving = self.client.recv_at_most(missing);
            match crate::first_of(receiving, self.world.network.sleep(left)).await {
                // A blocked worker has not run yet.
                None if self.world.may_be_stalled() => self.sleep(World::TICK).await,
                None => return Heard::Late,
                Some(Ok(bytes)) if bytes.is_empty() && self.received.is_empty() => {
                    return Heard::End;
                }
                Some(Ok(bytes)) if bytes.is_empty() => return Heard::Broken,
                Some(Ok(bytes)) => {
                    missing = missing.saturating_sub(bytes.len());
                    self.received.extend(bytes);
                }
                Some(Err(_)) => return Heard::Broken,
            }
            if missing == 0 {
                missing = piece;
                self.sleep(pause).await;
            }
        }
    }

    /// Asserts that a response with this status and content arrives before `until`. Returns false
    /// after a failure.
    pub(super) async fn expect(
        &mut self,
        status: u16,
        body: Option<&[u8]>,
        until: Duration,
    ) -> bool {
        let heard = self.hear(until).await;
        self.is_right(heard, status, body)
    }

    /// Whether `heard` is the response with this status and content.
    pub(super) fn is_right(&self, heard: Heard, status: u16, body: Option<&[u8]>) -> bool {
        match heard {
            Heard::Reply(reply) => {
                let is_right = reply.status == status && body.is_none_or(|body| reply.body == body);
                if !is_right {
                    let (got, length) = (reply.status, reply.body.len());
                    let text = format!("a {got} of {length} bytes instead of a {status}");
                    self.world.fault(self.told(&text));
                }
                is_right
            }
            Heard::End => self.no(status, "an end"),
            Heard::Broken => self.no(status, "a reset, or the end in the middle,"),
            Heard::Late => self.no(status, "nothing"),
        }
    }

    fn no(&self, status: u16, what: &str) -> bool {
        if self.world.must_answer(self.asked.get()) {
            let came = self.received.len();
            let text = format!("{what} instead of a {status}; {came} bytes arrived");
            self.world.fault(self.told(&text));
        }
        false
    }

    /// The data that arrives when `time` has passed after an event at `due`, at most a tick later.
    pub(super) async fn hear_when_due(&mut self, due: Duration, time: Duration) -> Heard {
        loop {
            let until = self.world.on_time(due, time);
            let heard = self.hear(until + Duration::from_millis(5)).await;
            // The worker may have been blocked meanwhile.
            if !matches!(heard, Heard::Late) || self.world.on_time(due, time) <= until {
                return heard;
            }
        }
    }

    /// Asserts that the server ends the connection cleanly, `time` from now, within a tick.
    pub(super) async fn expect_end(&mut self, time: Duration) {
        let due = self.now() + time;
        self.may_end(due.saturating_sub(World::EARLY));
        let heard = self.hear_when_due(due, time).await;
        match heard {
            Heard::End => self.assert_now("the end", due..due, time),
            Heard::Late => self.fault(format!("still open, after it was due at {due:?}")),
            Heard::Broken => self.fault("a reset instead of a clean end"),
            Heard::Reply(reply) => self.fault(format!("an unsolicited {}", reply.status)),
        }
    }

    /// Asserts that the server ends the connection cleanly after a response that announced it.
    pub(super) async fn expect_end_soon(&mut self) {
        let until = self.now() + self.world.promises.linger_time_max + World::TICK;
        match self.hear(until).await {
            Heard::End => {}
            Heard::Late => self.fault("still open, although the close was announced"),
            Heard::Broken => self.fault("a reset instead of a clean end"),
            Heard::Reply(reply) => self.fault(format!("an unsolicited {}", reply.status)),
        }
    }

    /// Asserts that only buffered data and then a reset arrive.
    pub(super) async fn expect_reset(&mut self) {
        let mut left = READ_BYTES_MAX;
        while left > 0 {
            match self.client.recv_at_most(left).await {
                Ok(bytes) if bytes.is_empty() => return self.fault("an end that looks clean"),
                Ok(bytes) => left -= bytes.len(),
                Err(_) => return,
            }
        }
        self.fault("the peer is still served");
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // A peer that has not seen an end disconnects now.
        self.world.note(&self.client, |met, now| {
            if met.over.is_none() {
                met.may_end_from(now);
                met.over = Some(now);
            }
        });
    }
}
