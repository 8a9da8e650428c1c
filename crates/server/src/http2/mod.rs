//! HTTP/2 on a busy connection: many concurrent exchanges, each of which works as over HTTP/1.
//!
//! Start with [`Http2::turn`]. A turn does as much work as it can without waiting, in three steps.
//! `receive.rs` parses received bytes and passes content to its streams. Then the streams that were
//! woken are polled. Last, `send.rs` sends the content that they produced, as far as the peer's
//! windows and the connection's output buffer allow.

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
    /// When GOAWAY was sent; `None` if it was not.
    told_at: Option<Duration>,
    /// Which memory has not been freed yet.
    kept: Kept,
    charge: Charge,
}

/// When a connection has been idle for this long, it frees the memory that only another exchange
/// needs.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// When a connection has been idle for this long, it frees the HPACK tables too. The next response
/// must then send its fields in full again.
const SHRINK_AFTER: Duration = Duration::from_secs(20);

/// Which memory an idle connection has kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    All,
    /// The HPACK tables.
    Tables,
    /// Only the HPACK entries that the peer may still refer to.
    Entries,
}

impl Core {
    /// Returns whether the connection has not had a request yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.protocol.has_had_requests()
    }

    /// When GOAWAY was sent; `None` if it was not.
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
    /// The state that outlives this session. An idle connection holds it itself. `None` before the
    /// first turn.
    core: Option<Box<Core>>,
    streams: Streams,
    /// The buffer for the next head.
    head: Option<Head>,
    /// Numbers of streams whose handler is called after all received bytes have been parsed.
    gathering: Vec<u32>,
    /// Numbers of streams that received content in this turn.
    fed: Vec<u32>,
    /// Numbers of streams that are polled in this turn.
    woken: Vec<u32>,
    /// Exchanges that must continue without their streams, and their deadlines.
    promised: Vec<(Exchange, Option<Duration>)>,
    /// The last request whose response is written but perhaps not sent yet.
    written: Option<RequestName>,
    /// Whether any stream has ended in this session. The idle time then starts again.
    has_progressed: bool,
    /// Bytes of content received and sent on all streams. Streams share the connection, so a
    /// waiting stream is not late while content moves on other streams.
    received: u64,
    sent: u64,
    /// The maximum, so far, of `received` plus the received bytes of an incomplete TLS record.
    arrived: u64,
    /// How many bytes had been received when the PING timeout last started.
    heard: u64,
    /// When a timer wakes the connection to send content that the core holds back.
    release_at: Duration,
    /// Whether a PING was sent and nothing has been received since.
    is_asked: bool,
    /// At the last check of an unanswered PING: how many bytes the kernel had taken, and whether
    /// more output was waiting.
    taken: (u64, bool),
    /// Whether a stream was upgraded to another protocol in this session.
    has_tunnelled: bool,
    /// Whether this session has HTTP/2 state that must be reset.
    is_used: bool,
}

/// The protocol core. Must be called during a turn.
fn protocol(core: &mut Option<Box<Core>>) -> &mut Connection {
    &mut core.as_mut().expect("every turn begins with a core").protocol
}

impl Http2 {
    /// Stores the core of a connection that was idle.
    pub(crate) fn resume(&mut self, mut core: Box<Core>) {
        core.kept = Kept::All;
        self.core = Some(core);
        self.is_used = true;
    }

    /// Returns the core for a connection that becomes idle.
    pub(crate) fn take_core(&mut self) -> Option<Box<Core>> {
        self.core.take()
    }

    /// Does as much work as it can without waiting.
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

    /// Sends GOAWAY if the connection must close soon, but not before the peer's first request: a
    /// connection that is opened during the lame-duck time must still serve one.
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
            // Any other incomplete frame gets the timeout for heads only if no stream is open.
            Waiting::Preface | Waiting::Frame if !is_flooded && is_idle => self.await_rest(link),
            _ => link.io.deadlines.clear(Wait::Head),
        }
        if !self.streams.is_empty() {
            if !is_told {
                // Streams may be silent beyond the end of the connection's life, so wake up to send
                // the GOAWAY.
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

    /// Admits a request and calls its handler. If the handler responds at once, its response is
    /// written here.
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

    /// Polls the handler or the response body of a stream that was woken, and passes content to the
    /// handler.
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

    /// Ends an exchange whose response is complete. The stream stays open if the request is
    /// incomplete.
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
        // If all content has arrived, pass the rest to a task that may continue to read it.
        if let Some(trailers) = stream.end.take() {
            stream.upload.push(std::mem::take(&mut stream.gathered).into());
            stream.upload.finish(|| trailers);
        }
        if !stream.key.is_some_and(|key| protocol(&mut self.core).is_open(key)) {
            return self.streams.close(number);
        }
        // An upgraded stream ends when its protocol ends, even if a task still reads its bytes.
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

    /// Sends the final GOAWAY, unless it was sent before.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if let Some(core) = &mut self.core {
            core.protocol.close(Code::NO_ERROR, out);
        }
    }

    /// Takes the exchanges that must continue without their streams.
    pub(crate) fn take_promised(&mut self) -> impl Iterator<Item = (Exchange, Option<Duration>)> {
        self.promised.drain(..)
    }

    /// Returns whether any request in progress is one that must never be rejected.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.streams.open_streams().any(|stream| stream.exchange.is_never_shed())
    }

    /// Returns whether any request is being answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.streams.open_streams().any(Stream::is_busy)
    }

    /// The requests that are being answered. If not everything `is_sent`, also the last request
    /// that was answered.
    pub(crate) fn in_progress(&self, is_sent: bool) -> impl Iterator<Item = InProgress<'_>> {
        let open = self.streams.open_streams().filter_map(|stream| stream.exchange.in_progress());
        open.chain(self.written.as_ref().filter(|_| !is_sent).map(InProgress::delivery))
    }

    /// Returns whether any stream ended in this session.
    pub(crate) fn has_progressed(&self) -> bool {
        self.has_progressed
    }

    /// Returns whether a stream was upgraded to another protocol in this session.
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
