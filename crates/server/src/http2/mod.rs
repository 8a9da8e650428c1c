//! HTTP/2 on a busy connection: many concurrent exchanges, each of which works as over HTTP/1.
//!
//! Start with [`Http2::turn`]. A turn does as much work as it can without waiting, in three steps.
//! `receive.rs` parses received bytes and passes their content to the handlers. Then the streams
//! that were woken are polled. Last, `send.rs` sends the content that they produced, as far as the
//! peer's windows and the connection's output buffer allow.
//!
//! A stream's `slot` is the index of its entry in [`Streams`], not its HTTP/2 stream identifier. A
//! stream is *woken* if its own waker was called, and *ready* if its content can be sent.

mod discard;
mod idle_state;
mod receive;
mod send;
mod streams;
mod timeouts;
mod tunnel;
mod woken_streams;

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
    /// The state that outlives idle periods. While the connection is idle, the connection itself
    /// stores it. `None` before the first turn.
    core: Option<Box<Http2Core>>,
    streams: Streams,
    /// The head of the next request, which is being received.
    head: Option<RequestHead>,
    /// Slots of streams in [`StreamState::Buffering`]: their handlers are called when all received
    /// bytes have been parsed.
    buffering: Vec<u32>,
    /// Slots of streams that received content, or its end, which is passed on when all received
    /// bytes have been parsed. A slot may occur twice.
    readable: Vec<u32>,
    /// Slots of the woken streams, which this turn polls. Empty between turns.
    to_poll: Vec<u32>,
    /// Exchanges whose streams have ended but whose handlers must run to completion, and the
    /// handlers' deadlines. The connection takes them after each turn.
    detached: Vec<(Exchange, Option<Duration>)>,
    /// The last request whose response was written to the output. That response might not have been
    /// sent yet.
    last_written: Option<RequestName>,
    /// Whether any exchange has ended since the connection was last idle. If so, the idle timeout
    /// restarts.
    has_ended_exchange: bool,
    /// Bytes of content received on all streams. A stream that waits for content does not time out
    /// while other streams receive, because all streams share the connection.
    received: u64,
    /// Bytes of content sent on all streams. A stream that waits for the connection's window does
    /// not time out while other streams send.
    sent: u64,
    /// The maximum, so far, of `received` plus the received bytes of an incomplete TLS record, so
    /// that a slowly arriving record counts as progress.
    receive_progress: u64,
    /// How many bytes had been received when the interval before the next PING last started.
    last_bytes_received: u64,
    /// When a timer wakes the connection to send content that the core holds back, because the
    /// peer's window has room for only a small part of it. If this time has passed, no timer is
    /// running.
    held_until: Duration,
    /// Whether a PING was sent and no byte has been received since.
    is_ping_pending: bool,
    /// How many bytes the kernel had accepted when the last PING was sent or last checked.
    last_bytes_written: u64,
    /// Whether more output was waiting for the kernel at that time.
    was_output_waiting: bool,
    /// Whether a stream was upgraded to another protocol since the connection was last idle.
    has_tunnel: bool,
    /// Whether this struct was used since the last reset. HTTP/1 connections do not use it.
    needs_reset: bool,
}

/// The protocol core. Must be called during a turn.
fn protocol(core: &mut Option<Box<Http2Core>>) -> &mut Connection {
    &mut core.as_mut().expect("a core exists during a turn").protocol
}

impl Http2 {
    /// Stores the core of a connection that was idle.
    pub(crate) fn resume(&mut self, mut core: Box<Http2Core>) {
        core.retained = RetainedMemory::All;
        self.core = Some(core);
        self.needs_reset = true;
    }

    /// Takes the core, for a connection that becomes idle to store.
    pub(crate) fn take_core(&mut self) -> Option<Box<Http2Core>> {
        self.core.take()
    }

