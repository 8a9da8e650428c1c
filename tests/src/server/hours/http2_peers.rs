//! HTTP/2 peers: many concurrent exchanges in any order, with late window updates, resets,
//! trailers, and GOAWAY.

use super::world::World;
use crate::server::app::pattern;
use crate::server::bench::Got;
use crate::server::simulated::SimulatedWire;
use crate::server::streams::Streams;
use peregrine_driver_sim::{Client, SocketBuffers};
use peregrine_proto::h2::frame::{ErrorCode, setting_id};
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
/// When a response must arrive that waits for nothing.
const SOON: Duration = Duration::from_secs(60);

/// A peer's connection with many exchanges.
struct Http2Peer {
    world: Rc<World>,
    client: Rc<Client>,
    streams: Streams<SimulatedWire>,
    kind: &'static str,
    start: Duration,
}

/// A request of a peer, and the expected response.
struct Exchange {
    id: u32,
    sent_at: Duration,
    status: u16,
    body: Vec<u8>,
    /// When it must be complete, unless it is cancelled before.
    due: Duration,
    cancel_at: Duration,
    upload: Option<Upload>,
    /// The ID of the handler marked to run to completion.
    work: Option<u64>,
    is_over: bool,
}

/// Content that is sent in pieces.
struct Upload {
    remaining: usize,
    piece: usize,
    next_piece_at: Duration,
    has_trailers: bool,
}

impl Http2Peer {
    fn new(world: &Rc<World>, kind: &'static str, settings: &[(u16, u32)]) -> Self {
        let sizes = world.choose(&[0, 300, 5_000, 100_000]);
        let client = Rc::new(world.connect((sizes > 0).then(|| SocketBuffers::with_size(sizes))));
        world.add_peer(kind, client.address());
        let wire = SimulatedWire::new(Rc::clone(&client), &world.network);
        let streams = Streams::with_settings(wire, settings);
        let (world, start) = (Rc::clone(world), world.network.now());
        Self { world, client, streams, kind, start }
    }

    fn now(&self) -> Duration {
        self.world.network.now()
    }

    fn record_failure(&self, text: &str) {
        if !self.world.is_shutting_down() {
            self.record_failure_always(text);
        }
    }

    fn record_failure_always(&self, text: &str) {
        let (kind, start, now) = (self.kind, self.start, self.now());
        let (last, go_away) = (self.streams.last(), &self.streams.go_away);
        self.world.record_failure(format!(
            "{kind} since {start:?}, at {now:?}: {text}; {last:?} {go_away:?}"
        ));
    }

    /// Receives for `time`, or until something arrives. Returns false if nothing more can arrive.
    async fn fill(&mut self, time: Duration) -> bool {
        let is_new = self.streams.fill(time).await;
        let is_over = self.streams.last().is_some();
        if is_over {
            self.world
                .update_record(&self.client, |record, now| _ = record.ended_at.get_or_insert(now));
        }
        is_new || !is_over
    }

    /// Opens a stream for a request with a known result.
    fn send_request(&mut self) -> Exchange {
        let world = Rc::clone(&self.world);
        let length = world.choose(&[1, 900, 30_000, 150_000]);
        let seconds = world.choose(&[1, 20, 300]);
        let handler_time = Duration::from_secs(seconds);
        let (mut upload, mut work, mut duration_max) = (None, None, SOON);
        let (path, status, body) = match world.network.random_below(10) {
            0 | 1 => ("/hello".to_owned(), 200, b"hello".to_vec()),
            2 => (format!("/large/{length}"), 200, pattern(length)),
            3 => {
                duration_max += 6 * handler_time;
                (format!("/drip/5/{seconds}"), 200, b"drip".repeat(5))
            }
            4 => {
                duration_max += handler_time;
                (format!("/sleep/{seconds}"), 200, b"slept".to_vec())
            }
            5 => (
                world.choose(&["/panic", "/panic-late", "/panic-eager"]).to_owned(),
                500,
                Vec::new(),
            ),
            6 => ("/nowhere".to_owned(), 404, Vec::new()),
            7 => {
                let id = world.next_id();
                work = Some(id);
                duration_max += handler_time;
                (format!("/work/{id}/{seconds}"), 200, b"worked".to_vec())
            }
            kind => {
                let (piece, is_slow_handler) = (world.choose(&[4_000, 40_000]), kind == 9);
                let pause = if is_slow_handler { Duration::ZERO } else { SECOND };
                let remaining = length.min(60 * piece);
                let pieces = u32::try_from(remaining.div_ceil(piece)).expect("the count is small");
                duration_max += 3 * SECOND * pieces
                    + if is_slow_handler { handler_time } else { Duration::ZERO };
                let has_trailers = world.network.random_below(2) == 0;
                let next_piece_at = self.now() + pause;
                upload = Some(Upload { remaining, piece, next_piece_at, has_trailers });
                let path =
                    if is_slow_handler { format!("/nap/{seconds}") } else { "/count".to_owned() };
                (path, 200, remaining.to_string().into_bytes())
            }
        };
        let sent_at = self.now();
        let method = if upload.is_some() { "POST" } else { "GET" };
        let id = self.streams.open(method, &path, &[], upload.is_none());
        let due = sent_at + duration_max;
        let cancel_at = if world.network.random_below(5) == 0 {
            sent_at + world.time(duration_max)
        } else {
            due + SOON
        };
        Exchange { id, sent_at, status, body, due, cancel_at, upload, work, is_over: false }
    }

