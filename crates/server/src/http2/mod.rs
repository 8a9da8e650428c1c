//! HTTP/2 on a busy connection: many concurrent exchanges, each of them as over HTTP/1.
//!
//! Start with [`Http2::turn`], which never waits itself. `receive.rs` passes received bytes to
//! their streams; then streams that were woken are polled; `send.rs` sends what they produce, as
//! far as the peer's windows and the connection's buffer allow.

mod ready_set;
mod receive;
mod send;
mod streams;
mod timeouts;
mod tunnel;

use self::streams::{Step, Stream, Streams};
use crate::exchange::in_flight::{InProgress, RequestName};
use crate::exchange::{Exchange, Panicked, fields};
use crate::io::context::{For, Link, Turn};
use crate::io::timeouts::Wait;
use crate::observe::close_reason::Ended;
use crate::worker::lifecycle::Order;
use peregrine_driver::{Driver, Stream as _};
use peregrine_proto::h2::{Code, Connection, Next, Waiting};
use peregrine_web::account::Charge;
use peregrine_web::body::BodyError;
use peregrine_web::head::Head;
use peregrine_web::{Body, Problem, Request, Response};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The HTTP/2 state that a connection keeps while it is idle.
pub(crate) struct Core {
    protocol: Connection,
    /// When GOAWAY was sent.
    told_at: Option<Duration>,
    /// Which memory has not been freed yet.
    kept: Kept,
    charge: Charge,
}

/// How long after its last exchange a connection frees memory that only another exchange needs.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// How long after its last exchange it frees the HPACK tables too. The next response must then
/// repeat its fields once.
const SHRINK_AFTER: Duration = Duration::from_secs(20);

/// Which memory an idle connection has kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    All,
    /// The HPACK tables.
    Tables,
    /// The table entries that the peer relies on.
    Entries,
}

impl Core {
    /// Returns whether the connection waits for its first request.
    pub(crate) fn is_new(&self) -> bool {
        !self.protocol.has_had_requests()
    }

    /// When GOAWAY was sent.
    pub(crate) fn told_at(&self) -> Option<Duration> {
        self.told_at
    }

    /// When a connection that has been idle since `since` frees the next part of its memory.
    pub(crate) fn gives_back_at(&self, since: Duration) -> Duration {
        match self.kept {
            Kept::All => since.saturating_add(TRIM_AFTER),
            Kept::Tables => since.saturating_add(SHRINK_AFTER),
            Kept::Entries => Duration::MAX,
        }
    }

    /// Updates the memory that is accounted for the connection.
    fn weigh(&mut self) {
        let (tables, others) = self.protocol.memory_bytes();
        self.charge.set(size_of::<Self>() + tables + others);
    }

    /// Frees the next part of the memory.
    pub(crate) fn give_back(&mut self) {
        self.kept = if self.kept == Kept::All {
            self.protocol.trim();
            Kept::Tables
        } else {
            self.protocol.shrink();
            Kept::Entries
        };
        self.weigh();
    }
}

/// The HTTP/2 state of a busy connection, in memory that is reused.
#[derive(Default)]
pub(crate) struct Http2 {
    /// Moved here from the connection, from the first turn on.
    core: Option<Box<Core>>,
    streams: Streams,
    /// The buffer for the next head.
    head: Option<Head>,
    /// Numbers of streams whose handler is called once all received bytes were read.
    gathering: Vec<u32>,
    /// Numbers of streams that received content in this turn.
    fed: Vec<u32>,
    /// Numbers of streams that are polled in this turn.
    woken: Vec<u32>,
    /// Exchanges that continue without their streams, and their deadlines.
    promised: Vec<(Exchange, Option<Duration>)>,
    /// The last request whose response is written but perhaps not sent yet.
    written: Option<RequestName>,
    /// Whether any stream has ended, which restarts the idle time.
    has_progressed: bool,
    /// Bytes of content received and sent on all streams. They share the connection, so a stream
    /// that waits is not late while other streams move.
    received: u64,
    sent: u64,
    /// The maximum, so far, of `received` plus the received bytes of an incomplete TLS record.
    arrived: u64,
    /// Bytes received from the peer when it last sent something.
    heard: u64,
    /// When a timer wakes the connection to send content that is held back.
    release_at: Duration,
    /// Whether a PING was sent and nothing was received since.
    is_asked: bool,
    /// How many bytes the kernel had taken at the last check for an answer to a PING, and whether
    /// more waited.
    taken: (u64, bool),
    /// Whether another protocol has taken over a stream.
    has_tunnelled: bool,
    /// Whether there is anything to reset after this session.
    is_used: bool,
}

