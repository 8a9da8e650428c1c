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
struct Many {
    world: Rc<World>,
    client: Rc<Client>,
    streams: Streams<SimulatedWire>,
    kind: &'static str,
    began: Duration,
}

/// A request of a peer, and the expected response.
struct Job {
    id: u32,
    asked: Duration,
    status: u16,
    body: Vec<u8>,
    /// When it must be complete, unless it is cancelled before.
    due: Duration,
    gives_up: Duration,
    upload: Option<Upload>,
    /// The ID of the handler marked to run to completion.
    work: Option<u64>,
    is_over: bool,
}

/// Content that is sent in pieces.
struct Upload {
    left: usize,
    piece: usize,
    next: Duration,
    has_trailers: bool,
}

impl Many {
    fn new(world: &Rc<World>, kind: &'static str, settings: &[(u16, u32)]) -> Self {
        let sizes = world.choose(&[0, 300, 5_000, 100_000]);
        let client = Rc::new(world.connect((sizes > 0).then(|| SocketBuffers::with_size(sizes))));
        world.meet(kind, client.address());
        let wire = SimulatedWire::new(Rc::clone(&client), &world.network);
        let streams = Streams::with_settings(wire, settings);
        let (world, began) = (Rc::clone(world), world.network.now());
        Self { world, client, streams, kind, began }
    }

    fn now(&self) -> Duration {
        self.world.network.now()
    }

    fn fault(&self, text: &str) {
        if !self.world.is_ordered() {
            self.tell(text);
        }
    }

    fn tell(&self, text: &str) {
        let (kind, began, now) = (self.kind, self.began, self.now());
        let (last, gone) = (self.streams.last(), &self.streams.go_away);
        self.world.fault(format!("{kind} since {began:?}, at {now:?}: {text}; {last:?} {gone:?}"));
    }

    /// Receives for `time`, or until something arrives. Returns false if nothing more can arrive.
    async fn fill(&mut self, time: Duration) -> bool {
        let is_new = self.streams.fill(time).await;
        let is_over = self.streams.last().is_some();
        if is_over {
            self.world.note(&self.client, |met, now| _ = met.over.get_or_insert(now));
        }
        is_new || !is_over
    }

    /// Opens a stream for a request with a known result.
    fn ask(&mut self) -> Job {
        let world = Rc::clone(&self.world);
        let length = world.choose(&[1, 900, 30_000, 150_000]);
        let seconds = world.choose(&[1, 20, 300]);
        let takes = Duration::from_secs(seconds);
        let (mut upload, mut work, mut lasts) = (None, None, SOON);
        let (path, status, body) = match world.network.random_below(10) {
            0 | 1 => ("/hello".to_owned(), 200, b"hello".to_vec()),
            2 => (format!("/large/{length}"), 200, pattern(length)),
            3 => {
                lasts += 6 * takes;
                (format!("/drip/5/{seconds}"), 200, b"drip".repeat(5))
            }
            4 => {
                lasts += takes;
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
                lasts += takes;
                (format!("/work/{id}/{seconds}"), 200, b"worked".to_vec())
            }
            kind => {
                let (piece, naps) = (world.choose(&[4_000, 40_000]), kind == 9);
                let pause = if naps { Duration::ZERO } else { SECOND };
                let left = length.min(60 * piece);
                let pieces = u32::try_from(left.div_ceil(piece)).expect("the count is small");
                lasts += 3 * SECOND * pieces + if naps { takes } else { Duration::ZERO };
                let has_trailers = world.network.random_below(2) == 0;
                let next = self.now() + pause;
                upload = Some(Upload { left, piece, next, has_trailers });
                let path = if naps { format!("/nap/{seconds}") } else { "/count".to_owned() };
                (path, 200, left.to_string().into_bytes())
            }
        };
        let asked = self.now();
        let method = if upload.is_some() { "POST" } else { "GET" };
        let id = self.streams.open(method, &path, &[], upload.is_none());
        let due = asked + lasts;
        let gives_up =
            if world.network.random_below(5) == 0 { asked + world.time(lasts) } else { due + SOON };
        Job { id, asked, status, body, due, gives_up, upload, work, is_over: false }
    }

