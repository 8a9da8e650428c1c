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
pub(super) enum Received {
    /// A complete response.
    Reply(Reply),
    /// The server ended cleanly, with no request unanswered.
    End,
    /// The connection broke, or ended in the middle.
    Broken,
    /// Nothing arrived before the time expired.
    Late,
}

/// A connection of a peer that knows what it should receive.
pub(super) struct Http1Peer {
    pub(super) world: Rc<World>,
    pub(super) client: Client,
    kind: &'static str,
    start: Duration,
    /// When the peer last sent something.
    last_sent_at: Cell<Duration>,
    received: Vec<u8>,
}

impl Http1Peer {
    /// Connects, with these buffers.
    pub(super) fn new(
        world: &Rc<World>,
        kind: &'static str,
        sockets: Option<SocketBuffers>,
    ) -> Self {
        let client = world.connect(sockets);
        world.add_peer(kind, client.address());
        let (world, now) = (Rc::clone(world), world.network.now());
        Self { world, client, kind, start: now, last_sent_at: Cell::new(now), received: Vec::new() }
    }

    pub(super) fn now(&self) -> Duration {
        self.world.network.now()
    }

    pub(super) async fn sleep(&self, time: Duration) {
        self.world.network.sleep(time).await;
    }

    /// Sends `bytes`, and waits until the peer's kernel has accepted them. Returns false if the
    /// connection broke.
    pub(super) async fn send(&self, bytes: impl AsRef<[u8]>) -> bool {
        self.record_request();
        self.world.check_loans();
        let is_sent = self.client.send(bytes.as_ref()).await.is_ok();
        if !is_sent {
            self.record_end();
        }
        is_sent
    }

    /// Sends a GET request, which the shutdown report must list if it is aborted.
    pub(super) async fn get(&self, path: &str) -> bool {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await
    }

    fn record_request(&self) {
        self.last_sent_at.set(self.now());
        self.world
            .update_record(&self.client, |record, now| _ = record.waiting_since.get_or_insert(now));
    }

    /// Resets the connection.
    pub(super) fn reset(&self) {
        self.client.reset();
        self.may_end(self.now());
        self.record_end();
    }

    /// From `at` on, the connection may end for a reason other than an abort.
    pub(super) fn may_end(&self, at: Duration) {
        self.world.update_record(&self.client, |record, _| record.may_end_from(at));
    }

    fn record_end(&self) {
        self.world
            .update_record(&self.client, |record, now| _ = record.ended_at.get_or_insert(now));
    }

    /// Ends the peer's sending side.
    pub(super) async fn half_close(&self) {
        self.may_end(self.now());
        // This fails if the server was faster.
        let _ = self.client.half_close().await;
    }

    /// Asserts that these bytes are echoed.
    pub(super) async fn expect_echo(&mut self, bytes: &[u8]) -> bool {
        let until = self.now() + Duration::from_secs(10);
        while self.received.len() < bytes.len() {
            let remaining = until.saturating_sub(self.now());
            let receiving = self.client.recv();
            match crate::first_of(receiving, self.world.network.sleep(remaining)).await {
                Some(Ok(more)) if !more.is_empty() => self.received.extend(more),
                None => return false,
                Some(_) => {
                    self.record_end();
                    return false;
                }
            }
        }
        std::mem::take(&mut self.received) == bytes
    }

    /// Sends bytes, and reads the echo only after a pause: all of it must arrive.
    pub(super) async fn expect_delayed_echo(&self, bytes: &[u8], pause: Duration) -> bool {
        self.record_request();
        let read_echo = async {
            self.sleep(pause).await;
            self.world.check_loans();
            let mut all = Vec::new();
            while all.len() < bytes.len() {
                match self.client.recv().await {
                    Ok(more) if !more.is_empty() => all.extend(more),
                    _ => {
                        self.record_end();
                        return false;
                    }
                }
            }
            all == bytes
        };
        let (sent, is_same) = crate::both(self.client.send(bytes), read_echo).await;
        sent.is_ok() && is_same
    }

    /// Records a failure, unless the server is shutting down, when nearly anything may happen.
    pub(super) fn record_failure(&self, text: impl AsRef<str>) {
        if !self.world.is_shutting_down() {
            self.world.record_failure(self.describe(text.as_ref()));
        }
    }

    fn describe(&self, text: &str) -> String {
        format!("{} since {:?}, at {:?}: {text}", self.kind, self.start, self.now())
    }

    /// Asserts that the current time is not before `due.start` plus `time`, nor more than a tick
    /// after `due.end` plus `time`.
    pub(super) fn check_time(&self, event: &str, due: Range<Duration>, time: Duration) {
        let now = self.now();
        if now + World::EARLY < due.start {
            self.record_failure(format!("{event} too early: not before {:?}", due.start));
        }
        if now > self.world.on_time(due.end, time) {
            self.record_failure(format!("{event} too late: at {:?}", due.end));
        }
    }

    /// The next response, or the end, before `until`. The end is recorded.
    pub(super) async fn receive(&mut self, until: Duration) -> Received {
        let received = self.receive_slowly(until, usize::MAX, Duration::ZERO).await;
        if matches!(received, Received::End | Received::Broken) {
            self.record_end();
        }
        received
    }