    /// Does as much work as it can without waiting.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        self.begin_turn(conn);
        let mut to_poll = std::mem::take(&mut self.to_poll);
        if !self.streams.is_empty() {
            self.streams.woken.take_woken(&mut to_poll);
        }
        let result = self.receive(conn);
        self.send_goaway(conn);
        for slot in to_poll.drain(..) {
            self.poll_stream(slot, conn);
        }
        self.to_poll = to_poll;
        if let Err(action) = result {
            return action;
        }
        let must_yield = self.send_ready(conn);
        self.close_discarding_streams(conn);
        match self.end_turn(conn, cx) {
            Action::Wait(interest) if must_yield => Action::Yield(interest),
            action => action,
        }
    }

    /// Creates the core before the first turn, and reports the time and flushed output to it.
    fn begin_turn<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        let (now, limits) = (conn.worker.driver.now(), &conn.listener.http2_proto_limits);
        let is_flushed = conn.stream.is_flushed();
        let out = &mut conn.io.output.plaintext;
        self.needs_reset = true;
        let core =
            self.core.get_or_insert_with(|| Box::new(Http2Core::new(Connection::new(limits, out))));
        core.protocol.refill_budget(limits, u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        if is_flushed && out.is_empty() {
            core.protocol.output_flushed();
        }
    }

    /// Sends GOAWAY if the connection must close soon, but not before the peer's first request: a
    /// connection that is opened during the lame-duck time, or in a reserved slot, must still serve
    /// one.
    fn send_goaway<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        let core = self.core.as_mut().expect("a core exists during a turn");
        if core.goaway_sent_at.is_some() || !core.protocol.has_received_request() {
            return;
        }
        if !conn.should_close() && !conn.uses_reserved_slot {
            return;
        }
        let now = conn.worker.driver.now();
        core.protocol.begin_shutdown(&mut conn.io.output.plaintext);
        core.goaway_sent_at = Some(now);
        // At this deadline, `finish_goaway` stops accepting streams.
        let deadline = now.saturating_add(conn.listener.limits.drain_idle_timeout);
        conn.io.deadlines.set_if_earlier(TimeoutKind::NextStream, deadline);
    }

    /// Ends a turn and decides what the connection waits for.
    fn end_turn<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let core = self.core.as_mut().expect("a core exists during a turn");
        core.update_reservation();
        let (is_full, is_over_limit) = (conn.is_output_full(), conn.is_output_over_limit());
        // Over the output limit, the server does not receive. So received bytes may not be parsed
        // yet even if the peer has ended its sending side, and the head timeout does not run.
        if !is_over_limit && conn.is_eof() {
            // Whether or not the core reports an error, the connection closes.
            let _event = core.protocol.receive_eof();
            return Action::close(if self.streams.is_empty() {
                CloseReason::PeerClosed
            } else {
                CloseReason::PeerAborted
            });
        }
        if core.protocol.next_action() == NextAction::Close {
            return Action::linger(match core.goaway_sent_at {
                Some(_) if conn.worker.lifecycle() >= Lifecycle::LameDuck => CloseReason::Drained,
                Some(_) if conn.should_close() => CloseReason::ConnectionAgeMax,
                Some(_) | None => CloseReason::ConnectionClose,
            });
        }
        let (waiting_for, is_goaway_sent) =
            (core.protocol.waiting_for(), core.goaway_sent_at.is_some());
        let is_idle = self.streams.is_empty() && core.protocol.open_streams() == 0;
        if is_idle {
            conn.io.keep_awake = None;
            conn.io.deadlines.clear(TimeoutKind::Ping);
            if conn.io.input.is_empty()
                && matches!(waiting_for, WaitingFor::NextRequest | WaitingFor::Preface)
            {
                conn.io.deadlines.clear_all();
                return Action::Idle;
            }
        }
        match waiting_for {
            WaitingFor::Head if !is_over_limit => self.start_frame_timer(conn),
            // The head timeout applies to other incomplete frames only if no stream is open.
            WaitingFor::Preface | WaitingFor::Frame if !is_over_limit && is_idle => {
                self.start_frame_timer(conn)
            }
            _ => conn.io.deadlines.clear(TimeoutKind::Head),
        }
        if !self.streams.is_empty() {
            if !is_goaway_sent {
                // Even if all streams are silent, wake up at the maximum age to send the GOAWAY.
                conn.io.deadlines.set_if_earlier(TimeoutKind::NextStream, conn.expires_at());
            }
            self.schedule_ping(conn);
            self.schedule_held_content(conn, cx);
            conn.io.keep_awake.get_or_insert_with(|| conn.worker.driver.keep_awake());
            if !self.streams.arm(cx.waker()) {
                // A stream was woken during this turn, so another turn must poll it.
                return Action::Yield(Interest { readable: !is_over_limit, writable: false });
            }
        }
        let can_send =
            protocol(&mut self.core).next_ready(&conn.listener.http2_proto_limits).is_some();
        Action::Wait(Interest { readable: !is_over_limit, writable: is_full || can_send })
    }

    /// Starts the head timeout for the rest of an incomplete frame, unless it is already running.
    fn start_frame_timer<D: Driver>(&self, conn: &mut ConnectionContext<'_, D>) {
        let deadline = conn.worker.driver.now().saturating_add(conn.listener.limits.head_timeout);
        conn.io.deadlines.set_if_unset(TimeoutKind::Head, deadline);
    }

    /// Admits a request and calls its handler. `create_body` creates the request's body; its
    /// arguments are the stream and the route's maximum length of a body. If the first poll
    /// completes the handler, also writes its response.
    fn begin<D: Driver>(
        &mut self,
        slot: u32,
        mut head: RequestHead,
        conn: &mut ConnectionContext<'_, D>,
        create_body: impl FnOnce(&mut Stream, u64) -> Body,
    ) {
        let worker = conn.worker;
        let target = worker.application.find(&mut head, conn.info);
        let limit = target.body_limit(conn.listener.limits.body_bytes_max);
        let stream = self.streams.at(slot);
        // `on_request` has already admitted requests with content. Tunnels count as having none.
        if stream.exchange.admission.is_none() {
            let has_content = false;
            match conn.admit(&target, &head, has_content) {
                Ok(admission) => stream.exchange.admission = Some(admission),
                Err(reason) => return self.respond_shed(slot, reason, &head, conn),
            }
        }
        let body = create_body(stream, limit);
        let may_be_grpc = target.options().is_grpc && stream.request_body.has_unknown_length();
        stream.is_grpc_call = may_be_grpc && head.grpc_content_type().is_some();
        let states = Rc::clone(worker.application.states());
        let request = Request::new(head, body, states, Rc::clone(conn.info));
        stream.exchange.begin(target, request);
        stream.state = StreamState::RunningHandler;
        if let Poll::Ready(outcome) = self.poll_handler(slot, conn) {
            return self.respond(slot, outcome, conn);
        }
        let stream = self.streams.at(slot);
        let now = worker.driver.now();
        let deadline_after = |timeout: Option<Duration>| {
            timeout.map_or(Duration::MAX, |timeout| now.saturating_add(timeout))
        };
        stream.exchange.mark_pending(now);
        stream.deadlines.handler = deadline_after(stream.exchange.handler_timeout);
        stream.deadlines.exchange = deadline_after(conn.listener.limits.exchange_timeout);
        self.schedule_stream_timer(slot, conn);
    }

    fn poll_handler<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Poll<Result<Response, HandlerPanic>> {
        let Stream { exchange, waker, key, .. } = self.streams.at(slot);
        let result =
            exchange.poll_response(&mut Context::from_waker(waker), &conn.worker.heartbeat);
        if let Some(key) = *key {
            let (core, out) = (protocol(&mut self.core), &mut conn.io.output.plaintext);
            let unsent_bytes = out.len();
            exchange.send_interims(unsent_bytes, |status, fields| {
                core.send_interim(key, status, fields::header_map_pairs(fields), out);
            });
        }
        result
    }

    /// Polls the handler or the response body of a stream that was woken, and passes content to the
    /// handler.
    fn poll_stream<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        let Some(stream) = self.streams.get(slot) else { return };
        // If the handler reads content in this poll, `consumed` need not wake the stream, because
        // `forward_body` below checks how much was read.
        if let Some(consumed) = &stream.consumed {
            consumed.clear_waker();
        }
        match stream.state {
            StreamState::RunningHandler => {
                if let Poll::Ready(outcome) = self.poll_handler(slot, conn) {
                    self.respond(slot, outcome, conn);
                }
            }
            StreamState::SendingStreamed(_) => self.poll_response_body(slot, conn),
            // Nothing to poll.
            StreamState::Buffering { .. } | StreamState::SendingFull { .. } => {}
            StreamState::ReceivingAfterResponse
            | StreamState::DiscardingBody
            | StreamState::Vacant => {}
        }
        self.forward_body(slot, conn);
        self.streams.update_reservation(slot);
    }

    /// Ends an exchange whose response is complete. If the request is incomplete, the stream stays
    /// open: the rest of the request is received for the body's reader, or discarded.
    fn finish_exchange<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        self.has_ended_exchange = true;
        let stream = self.streams.at(slot);
        stream.exchange.report_request();
        if let Some(task) = stream.exchange.take_after_response() {
            let keep_awake = conn.worker.driver.keep_awake();
            conn.worker.driver.spawn_boxed(Box::pin(async move {
                task.await;
                drop(keep_awake);
            }));
        }
        self.last_written = stream.exchange.take_request_name();
        stream.exchange.reset();
        // If all content has arrived, pass the rest to the pipe even if the pipe is full, in case a
        // task continues to read it: the stream may be closed below.
        if let Some(trailers) = stream.pending_trailers.take() {
            stream.request_body.push(std::mem::take(&mut stream.buffered).into());
            stream.request_body.finish(|| trailers);
        }
        if !stream.key.is_some_and(|key| protocol(&mut self.core).is_stream_open(key)) {
            return self.streams.close(slot);
        }
        // An upgraded stream ends when its protocol ends, even if a task still reads its bytes.
        if stream.request_body.has_reader() && !stream.is_tunnel {
            stream.state = StreamState::ReceivingAfterResponse;
            if let Some(timeout) = conn.listener.limits.exchange_timeout {
                let deadline = conn.worker.driver.now().saturating_add(timeout);
                stream.deadlines.exchange = stream.deadlines.exchange.min(deadline);
            }
            return self.forward_body(slot, conn);
        }
        stream.request_body.fail(BodyError::Disconnected);
        self.discard_after_response(slot, conn);
    }

    /// Ends a stream before its request and its response are both complete. A handler that must run
    /// to completion continues without its stream.
    fn fail_stream(&mut self, slot: u32) {
        self.has_ended_exchange = true;
        let stream = self.streams.at(slot);
        stream.request_body.fail(BodyError::Disconnected);
        if stream.exchange.is_detachable() {
            let deadline = stream.deadlines.handler.min(stream.deadlines.exchange);
            let deadline = Some(deadline).filter(|deadline| *deadline != Duration::MAX);
            self.detached.push((std::mem::take(&mut stream.exchange), deadline));
        }
        self.streams.close(slot);
    }

    /// Resets a stream.
    fn reset_stream<D: Driver>(
        &mut self,
        slot: u32,
        code: ErrorCode,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        if let Some(key) = self.streams.at(slot).key {
            protocol(&mut self.core).reset(key, code, &mut conn.io.output.plaintext);
        }
        self.fail_stream(slot);
    }

    /// Fails all streams, because the connection has ended.
    pub(crate) fn fail_all(&mut self) {
        for slot in self.streams.slots() {
            if self.streams.get(slot).is_some() {
                self.fail_stream(slot);
            }
        }
    }

    /// Sends the final GOAWAY, unless it was sent before.
    pub(crate) fn send_final_goaway(&mut self, out: &mut Vec<u8>) {
        if let Some(core) = &mut self.core {
            core.protocol.close(ErrorCode::NO_ERROR, out);
        }
    }

    /// Takes the exchanges whose handlers must run to completion without their streams, and the
    /// handlers' deadlines.
    pub(crate) fn take_detachable(&mut self) -> impl Iterator<Item = (Exchange, Option<Duration>)> {
        self.detached.drain(..)
    }

    /// Returns whether any request in progress must never be rejected because of overload.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.streams.open_streams().any(|stream| stream.exchange.is_never_shed())
    }

    /// Returns whether a handler is running or a response is being sent on any stream.
    pub(crate) fn is_responding(&self) -> bool {
        self.streams.open_streams().any(Stream::is_responding)
    }

    /// The requests in progress and, unless all output was sent (`is_sent`), the request whose
    /// response was written last.
    pub(crate) fn in_flight(&self, is_sent: bool) -> impl Iterator<Item = InFlightRequest<'_>> {
        let open = self.streams.open_streams().filter_map(|stream| stream.exchange.in_flight());
        open.chain(
            self.last_written.as_ref().filter(|_| !is_sent).map(InFlightRequest::in_delivery),
        )
    }

    /// Returns whether any exchange has ended since the connection was last idle.
    pub(crate) fn has_ended_exchange(&self) -> bool {
        self.has_ended_exchange
    }

    /// Returns whether a stream was upgraded to another protocol since the connection was last
    /// idle.
    pub(crate) fn has_tunnel(&self) -> bool {
        self.has_tunnel
    }

    /// The memory of the stream table. Each stream accounts for its own content.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.streams.table_bytes()
    }

    /// Drops everything that belongs to the application, before the state is reused.
    pub(crate) fn reset(&mut self) {
        // For HTTP/1 connections, this check is the only cost.
        if !std::mem::take(&mut self.needs_reset) {
            return;
        }
        let Self {
            core, streams, head, buffering, readable, to_poll, detached, last_written, ..
        } = self;
        streams.reset();
        buffering.clear();
        readable.clear();
        to_poll.clear();
        detached.clear();
        (*core, *head, *last_written) = (None, None, None);
        (self.has_ended_exchange, self.received, self.sent, self.receive_progress) =
            (false, 0, 0, 0);
        self.has_tunnel = false;
        self.held_until = Duration::ZERO;
        (self.last_bytes_received, self.last_bytes_written) = (0, 0);
        (self.is_ping_pending, self.was_output_waiting) = (false, false);
    }

    /// Renders a problem in the application's format.
    fn render_problem<D: Driver>(
        &mut self,
        slot: u32,
        problem: Problem,
        conn: &ConnectionContext<'_, D>,
    ) -> Response {
        let application = &conn.worker.application;
        match self.streams.at(slot).exchange.head() {
            Some(head) => application.render_problem(problem, head),
            None => application.render_problem(problem, &RequestHead::from_pool()),
        }
    }
}