    /// Performs the due steps of an exchange. Returns when to call again.
    fn advance(&mut self, exchange: &mut Exchange) -> Duration {
        let now = self.now();
        let response = self.streams.so_far(exchange.id);
        if response.is_complete {
            let is_expected = response.status() == exchange.status;
            if !is_expected || (exchange.status == 200 && response.body != exchange.body) {
                let (status, length) = (response.status(), response.body.len());
                let (due, expected_length) = (exchange.status, exchange.body.len());
                self.record_failure_always(&format!(
                    "a {status} of {length} bytes instead of {due} of {expected_length}"
                ));
            }
            exchange.is_over = true;
        } else if let Some(code) = response.reset {
            if self.world.must_answer(exchange.sent_at) {
                self.record_failure_always(&format!("{} was reset: {code}", exchange.id));
            }
            exchange.is_over = true;
        } else if now >= exchange.cancel_at {
            self.streams.reset(exchange.id);
            exchange.is_over = true;
            if let Some(work) = exchange.work {
                self.world.ledger.record_disconnect(work);
            }
        } else if now > exchange.due {
            if self.world.must_answer(exchange.sent_at) {
                let (id, status, received_bytes) =
                    (exchange.id, exchange.status, response.body.len());
                self.record_failure_always(&format!(
                    "{id}, a {status}, is late; {received_bytes} bytes arrived"
                ));
            }
            exchange.is_over = true;
        }
        if exchange.is_over {
            return Duration::MAX;
        }
        let mut next = exchange.cancel_at.min(exchange.due + SECOND);
        if let Some(upload) = &mut exchange.upload {
            if now >= upload.next_piece_at {
                let piece = pattern(upload.piece.min(upload.remaining));
                let is_last = piece.len() == upload.remaining && !upload.has_trailers;
                upload.remaining -= self.streams.data_that_fits(exchange.id, &piece, is_last);
                upload.next_piece_at = now + SECOND;
            }
            next = next.min(upload.next_piece_at);
            if upload.remaining == 0 {
                if upload.has_trailers {
                    self.streams.trailers(exchange.id, &[("x-checksum", "17")]);
                }
                exchange.upload = None;
            }
        }
        next
    }

    /// Runs all exchanges until they are complete. Returns false if the connection ended.
    async fn run_exchanges(
        &mut self,
        exchanges: &mut Vec<Exchange>,
        delays_window_updates: bool,
    ) -> bool {
        let pause = self.world.timeouts.rate_window / 5;
        let mut window_update_at = self.now() + pause;
        while !exchanges.is_empty() {
            if delays_window_updates && self.now() >= window_update_at {
                self.streams.pay();
                window_update_at = self.now() + pause;
            }
            let mut next = if delays_window_updates { window_update_at } else { Duration::MAX };
            for exchange in exchanges.iter_mut() {
                next = next.min(self.advance(exchange));
            }
            exchanges.retain(|exchange| !exchange.is_over);
            if exchanges.is_empty() {
                break;
            }
            let now = self.now();
            let time = next.saturating_sub(now).max(Duration::from_millis(1));
            if !self.fill(time).await {
                for exchange in exchanges.iter_mut() {
                    self.advance(exchange);
                    if !exchange.is_over && self.world.must_answer(exchange.sent_at) {
                        self.record_failure_always(&format!(
                            "the connection ended before {} was complete",
                            exchange.id
                        ));
                    }
                    if let Some(work) = exchange.work {
                        self.world.ledger.record_disconnect(work);
                    }
                }
                self.world.update_record(&self.client, |record, now| {
                    _ = record.ended_at.get_or_insert(now)
                });
                return false;
            }
        }
        true
    }

    /// Asserts that the server ends the connection cleanly, with GOAWAY, `time` from now, within a
    /// tick.
    async fn expect_end(&mut self, time: Duration) {
        let due = self.now() + time;
        self.world.update_record(&self.client, |record, _| {
            record.may_end_from(due.saturating_sub(World::EARLY))
        });
        let until = due + World::TICK + Duration::from_millis(5);
        while self.now() < until && self.fill(until - self.now()).await {}
        let now = self.now();
        match self.streams.last() {
            None => self.record_failure(&format!("still open, after it was due at {due:?}")),
            Some(Got::End) if now + World::EARLY < due => {
                self.record_failure("the end is too early")
            }
            Some(Got::End) if self.streams.go_away.is_empty() => {
                self.record_failure("the server sent no GOAWAY")
            }
            Some(Got::End) => {}
            Some(_) => self.record_failure("a reset instead of a clean end"),
        }
    }
}