    /// Like [`receive`](Self::receive), with a pause after each `piece` bytes, even if more arrive
    /// at once. Does not record the end.
    pub(super) async fn receive_slowly(
        &mut self,
        until: Duration,
        piece: usize,
        pause: Duration,
    ) -> Received {
        let mut piece_remaining = piece;
        loop {
            match reply::parse(&self.received, false, false) {
                Ok(Some((reply, used))) => {
                    self.received.drain(..used);
                    self.world.update_record(&self.client, |record, _| record.waiting_since = None);
                    return Received::Reply(reply);
                }
                Ok(None) => {}
                Err(error) => {
                    self.world.record_failure(format!("{}: invalid HTTP: {error}", self.kind));
                    return Received::Broken;
                }
            }
            let remaining = until.saturating_sub(self.now());
            let receiving = self.client.recv_at_most(piece_remaining);
            match crate::first_of(receiving, self.world.network.sleep(remaining)).await {
                // A blocked worker has not run yet.
                None if self.world.may_be_stalled() => self.sleep(World::TICK).await,
                None => return Received::Late,
                Some(Ok(bytes)) if bytes.is_empty() && self.received.is_empty() => {
                    return Received::End;
                }
                Some(Ok(bytes)) if bytes.is_empty() => return Received::Broken,
                Some(Ok(bytes)) => {
                    piece_remaining = piece_remaining.saturating_sub(bytes.len());
                    self.received.extend(bytes);
                }
                Some(Err(_)) => return Received::Broken,
            }
            if piece_remaining == 0 {
                piece_remaining = piece;
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
        let received = self.receive(until).await;
        self.check_response(received, status, body)
    }

    /// Whether `received` is the response with this status and content.
    pub(super) fn check_response(
        &self,
        received: Received,
        status: u16,
        body: Option<&[u8]>,
    ) -> bool {
        match received {
            Received::Reply(reply) => {
                let is_expected =
                    reply.status == status && body.is_none_or(|body| reply.body == body);
                if !is_expected {
                    let (actual_status, length) = (reply.status, reply.body.len());
                    let text = format!("a {actual_status} of {length} bytes instead of a {status}");
                    self.world.record_failure(self.describe(&text));
                }
                is_expected
            }
            Received::End => self.record_missing(status, "an end"),
            Received::Broken => self.record_missing(status, "a reset, or the end in the middle,"),
            Received::Late => self.record_missing(status, "nothing"),
        }
    }

    fn record_missing(&self, status: u16, event: &str) -> bool {
        if self.world.must_answer(self.last_sent_at.get()) {
            let received_bytes = self.received.len();
            let text = format!("{event} instead of a {status}; {received_bytes} bytes arrived");
            self.world.record_failure(self.describe(&text));
        }
        false
    }

    /// The data that arrives when `time` has passed after an event at `due`, at most a tick later.
    pub(super) async fn receive_when_due(&mut self, due: Duration, time: Duration) -> Received {
        loop {
            let until = self.world.on_time(due, time);
            let received = self.receive(until + Duration::from_millis(5)).await;
            // The worker may have been blocked meanwhile.
            if !matches!(received, Received::Late) || self.world.on_time(due, time) <= until {
                return received;
            }
        }
    }

    /// Asserts that the server ends the connection cleanly, `time` from now, within a tick.
    pub(super) async fn expect_end(&mut self, time: Duration) {
        let due = self.now() + time;
        self.may_end(due.saturating_sub(World::EARLY));
        let received = self.receive_when_due(due, time).await;
        match received {
            Received::End => self.check_time("the end", due..due, time),
            Received::Late => {
                self.record_failure(format!("still open, after it was due at {due:?}"))
            }
            Received::Broken => self.record_failure("a reset instead of a clean end"),
            Received::Reply(reply) => {
                self.record_failure(format!("an unsolicited {}", reply.status))
            }
        }
    }

    /// Asserts that the server ends the connection cleanly after a response that announced it.
    pub(super) async fn expect_end_soon(&mut self) {
        let until = self.now() + self.world.timeouts.linger_time_max + World::TICK;
        match self.receive(until).await {
            Received::End => {}
            Received::Late => self.record_failure("still open, although the close was announced"),
            Received::Broken => self.record_failure("a reset instead of a clean end"),
            Received::Reply(reply) => {
                self.record_failure(format!("an unsolicited {}", reply.status))
            }
        }
    }

    /// Asserts that only buffered data and then a reset arrive.
    pub(super) async fn expect_reset(&mut self) {
        let mut remaining = READ_BYTES_MAX;
        while remaining > 0 {
            match self.client.recv_at_most(remaining).await {
                Ok(bytes) if bytes.is_empty() => {
                    return self.record_failure("an end that looks clean");
                }
                Ok(bytes) => remaining -= bytes.len(),
                Err(_) => return,
            }
        }
        self.record_failure("the peer is still served");
    }
}

impl Drop for Http1Peer {
    fn drop(&mut self) {
        // A peer that has not seen an end disconnects now.
        self.world.update_record(&self.client, |record, now| {
            if record.ended_at.is_none() {
                record.may_end_from(now);
                record.ended_at = Some(now);
            }
        });
    }
}