    /// Performs the due steps of a job. Returns when to call again.
    fn go_on(&mut self, job: &mut Job) -> Duration {
        let now = self.now();
        let answer = self.streams.so_far(job.id);
        if answer.is_complete {
            let is_right = answer.status() == job.status;
            if !is_right || (job.status == 200 && answer.body != job.body) {
                let (status, length) = (answer.status(), answer.body.len());
                let (due, due_length) = (job.status, job.body.len());
                self.tell(&format!(
                    "a {status} of {length} bytes instead of {due} of {due_length}"
                ));
            }
            job.is_over = true;
        } else if let Some(code) = answer.reset {
            if self.world.must_answer(job.asked) {
                self.tell(&format!("{} was reset: {code}", job.id));
            }
            job.is_over = true;
        } else if now >= job.gives_up {
            self.streams.reset(job.id);
            job.is_over = true;
            if let Some(work) = job.work {
                self.world.ledger.left(work);
            }
        } else if now > job.due {
            if self.world.must_answer(job.asked) {
                let (id, status, came) = (job.id, job.status, answer.body.len());
                self.tell(&format!("{id}, a {status}, is late; {came} bytes arrived"));
            }
            job.is_over = true;
        }
        if job.is_over {
            return Duration::MAX;
        }
        let mut next = job.gives_up.min(job.due + SECOND);
        if let Some(upload) = &mut job.upload {
            if now >= upload.next {
                let piece = pattern(upload.piece.min(upload.left));
                let is_last = piece.len() == upload.left && !upload.has_trailers;
                upload.left -= self.streams.data_that_fits(job.id, &piece, is_last);
                upload.next = now + SECOND;
            }
            next = next.min(upload.next);
            if upload.left == 0 {
                if upload.has_trailers {
                    self.streams.trailers(job.id, &[("x-checksum", "17")]);
                }
                job.upload = None;
            }
        }
        next
    }

    /// Works on all jobs until they are complete. Returns false if the connection ended.
    async fn work(&mut self, jobs: &mut Vec<Job>, opens_late: bool) -> bool {
        let pause = self.world.promises.rate_window / 5;
        let mut pays = self.now() + pause;
        while !jobs.is_empty() {
            if opens_late && self.now() >= pays {
                self.streams.pay();
                pays = self.now() + pause;
            }
            let mut next = if opens_late { pays } else { Duration::MAX };
            for job in jobs.iter_mut() {
                next = next.min(self.go_on(job));
            }
            jobs.retain(|job| !job.is_over);
            if jobs.is_empty() {
                break;
            }
            let now = self.now();
            let time = next.saturating_sub(now).max(Duration::from_millis(1));
            if !self.fill(time).await {
                for job in jobs.iter_mut() {
                    self.go_on(job);
                    if !job.is_over && self.world.must_answer(job.asked) {
                        self.tell(&format!("the connection ended before {} was complete", job.id));
                    }
                    if let Some(work) = job.work {
                        self.world.ledger.left(work);
                    }
                }
                self.world.note(&self.client, |met, now| _ = met.over.get_or_insert(now));
                return false;
            }
        }
        true
    }

    /// Asserts that the server ends the connection cleanly, with GOAWAY, `time` from now, within a
    /// tick.
    async fn expect_end(&mut self, time: Duration) {
        let due = self.now() + time;
        self.world.note(&self.client, |met, _| met.may_end_from(due.saturating_sub(World::EARLY)));
        let until = due + World::TICK + Duration::from_millis(5);
        while self.now() < until && self.fill(until - self.now()).await {}
        let now = self.now();
        match self.streams.last() {
            None => self.fault(&format!("still open, after it was due at {due:?}")),
            Some(Got::End) if now + World::EARLY < due => self.fault("the end is too early"),
            Some(Got::End) if self.streams.go_away.is_empty() => {
                self.fault("the server sent no GOAWAY")
            }
            Some(Got::End) => {}
            Some(_) => self.fault("a reset instead of a clean end"),
        }
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        self.world.note(&self.client, |met, now| {
            if met.over.is_none() {
                met.may_end_from(now);
                met.over = Some(now);
            }
        });
    }
}