impl Drop for Http2Peer {
    fn drop(&mut self) {
        self.world.update_record(&self.client, |record, now| {
            if record.ended_at.is_none() {
                record.may_end_from(now);
                record.ended_at = Some(now);
            }
        });
    }
}

/// Sends many requests in rounds, with pauses between, and disconnects in any way, or stays idle
/// until the server sends GOAWAY.
pub(super) async fn multiplexer(world: Rc<World>) {
    let mut peer = Http2Peer::new(&world, "multiplexer", &[]);
    let delays_window_updates = world.network.random_below(3) == 0;
    if delays_window_updates {
        peer.streams.keep_windows_shut();
    }
    let idle = world.timeouts.limits.idle_timeout;
    let mut exchanges = Vec::new();
    for _ in 0..1 + world.network.random_below(4) {
        for _ in 0..1 + world.network.random_below(8) {
            let exchange = peer.send_request();
            exchanges.push(exchange);
        }
        if !peer.run_exchanges(&mut exchanges, delays_window_updates).await
            || world.is_shutting_down()
        {
            return;
        }
        peer.streams.pay();
        let until =
            peer.now() + world.time(world.choose(&[Duration::ZERO, SECOND, idle - 2 * SECOND]));
        while peer.now() < until {
            if !peer.fill(until - peer.now()).await {
                return peer.record_failure("GOAWAY before the idle timeout");
            }
        }
    }
    match world.network.random_below(5) {
        0 => peer.streams.go_away(),
        1 => {
            // The peer disconnects in the middle.
            for _ in 0..3 {
                let exchange = peer.send_request();
                exchanges.push(exchange);
            }
            let now = peer.now();
            for exchange in &mut exchanges {
                exchange.cancel_at = now + SECOND;
            }
            peer.fill(world.time(SECOND)).await;
            for work in exchanges.iter().filter_map(|exchange| exchange.work) {
                world.ledger.record_disconnect(work);
            }
        }
        _ => {
            let id = peer.streams.get("/hello");
            let until = peer.now() + SOON;
            while !peer.streams.so_far(id).is_complete && peer.now() < until {
                if !peer.fill(until - peer.now()).await {
                    return peer.record_failure("the last request is not answered");
                }
            }
            if !delays_window_updates && !world.is_shutting_down() {
                peer.expect_end(idle).await;
            }
        }
    }
}

/// Sends half a frame, and gets GOAWAY when the head timeout expires.
pub(super) async fn half_frame(world: Rc<World>) {
    let mut peer = Http2Peer::new(&world, "half frame", &[]);
    // The settings are acknowledged first.
    while peer.streams.fill(SECOND).await {}
    peer.streams.half_a_head();
    peer.expect_end(world.timeouts.limits.head_timeout).await;
}

/// Cancels its requests, as often as the budget allows, and is served meanwhile.
pub(super) async fn resetter(world: Rc<World>) {
    let mut peer = Http2Peer::new(&world, "resetter", &[]);
    let mut exchanges = Vec::new();
    for _ in 0..1 + world.network.random_below(60) {
        let path =
            world.choose(&["/hello", "/sleep/300", "/endless", "/large/30000", "/panic-late"]);
        let id = peer.streams.get(path);
        if world.network.random_below(2) == 0 && !peer.fill(Duration::from_millis(1)).await {
            return peer.record_failure("GOAWAY without a reason");
        }
        peer.streams.reset(id);
        if world.network.random_below(10) == 0 {
            let mut exchange = peer.send_request();
            exchange.cancel_at = exchange.due + SOON;
            exchanges.push(exchange);
        }
    }
    peer.run_exchanges(&mut exchanges, false).await;
}

/// Requests much with closed windows: only heads arrive, and each stream is reset in time. Then it
/// opens the windows, and is served.
pub(super) async fn closed_windows(world: Rc<World>) {
    let mut peer = Http2Peer::new(&world, "shut", &[(setting_id::INITIAL_WINDOW_SIZE, 0)]);
    let window = world.timeouts.rate_window;
    let all: Vec<_> = ["/hello", "/endless", "/large/30000"]
        .into_iter()
        .map(|path| peer.streams.get(path))
        .collect();
    let until = peer.now() + 2 * window + 10 * SECOND;
    for id in all {
        while peer.streams.so_far(id).reset.is_none() && peer.now() < until {
            if !peer.fill(until - peer.now()).await {
                return peer.record_failure("the connection ends with a stalled stream");
            }
        }
        let response = peer.streams.so_far(id);
        let is_expected = response.reset == Some(ErrorCode::CANCEL.0) && response.body.is_empty();
        if !is_expected {
            peer.record_failure(&format!(
                "{id}: {:?} after {} bytes",
                response.reset,
                response.body.len()
            ));
        }
    }
    let id = peer.streams.get("/hello");
    peer.streams.open_window_by(id, 5);
    let until = peer.now() + SOON;
    while !peer.streams.so_far(id).is_complete && peer.now() < until {
        if !peer.fill(until - peer.now()).await {
            return peer.record_failure("the last request is not answered");
        }
    }
    if peer.streams.so_far(id).text() != "hello" {
        peer.record_failure("the last request is not answered");
    }
}