/// The protocol core, during a turn.
fn protocol(core: &mut Option<Box<Core>>) -> &mut Connection {
    &mut core.as_mut().expect("every turn begins with a core").protocol
}

impl Http2 {
    /// Takes the core of an idle connection.
    pub(crate) fn resume(&mut self, mut core: Box<Core>) {
        core.kept = Kept::All;
        self.core = Some(core);
        self.is_used = true;
    }

    /// Returns the core for a connection that becomes idle.
    pub(crate) fn take_core(&mut self) -> Option<Box<Core>> {
        self.core.take()
    }

    /// Does as much as it can.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        self.begin_turn(link);
        let mut woken = std::mem::take(&mut self.woken);
        if !self.streams.is_empty() {
            self.streams.woken.take(&mut woken);
        }
        let received = self.receive(link);
        self.say_goodbye(link);
        for number in woken.drain(..) {
            self.poll(number, link);
        }
        self.woken = woken;
        if let Err(turn) = received {
            return turn;
        }
        let is_enough = !self.send_ready(link);
        self.sweep(link);
        match self.end_turn(link, context) {
            Turn::Wait(what) if is_enough => Turn::Yield(what),
            turn => turn,
        }
    }

    fn begin_turn<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        let (now, limits) = (link.worker.driver.now(), &link.door.http2);
        let is_sent = link.stream.is_sent();
        let out = &mut link.io.writer.plain;
        self.is_used = true;
        let core = self.core.get_or_insert_with(|| {
            let protocol = Connection::new(limits, out);
            Box::new(Core { protocol, told_at: None, kept: Kept::All, charge: Charge::new() })
        });
        core.protocol.tick(limits, u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        if is_sent && out.is_empty() {
            core.protocol.output_sent();
        }
    }

    /// Sends GOAWAY once the peer has opened a stream. A connection that is opened during the
    /// lame-duck time should still be useful.
    fn say_goodbye<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        let core = self.core.as_mut().expect("every turn begins with a core");
        if core.told_at.is_some() || !core.protocol.has_had_requests() || !link.is_to_close() {
            return;
        }
        let now = link.worker.driver.now();
        core.protocol.drain(&mut link.io.writer.plain);
        core.told_at = Some(now);
        let until = now.saturating_add(link.door.limits.drain_idle_timeout);
        link.io.deadlines.hasten(Wait::Streams, until);
    }

    /// Ends a turn and decides what the connection waits for.
    fn end_turn<D: Driver>(&mut self, link: &mut Link<'_, D>, context: &mut Context<'_>) -> Turn {
        let core = self.core.as_mut().expect("every turn begins with a core");
        core.weigh();
        let (is_full, is_flooded) = (link.is_full(), link.is_flooded());
        if !is_flooded && link.is_ended() {
            let _cut_short = core.protocol.close_receive();
            let is_busy = !self.streams.is_empty();
            return Turn::close(if is_busy { Ended::PeerLeft } else { Ended::PeerClosed });
        }
        if core.protocol.next() == Next::Close {
            return Turn::linger(match core.told_at {
                Some(_) if link.worker.order() >= Order::LameDuck => Ended::Drained,
                Some(_) => Ended::Lifetime,
                None => Ended::Agreed,
            });
        }
        let (waiting, is_told) = (core.protocol.waiting(), core.told_at.is_some());
        let is_idle = self.streams.is_empty() && core.protocol.streams_open() == 0;
        if is_idle {
            link.io.hold = None;
            link.io.deadlines.clear(Wait::Ping);
            if link.io.reader.is_empty() && matches!(waiting, Waiting::Idle | Waiting::Preface) {
                link.io.deadlines.clear_all();
                return Turn::Rest;
            }
        }
        match waiting {
            Waiting::Head if !is_flooded => self.await_rest(link),
            // Any other frame gets the timeout of a head only if nothing else limits the wait.
            Waiting::Preface | Waiting::Frame if !is_flooded && is_idle => self.await_rest(link),
            _ => link.io.deadlines.clear(Wait::Head),
        }
        if !self.streams.is_empty() {
            if !is_told {
                // Streams may be silent for longer than that, and the GOAWAY must be sent in time.
                link.io.deadlines.hasten(Wait::Streams, link.end_of_life());
            }
            self.watch_peer(link);
            self.await_release(link, context);
            link.io.hold.get_or_insert_with(|| link.worker.driver.hold());
            if !self.streams.arm(context.waker()) {
                return Turn::Yield(For { bytes: !is_flooded, room: false });
            }
        }
        let is_ready = protocol(&mut self.core).next_ready(&link.door.http2).is_some();
        Turn::Wait(For { bytes: !is_flooded, room: is_full || is_ready })
    }

    /// Limits the wait for the rest of a frame to the timeout for heads.
    fn await_rest<D: Driver>(&self, link: &mut Link<'_, D>) {
        let late = link.worker.driver.now().saturating_add(link.door.limits.head_timeout);
        link.io.deadlines.begin(Wait::Head, late);
    }

    /// Calls the handler of a request. If it is ready at once, the response is sent here.
    fn begin<D: Driver>(
        &mut self,
        number: u32,
        mut head: Head,
        link: &mut Link<'_, D>,
        body: impl FnOnce(&mut Stream, u64) -> Body,
    ) {
        let worker = link.worker;
        let target = worker.application.find(&mut head, link.info);
        let limit = target.body_limit(link.door.limits.body_bytes_max);
        let stream = self.streams.at(number);
        if stream.exchange.admitted.is_none() {
            match link.admit(&target, &head, false) {
                Ok(admitted) => stream.exchange.admitted = Some(admitted),
                Err(refusal) => return self.refuse_request(number, refusal, &head, link),
            }
        }
        let body = body(stream, limit);
        let may_call = target.options().takes_calls && stream.upload.is_open_ended();
        stream.is_call = may_call && head.grpc_type().is_some();
        let states = Rc::clone(worker.application.states());
        let request = Request::new(head, body, states, Rc::clone(link.info));
        stream.exchange.begin(target, request);
        stream.step = Step::Handler;
        if let Poll::Ready(outcome) = self.poll_handler(number, link) {
            return self.respond(number, outcome, link);
        }
        let stream = self.streams.at(number);
        let now = worker.driver.now();
        let timeout = |timeout: Option<Duration>| {
            timeout.map_or(Duration::MAX, |timeout| now.saturating_add(timeout))
        };
        stream.exchange.goes_on(now);
        stream.deadlines.handler = timeout(stream.exchange.timeout);
        stream.deadlines.exchange = timeout(link.door.limits.exchange_timeout);
        self.hasten(number, link);
    }

    fn poll_handler<D: Driver>(
        &mut self,
        number: u32,
        link: &mut Link<'_, D>,
    ) -> Poll<Result<Response, Panicked>> {
        let Stream { exchange, waker, key, .. } = self.streams.at(number);
        let polled = exchange.poll_response(&mut Context::from_waker(waker), &link.worker.pulse);
        if let Some(key) = *key {
            let (core, out) = (protocol(&mut self.core), &mut link.io.writer.plain);
            exchange.send_interims(out.len(), |status, fields| {
                core.send_interim(key, status, fields::map_pairs(fields), out);
            });
        }
        polled
    }

    /// Polls what a stream waits for.
    fn poll<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        if let Some(taken) = &stream.taken {
            taken.forget_waker();
        }
        match stream.step {
            Step::Handler => {
                if let Poll::Ready(outcome) = self.poll_handler(number, link) {
                    self.respond(number, outcome, link);
                }
            }
            Step::Frames(_) => self.pump(number, link),
            Step::Gather { .. } | Step::Whole { .. } => {}
            Step::ReadOn | Step::Unread | Step::Free => {}
        }
        self.feed(number, link);
        self.streams.weigh(number);
    }

    /// Ends an exchange whose response is complete. Its stream ends as well, unless the request is
    /// not complete yet.
    fn finish<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        self.has_progressed = true;
        let stream = self.streams.at(number);
        stream.exchange.finish();
        if let Some(rest) = stream.exchange.take_rest() {
            let hold = link.worker.driver.hold();
            link.worker.driver.spawn_boxed(Box::pin(async move {
                rest.await;
                drop(hold);
            }));
        }
        self.written = stream.exchange.take_request_name();
        stream.exchange.clear();
        // A task that continues to read gets what has arrived, if that is all of it.
        if let Some(trailers) = stream.end.take() {
            stream.upload.push(std::mem::take(&mut stream.gathered).into());
            stream.upload.finish(|| trailers);
        }
        if !stream.key.is_some_and(|key| protocol(&mut self.core).is_open(key)) {
            return self.streams.close(number);
        }
        // The stream of another protocol ends with that protocol, even if a task still reads its
        // bytes.
        if stream.upload.is_read() && !stream.is_tunnel {
            stream.step = Step::ReadOn;
            if let Some(timeout) = link.door.limits.exchange_timeout {
                let until = link.worker.driver.now().saturating_add(timeout);
                stream.deadlines.exchange = stream.deadlines.exchange.min(until);
            }
            return self.feed(number, link);
        }
        stream.upload.fail(BodyError::Disconnected);
        self.throw_away(number, link);
    }

    /// Ends a stream whose response is not complete.
    fn fail(&mut self, number: u32) {
        self.has_progressed = true;
        let stream = self.streams.at(number);
        stream.upload.fail(BodyError::Disconnected);
        if stream.exchange.runs_to_end() {
            let left = stream.deadlines.handler.min(stream.deadlines.exchange);
            let left = Some(left).filter(|left| *left != Duration::MAX);
            self.promised.push((std::mem::take(&mut stream.exchange), left));
        }
        self.streams.close(number);
    }

    /// Resets a stream.
    fn reset_stream<D: Driver>(&mut self, number: u32, code: Code, link: &mut Link<'_, D>) {
        if let Some(key) = self.streams.at(number).key {
            protocol(&mut self.core).reset(key, code, &mut link.io.writer.plain);
        }
        self.fail(number);
    }

    /// Fails all streams, because the connection is over.
    pub(crate) fn fail_all(&mut self) {
        for number in self.streams.numbers() {
            if self.streams.get(number).is_some() {
                self.fail(number);
            }
        }
    }

    /// Sends GOAWAY, unless that was done.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(core) = &mut self.core {
            core.protocol.close(Code::NO_ERROR, out);
        }
    }

    /// Takes the exchanges that must run to their end and whose streams are over.
    pub(crate) fn take_promised(&mut self) -> impl Iterator<Item = (Exchange, Option<Duration>)> {
        self.promised.drain(..)
    }

    /// Returns whether a request is in progress that must never be rejected.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.streams.open_streams().any(|stream| stream.exchange.is_never_shed())
    }

    /// Returns whether any request's response is not complete.
    pub(crate) fn is_busy(&self) -> bool {
        self.streams.open_streams().any(Stream::is_busy)
    }

    /// The requests whose responses are not complete and, unless everything `is_sent`, the last one
    /// that was answered.
    pub(crate) fn in_progress(&self, is_sent: bool) -> impl Iterator<Item = InProgress<'_>> {
        let open = self.streams.open_streams().filter_map(|stream| stream.exchange.in_progress());
        open.chain(self.written.as_ref().filter(|_| !is_sent).map(InProgress::delivery))
    }

    /// Returns whether any stream ended in this session.
    pub(crate) fn has_progressed(&self) -> bool {
        self.has_progressed
    }

    /// Returns whether another protocol has taken over a stream in this session.
    pub(crate) fn has_tunnelled(&self) -> bool {
        self.has_tunnelled
    }

    /// The memory of the stream table. Each stream accounts for its own content.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.streams.places_bytes()
    }

    /// Drops everything that belongs to the application, for the next session.
    pub(crate) fn reset(&mut self) {
        // For HTTP/1 connections, this check is the only cost.
        if !std::mem::take(&mut self.is_used) {
            return;
        }
        let Self { core, streams, head, gathering, fed, woken, promised, written, .. } = self;
        streams.reset();
        gathering.clear();
        fed.clear();
        woken.clear();
        promised.clear();
        (*core, *head, *written) = (None, None, None);
        (self.has_progressed, self.received, self.sent, self.arrived) = (false, 0, 0, 0);
        self.has_tunnelled = false;
        self.release_at = Duration::ZERO;
        (self.heard, self.is_asked, self.taken) = (0, false, (0, false));
    }

    /// Renders a problem in the application's format.
    fn render<D: Driver>(&mut self, number: u32, problem: Problem, link: &Link<'_, D>) -> Response {
        let application = &link.worker.application;
        match self.streams.at(number).exchange.head() {
            Some(head) => application.render(problem, head),
            None => application.render(problem, &Head::take()),
        }
    }
}
