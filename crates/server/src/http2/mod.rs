//! HTTP/2 on a busy connection: many concurrent exchanges, each of which works as over HTTP/1.
//!
//! Start with [`Http2::turn`]. A turn does as much work as it can without waiting, in three steps.
//! `receive.rs` parses received bytes and passes content to its streams. Then the streams that were
//! woken are polled. Last, `send.rs` sends the content that they produced, as far as the peer's
//! windows and the connection's output buffer allow.

mod idle_state;
mod ready_set;
mod receive;
mod send;
mod streams;
mod timeouts;
mod tunnel;

pub(crate) use self::idle_state::Http2Core;

use self::idle_state::RetainedMemory;
use self::streams::{Stream, StreamState, Streams};
use crate::exchange::in_flight::{InFlightRequest, RequestName};
use crate::exchange::{Exchange, HandlerPanic, fields};
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::CloseReason;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream as _};
use peregrine_proto::h2::{Connection, ErrorCode, NextAction, WaitingFor};
use peregrine_web::body::BodyError;
use peregrine_web::head::RequestHead;
use peregrine_web::{Body, Problem, Request, Response};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The HTTP/2 state of a busy connection, in memory that is reused.
#[derive(Default)]
pub(crate) struct Http2 {
    /// The state that outlives this session. An idle connection holds it itself. `None` before the
    /// first turn.
    core: Option<Box<Http2Core>>,
    streams: Streams,
    /// The buffer for the next head.
    head: Option<RequestHead>,
    /// Numbers of streams whose handler is called after all received bytes have been parsed.
    buffering: Vec<u32>,
    /// Numbers of streams that received content in this turn.
    readable: Vec<u32>,
    /// Numbers of streams that are polled in this turn.
    ready: Vec<u32>,
    /// Exchanges that must continue without their streams, and their deadlines.
    detachable: Vec<(Exchange, Option<Duration>)>,
    /// The last request whose response is written but perhaps not sent yet.
    last_written: Option<RequestName>,
    /// Whether any stream has ended in this session. The idle time then starts again.
    has_closed_stream: bool,
    /// Bytes of content received and sent on all streams. Streams share the connection, so a
    /// waiting stream is not late while content moves on other streams.
    received: u64,
    sent: u64,
    /// The maximum, so far, of `received` plus the received bytes of an incomplete TLS record.
    receive_progress: u64,
    /// How many bytes had been received when the PING timeout last started.
    last_bytes_received: u64,
    /// When a timer wakes the connection to send content that the core holds back.
    release_at: Duration,
    /// Whether a PING was sent and nothing has been received since.
    is_ping_pending: bool,
    /// At the last check of an unanswered PING: how many bytes the kernel had taken, and whether
    /// more output was waiting.
    last_bytes_written: (u64, bool),
    /// Whether a stream was upgraded to another protocol in this session.
    has_tunnel: bool,
    /// Whether this session has HTTP/2 state that must be reset.
    is_used: bool,
}

/// The protocol core. Must be called during a turn.
fn protocol(core: &mut Option<Box<Http2Core>>) -> &mut Connection {
    &mut core.as_mut().expect("every turn begins with a core").protocol
}

impl Http2 {
    /// Stores the core of a connection that was idle.
    pub(crate) fn resume(&mut self, mut core: Box<Http2Core>) {
        core.retained = RetainedMemory::All;
        self.core = Some(core);
        self.is_used = true;
    }

    /// Returns the core for a connection that becomes idle.
    pub(crate) fn take_core(&mut self) -> Option<Box<Http2Core>> {
        self.core.take()
    }