/// Sends many requests in rounds, with pauses between, and disconnects in any way, or stays idle
/// until the server sends GOAWAY.
pub(super) async fn multiplexer(world: Rc<World>) {
    let mut many = Many::new(&world, "multiplexer", &[]);
    let opens_late = world.network.random_below(3) == 0;
    if opens_late {
        many.streams.keep_windows_shut();
    }
    let idle = world.promises.limits.idle_timeout;
    let mut jobs = Vec::new();
    for _ in 0..1 + world.network.random_below(4) {
        for _ in 0..1 + world.network.random_below(8) {
            let job = many.ask();
            jobs.push(job);
        }
        if !many.work(&mut jobs, opens_late).await || world.is_ordered() {
            return;
        }
        many.streams.pay();
        let until =
            many.now() + world.time(world.choose(&[Duration::ZERO, SECOND, idle - 2 * SECOND]));
        while many.now() < until {
            if !many.fill(until - many.now()).await {
                return many.fault("GOAWAY before the idle timeout");
            }
        }
    }
    match world.network.random_below(5) {
        0 => many.streams.go_away(),
        1 => {
            // The peer disconnects in the middle.
            for _ in 0..3 {
                let job = many.ask();
                jobs.push(job);
            }
            let now = many.now();
            for job in &mut jobs {
                job.gives_up = now + SECOND;
            }
            many.fill(world.time(SECOND)).await;
            for work in jobs.iter().filter_map(|job| job.work) {
                world.ledger.left(work);
            }
        }
        _ => {
            let id = many.streams.get("/hello");
            let until = many.now() + SOON;
            while !many.streams.so_far(id).is_complete && many.now() < until {
                if !many.fill(until - many.now()).await {
                    return many.fault("the last request is not answered");
                }
            }
            if !opens_late && !world.is_ordered() {
                many.expect_end(idle).await;
            }
        }
    }
}

/// Sends half a frame, and gets GOAWAY when the head timeout expires.
pub(super) async fn half_frame(world: Rc<World>) {
    let mut many = Many::new(&world, "half frame", &[]);
    // The settings are acknowledged first.
    while many.streams.fill(SECOND).await {}
    many.streams.half_a_head();
    many.expect_end(world.promises.limits.head_timeout).await;
}

/// Cancels its requests, as often as the budget allows, and is served meanwhile.
pub(super) async fn resetter(world: Rc<World>) {
    let mut many = Many::new(&world, "resetter", &[]);
    let mut jobs = Vec::new();
    for _ in 0..1 + world.network.random_below(60) {
        let path =
            world.choose(&["/hello", "/sleep/300", "/endless", "/large/30000", "/panic-late"]);
        let id = many.streams.get(path);
        if world.network.random_below(2) == 0 && !many.fill(Duration::from_millis(1)).await {
            return many.fault("GOAWAY without a reason");
        }
        many.streams.reset(id);
        if world.network.random_below(10) == 0 {
            let mut job = many.ask();
            job.gives_up = job.due + SOON;
            jobs.push(job);
        }
    }
    many.work(&mut jobs, false).await;
}

/// Requests much with closed windows: only heads arrive, and each stream is reset in time. Then it
/// opens the windows, and is served.
pub(super) async fn shut(world: Rc<World>) {
    let mut many = Many::new(&world, "shut", &[(setting_id::INITIAL_WINDOW_SIZE, 0)]);
    let window = world.promises.rate_window;
    let all: Vec<_> = ["/hello", "/endless", "/large/30000"]
        .into_iter()
        .map(|path| many.streams.get(path))
        .collect();
    let until = many.now() + 2 * window + 10 * SECOND;
    for id in all {
        while many.streams.so_far(id).reset.is_none() && many.now() < until {
            if !many.fill(until - many.now()).await {
                return many.fault("the connection ends with a stalled stream");
            }
        }
        let answer = many.streams.so_far(id);
        let is_right = answer.reset == Some(ErrorCode::CANCEL.0) && answer.body.is_empty();
        if !is_right {
            many.fault(&format!("{id}: {:?} after {} bytes", answer.reset, answer.body.len()));
        }
    }
    let id = many.streams.get("/hello");
    many.streams.open_window_by(id, 5);
    let until = many.now() + SOON;
    while !many.streams.so_far(id).is_complete && many.now() < until {
        if !many.fill(until - many.now()).await {
            return many.fault("the last request is not answered");
        }
    }
    if many.streams.so_far(id).text() != "hello" {
        many.fault("the last request is not answered");
    }
}