    /// Does as much work as it can without waiting.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        self.begin_turn(link);
        let mut woken = std::mem::take(&mut self.ready);
        if !self.streams.is_empty() {
            self.streams.ready.take(&mut woken);
        }
        let received = self.receive(link);
        self.send_goaway(link);
        for number in woken.drain(..) {
            self.poll_stream(number, link);
        }
        self.ready = woken;
        if let Err(turn) = received {
            return turn;
        }
        let is_enough = !self.send_ready(link);
        self.close_drained_streams(link);
        match self.end_turn(link, cx) {
            Action::Wait(what) if is_enough => Action::Yield(what),
            turn => turn,
        }
    }

    fn begin_turn<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) {
        let (now, limits) = (link.worker.driver.now(), &link.listener.http2_protocol);
        let is_sent = link.stream.is_flushed();
        let out = &mut link.io.output.plaintext;
        self.is_used = true;
        let core =
            self.core.get_or_insert_with(|| Box::new(Http2Core::new(Connection::new(limits, out))));
        core.protocol.refill_budget(limits, u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        if is_sent && out.is_empty() {
            core.protocol.output_flushed();
        }
    }

    /// Sends GOAWAY if the connection must close soon, but not before the peer's first request: a
    /// connection that is opened during the lame-duck time must still serve one.
    fn send_goaway<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) {
        let core = self.core.as_mut().expect("every turn begins with a core");
        if core.goaway_sent_at.is_some()
            || !core.protocol.has_received_request()
            || !link.should_close()
        {
            return;
        }
        let now = link.worker.driver.now();
        core.protocol.drain(&mut link.io.output.plaintext);
        core.goaway_sent_at = Some(now);
        let until = now.saturating_add(link.listener.limits.drain_idle_timeout);
        link.io.deadlines.set_earlier(TimeoutKind::NextStream, until);
    }

    /// Ends a turn and decides what the connection waits for.
    fn end_turn<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let core = self.core.as_mut().expect("every turn begins with a core");
        core.update_reservation();
        let (is_full, is_flooded) = (link.is_output_full(), link.is_output_over_limit());
        if !is_flooded && link.is_eof() {
            let _cut_short = core.protocol.receive_eof();
            let is_busy = !self.streams.is_empty();
            return Action::close(if is_busy {
                CloseReason::PeerAborted
            } else {
                CloseReason::PeerClosed
            });
        }
        if core.protocol.next_action() == NextAction::Close {
            return Action::linger(match core.goaway_sent_at {
                Some(_) if link.worker.lifecycle() >= Lifecycle::LameDuck => CloseReason::Drained,
                Some(_) => CloseReason::ConnectionAgeMax,
                None => CloseReason::ConnectionClose,
            });
        }
        let (waiting, is_told) = (core.protocol.waiting_for(), core.goaway_sent_at.is_some());
        let is_idle = self.streams.is_empty() && core.protocol.open_streams() == 0;
        if is_idle {
            link.io.keep_awake = None;
            link.io.deadlines.clear(TimeoutKind::Ping);
            if link.io.input.is_empty() && matches!(waiting, WaitingFor::Idle | WaitingFor::Preface)
            {
                link.io.deadlines.clear_all();
                return Action::Idle;
            }
        }
        match waiting {
            WaitingFor::Head if !is_flooded => self.start_frame_timer(link),
            // Any other incomplete frame gets the timeout for heads only if no stream is open.
            WaitingFor::Preface | WaitingFor::Frame if !is_flooded && is_idle => {
                self.start_frame_timer(link)
            }
            _ => link.io.deadlines.clear(TimeoutKind::Head),
        }
        if !self.streams.is_empty() {
            if !is_told {
                // Streams may be silent beyond the end of the connection's life, so wake up to send
                // the GOAWAY.
                link.io.deadlines.set_earlier(TimeoutKind::NextStream, link.expires_at());
            }
            self.schedule_ping(link);
            self.await_release(link, cx);
            link.io.keep_awake.get_or_insert_with(|| link.worker.driver.keep_awake());
            if !self.streams.arm(cx.waker()) {
                return Action::Yield(Interest { readable: !is_flooded, writable: false });
            }
        }
        let is_ready = protocol(&mut self.core).next_ready(&link.listener.http2_protocol).is_some();
        Action::Wait(Interest { readable: !is_flooded, writable: is_full || is_ready })
    }

    /// Limits the wait for the rest of a frame to the timeout for heads.
    fn start_frame_timer<D: Driver>(&self, link: &mut ConnectionContext<'_, D>) {
        let late = link.worker.driver.now().saturating_add(link.listener.limits.head_timeout);
        link.io.deadlines.set_if_unset(TimeoutKind::Head, late);
    }

    /// Admits a request and calls its handler. If the handler responds at once, its response is
    /// written here.
    fn begin<D: Driver>(
        &mut self,
        number: u32,
        mut head: RequestHead,
        link: &mut ConnectionContext<'_, D>,
        body: impl FnOnce(&mut Stream, u64) -> Body,
    ) {
        let worker = link.worker;
        let target = worker.application.find(&mut head, link.info);
        let limit = target.body_limit(link.listener.limits.body_bytes_max);
        let stream = self.streams.at(number);
        if stream.exchange.admission.is_none() {
            match link.admit(&target, &head, false) {
                Ok(admitted) => stream.exchange.admission = Some(admitted),
                Err(refusal) => return self.respond_shed(number, refusal, &head, link),
            }
        }
        let body = body(stream, limit);
        let may_call = target.options().is_grpc && stream.request_body.has_unknown_length();
        stream.is_grpc_call = may_call && head.grpc_content_type().is_some();
        let states = Rc::clone(worker.application.states());
        let request = Request::new(head, body, states, Rc::clone(link.info));
        stream.exchange.begin(target, request);
        stream.state = StreamState::RunningHandler;
        if let Poll::Ready(outcome) = self.poll_handler(number, link) {
            return self.respond(number, outcome, link);
        }
        let stream = self.streams.at(number);
        let now = worker.driver.now();
        let timeout = |timeout: Option<Duration>| {
            timeout.map_or(Duration::MAX, |timeout| now.saturating_add(timeout))
        };
        stream.exchange.mark_pending(now);
        stream.deadlines.handler = timeout(stream.exchange.handler_timeout);
        stream.deadlines.exchange = timeout(link.listener.limits.exchange_timeout);
        self.schedule_stream_timer(number, link);
    }

    fn poll_handler<D: Driver>(
        &mut self,
        number: u32,
        link: &mut ConnectionContext<'_, D>,
    ) -> Poll<Result<Response, HandlerPanic>> {
        let Stream { exchange, waker, key, .. } = self.streams.at(number);
        let polled =
            exchange.poll_response(&mut Context::from_waker(waker), &link.worker.heartbeat);
        if let Some(key) = *key {
            let (core, out) = (protocol(&mut self.core), &mut link.io.output.plaintext);
            exchange.send_interims(out.len(), |status, fields| {
                core.send_interim(key, status, fields::header_map_pairs(fields), out);
            });
        }
        polled
    }

    /// Polls the handler or the response body of a stream that was woken, and passes content to the
    /// handler.
    fn poll_stream<D: Driver>(&mut self, number: u32, link: &mut ConnectionContext<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        if let Some(taken) = &stream.consumed {
            taken.clear_waker();
        }
        match stream.state {
            StreamState::RunningHandler => {
                if let Poll::Ready(outcome) = self.poll_handler(number, link) {
                    self.respond(number, outcome, link);
                }
            }
            StreamState::SendingStream(_) => self.poll_response_body(number, link),
            StreamState::Buffering { .. } | StreamState::SendingFull { .. } => {}
            StreamState::ReceivingBody | StreamState::DrainingBody | StreamState::Vacant => {}
        }
        self.forward_body(number, link);
        self.streams.update_reservation(number);
    }

    /// Ends an exchange whose response is complete. The stream stays open if the request is
    /// incomplete.
    fn finish_exchange<D: Driver>(&mut self, number: u32, link: &mut ConnectionContext<'_, D>) {
        self.has_closed_stream = true;
        let stream = self.streams.at(number);
        stream.exchange.finish();
        if let Some(rest) = stream.exchange.take_after_response() {
            let hold = link.worker.driver.keep_awake();
            link.worker.driver.spawn_boxed(Box::pin(async move {
                rest.await;
                drop(hold);
            }));
        }
        self.last_written = stream.exchange.take_request_name();
        stream.exchange.reset();
        // If all content has arrived, pass the rest to a task that may continue to read it.
        if let Some(trailers) = stream.pending_trailers.take() {
            stream.request_body.push(std::mem::take(&mut stream.buffered).into());
            stream.request_body.finish(|| trailers);
        }
        if !stream.key.is_some_and(|key| protocol(&mut self.core).is_stream_open(key)) {
            return self.streams.close(number);
        }
        // An upgraded stream ends when its protocol ends, even if a task still reads its bytes.
        if stream.request_body.has_reader() && !stream.is_tunnel {
            stream.state = StreamState::ReceivingBody;
            if let Some(timeout) = link.listener.limits.exchange_timeout {
                let until = link.worker.driver.now().saturating_add(timeout);
                stream.deadlines.exchange = stream.deadlines.exchange.min(until);
            }
            return self.forward_body(number, link);
        }
        stream.request_body.fail(BodyError::Disconnected);
        self.drain_body(number, link);
    }

    /// Ends a stream whose response is not complete.
    fn fail_stream(&mut self, number: u32) {
        self.has_closed_stream = true;
        let stream = self.streams.at(number);
        stream.request_body.fail(BodyError::Disconnected);
        if stream.exchange.is_detachable() {
            let left = stream.deadlines.handler.min(stream.deadlines.exchange);
            let left = Some(left).filter(|left| *left != Duration::MAX);
            self.detachable.push((std::mem::take(&mut stream.exchange), left));
        }
        self.streams.close(number);
    }

    /// Resets a stream.
    fn reset_stream<D: Driver>(
        &mut self,
        number: u32,
        code: ErrorCode,
        link: &mut ConnectionContext<'_, D>,
    ) {
        if let Some(key) = self.streams.at(number).key {
            protocol(&mut self.core).reset(key, code, &mut link.io.output.plaintext);
        }
        self.fail_stream(number);
    }

    /// Fails all streams, because the connection is over.
    pub(crate) fn fail_all(&mut self) {
        for number in self.streams.numbers() {
            if self.streams.get(number).is_some() {
                self.fail_stream(number);
            }
        }
    }

    /// Sends the final GOAWAY, unless it was sent before.
    pub(crate) fn send_final_goaway(&mut self, out: &mut Vec<u8>) {
        if let Some(core) = &mut self.core {
            core.protocol.close(ErrorCode::NO_ERROR, out);
        }
    }

    /// Takes the exchanges that must continue without their streams.
    pub(crate) fn take_detachable(&mut self) -> impl Iterator<Item = (Exchange, Option<Duration>)> {
        self.detachable.drain(..)
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
    pub(crate) fn in_flight(&self, is_sent: bool) -> impl Iterator<Item = InFlightRequest<'_>> {
        let open = self.streams.open_streams().filter_map(|stream| stream.exchange.in_flight());
        open.chain(
            self.last_written.as_ref().filter(|_| !is_sent).map(InFlightRequest::in_delivery),
        )
    }

    /// Returns whether any stream ended in this session.
    pub(crate) fn has_closed_stream(&self) -> bool {
        self.has_closed_stream
    }

    /// Returns whether a stream was upgraded to another protocol in this session.
    pub(crate) fn has_tunnel(&self) -> bool {
        self.has_tunnel
    }

    /// The memory of the stream table. Each stream accounts for its own content.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.streams.slot_bytes()
    }

    /// Drops everything that belongs to the application, for the next session.
    pub(crate) fn reset(&mut self) {
        // For HTTP/1 connections, this check is the only cost.
        if !std::mem::take(&mut self.is_used) {
            return;
        }
        let Self {
            core,
            streams,
            head,
            buffering: gathering,
            readable: fed,
            ready: woken,
            detachable: promised,
            last_written: written,
            ..
        } = self;
        streams.reset();
        gathering.clear();
        fed.clear();
        woken.clear();
        promised.clear();
        (*core, *head, *written) = (None, None, None);
        (self.has_closed_stream, self.received, self.sent, self.receive_progress) =
            (false, 0, 0, 0);
        self.has_tunnel = false;
        self.release_at = Duration::ZERO;
        (self.last_bytes_received, self.is_ping_pending, self.last_bytes_written) =
            (0, false, (0, false));
    }

    /// Renders a problem in the application's format.
    fn render_problem<D: Driver>(
        &mut self,
        number: u32,
        problem: Problem,
        link: &ConnectionContext<'_, D>,
    ) -> Response {
        let application = &link.worker.application;
        match self.streams.at(number).exchange.head() {
            Some(head) => application.render_problem(problem, head),
            None => application.render_problem(problem, &RequestHead::from_pool()),
        }
    }
}
