//! HTTP/1 on a busy (not idle) connection: one exchange at a time.
//!
//! Start with [`Http1::turn`]. A turn does as much work as it can without waiting, and returns what
//! the connection must wait for.

mod disconnect;
mod encode;
mod error_response;
mod receive;
mod send;
mod timeouts;

use self::disconnect::ResponseProgress;
use self::receive::ForwardResult;
use self::send::BodyWriter;
use crate::exchange::in_flight::{InFlightRequest, RequestName};
use crate::exchange::request_body::RequestBodySender;
use crate::exchange::{Exchange, HandlerPanic, fields};
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::{ProbeSchedule, TimeoutKind};
use crate::io::transfer_rate::TransferRate;
use crate::observe::close_reason::CloseReason;
use crate::panic::CatchDropPanic;
use crate::worker::lifecycle::Lifecycle;
use bytes::Bytes;
use peregrine_driver::Driver;
use peregrine_proto::h1::{Event, Framing, NextAction, WaitingFor};
use peregrine_proto::{BodyLength, HeadIndex, RequestError, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::RequestHead;
use peregrine_web::{Request, Response};
use std::rc::Rc;
use std::task::{Context, Poll};

/// The HTTP/1 state of a busy connection, in memory that is reused.
pub(crate) struct Http1 {
    state: ExchangeState,
    /// The head that is being received.
    head: Option<RequestHead>,
    /// Passed to the protocol core while it receives a body. Its `receive` requires a head index
    /// even then, but does not change it.
    scratch_index: HeadIndex,
    exchange: Exchange,
    request_body: RequestBodySender,
    /// Whether another turn must poll the reader of the request's body. New content does not wake a
    /// reader that is part of the handler or of the response's body, because this connection's task
    /// polls those.
    repoll_reader: bool,
    /// The protocol error in the current request's body, if there was one. The connection then
    /// closes after the response.
    rejection: Option<RequestError>,
    /// Whether the current handler panicked.
    handler_panicked: bool,
    /// Whether, according to its head, the current request is the peer's last one.
    is_last_request: bool,
    /// Whether the current request uses HTTP/1.1, so that interim responses may be sent. They show
    /// whether a peer that has ended its sending side is still connected.
    can_probe: bool,
    probe: ProbeSchedule,
    /// The memory, in bytes, of the body in [`ExchangeState::SendingFull`] when its sending began.
    full_body_memory_bytes: usize,
    /// The last request whose response was written to the output. That response might not have been
    /// sent yet.
    last_written: Option<RequestName>,
    /// Whether the current exchange takes more than one turn. It may then have set deadlines and
    /// kept the driver awake.
    spans_turns: bool,
    /// Whether the idle time must start again when the connection becomes idle: since it was last
    /// idle, a response was completed, or [`Http1::require_idle_restart`] was called.
    requires_idle_restart: bool,
}

/// The current step of the connection.
enum ExchangeState {
    /// Receives a request's head, or waits for one.
    ReadingHead,
    /// Runs the handler.
    RunningHandler,
    /// Sends a large body from memory. The field is the part that is not written to the output yet.
    SendingFull(CatchDropPanic<Bytes>),
    /// Sends a body that the application produces piece by piece.
    SendingStreamed(BodyWriter),
    /// Receives the request's body for a task that continues to read it after the response is
    /// complete.
    ReceivingAfterResponse {
        /// How many bytes the task had read when the server last found the body's pipe full; `None`
        /// if it was never full.
        consumed: Option<u64>,
    },
    /// The response is complete. Discards the part of the request's body that was not read.
    DiscardingBody,
}

impl Default for Http1 {
    fn default() -> Self {
        Self {
            state: ExchangeState::ReadingHead,
            head: None,
            scratch_index: HeadIndex::default(),
            exchange: Exchange::default(),
            request_body: RequestBodySender::Finished,
            repoll_reader: false,
            rejection: None,
            handler_panicked: false,
            is_last_request: false,
            can_probe: false,
            probe: ProbeSchedule::default(),
            full_body_memory_bytes: 0,
            last_written: None,
            spans_turns: false,
            requires_idle_restart: false,
        }
    }
}

impl Http1 {
    /// Does as much work as it can without waiting.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        match self.state {
            ExchangeState::ReadingHead => self.receive_head(conn, cx),
            ExchangeState::RunningHandler => self.drive_handler(conn, cx),
            ExchangeState::SendingFull(_) => self.send_full_body(conn, cx),
            ExchangeState::SendingStreamed(_) => self.send_streamed_body(conn, cx),
            ExchangeState::ReceivingAfterResponse { .. } => self.receive_after_response(conn, cx),
            ExchangeState::DiscardingBody => self.discard_body_after_response(conn),
        }
    }

    /// Fails the request's body, because the connection is ending. The reader gets an error.
    pub(crate) fn fail_request_body(&mut self) {
        self.request_body.fail(BodyError::Disconnected);
    }

    /// Takes the exchange from a connection that is ending, if its handler must run to completion.
    pub(crate) fn take_detachable(&mut self) -> Option<Exchange> {
        self.exchange.is_detachable().then(|| std::mem::take(&mut self.exchange))
    }

    /// Takes the exchange, which continues with the upgraded protocol.
    pub(crate) fn take_exchange(&mut self) -> Exchange {
        std::mem::take(&mut self.exchange)
    }

    /// Returns whether a handler is running or a response is being sent.
    pub(crate) fn is_responding(&self) -> bool {
        !matches!(
            self.state,
            ExchangeState::ReadingHead
                | ExchangeState::ReceivingAfterResponse { .. }
                | ExchangeState::DiscardingBody
        )
    }

    /// Returns whether the current request must never be rejected because of overload.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.exchange.is_never_shed()
    }

    /// The request in progress. If there is none, the last request whose response was written but
    /// not completely sent. `is_sent` is whether all output was sent.
    pub(crate) fn in_flight(&self, is_sent: bool) -> Option<InFlightRequest<'_>> {
        let unsent = self.last_written.as_ref().filter(|_| !is_sent);
        self.exchange.in_flight().or(unsent.map(InFlightRequest::in_delivery))
    }

    /// Returns whether only the close of the connection marks the end of the response in progress.
    pub(crate) fn is_close_delimited(&self) -> bool {
        matches!(&self.state, ExchangeState::SendingStreamed(writer) if writer.is_close_delimited())
    }

    /// Drops the handler and its response.
    pub(crate) fn abort(&mut self) {
        self.exchange.abort();
    }

    /// Makes the idle time start again when the connection becomes idle, even if it completes no
    /// response until then. Called when an idle connection becomes busy without received bytes: it
    /// must send the rest of its last response or, over HTTP/2, a GOAWAY. So HTTP/2 connections use
    /// this flag too.
    pub(crate) fn require_idle_restart(&mut self) {
        self.requires_idle_restart = true;
    }

    /// Returns whether the idle time must start again when the connection becomes idle.
    pub(crate) fn requires_idle_restart(&self) -> bool {
        self.requires_idle_restart
    }

    /// The memory of a large response body that is being sent.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        if matches!(self.state, ExchangeState::SendingFull(_)) {
            self.full_body_memory_bytes
        } else {
            0
        }
    }

    /// Drops everything that belongs to the application, before the state is reused.
    pub(crate) fn reset(&mut self) {
        self.request_body = RequestBodySender::Finished;
        self.state = ExchangeState::ReadingHead;
        self.exchange.reset();
        self.head = None;
        self.last_written = None;
        self.rejection = None;
        (self.handler_panicked, self.spans_turns, self.requires_idle_restart) =
            (false, false, false);
    }

    fn receive_head<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        if conn.is_output_full() {
            return Action::Wait(Interest { readable: false, writable: true });
        }
        let head = self.head.get_or_insert_with(RequestHead::from_pool);
        let unread = conn.io.input.unread();
        let (used, event) =
            conn.protocol.receive(&conn.listener.proto_limits, unread, head.index_mut());
        match event {
            Event::Head(framing) => {
                let mut head = self.head.take().expect("the head was set above");
                // An empty line may precede the request line.
                let head_start = usize::from(framing.leading_bytes);
                head.set_bytes(&conn.io.input.unread()[head_start..used]);
                conn.io.input.consume(used);
                conn.io.deadlines.clear(TimeoutKind::Head);
                self.begin(head, framing, conn, cx)
            }
            Event::NeedInput => {
                conn.io.input.consume(used);
                self.wait_for_head(conn)
            }
            Event::RequestError(error) => self.reject(error, conn),
            Event::Closed => Action::linger(CloseReason::ConnectionClose),
            Event::Data(_) | Event::End | Event::Paused | Event::Upgraded => {
                unreachable!("the previous exchange has ended before a head is received")
            }
        }
    }

    /// Waits for a head or the rest of one. If the peer has ended its sending side, closes the
    /// connection.
    fn wait_for_head<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) -> Action {
        // Idle: not even the first byte of the next request has arrived.
        let is_before_head =
            matches!(conn.protocol.waiting_for(), WaitingFor::FirstByte | WaitingFor::NextRequest);
        let is_idle = conn.io.input.is_empty() && is_before_head;
        if conn.is_eof() {
            return match conn.protocol.receive_eof() {
                Event::RequestError(error) if !is_idle => self.reject(error, conn),
                _ => Action::close(CloseReason::PeerClosed),
            };
        }
        if is_idle {
            return Action::Idle;
        }
        let deadline = conn.worker.driver.now().saturating_add(conn.listener.limits.head_timeout);
        conn.io.deadlines.set_if_unset(TimeoutKind::Head, deadline);
        Action::Wait(Interest { readable: true, writable: false })
    }

    /// Admits a request and calls its handler.
    fn begin<D: Driver>(
        &mut self,
        mut head: RequestHead,
        framing: Framing,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let worker = conn.worker;
        worker.instrumentation.record_request();
        let version_and_info = (head.index().version, &*conn.info);
        let metrics = &mut self.exchange.metrics;
        metrics
            .start(worker.recorder.as_ref(), Some(&head), version_and_info, || worker.driver.now());
        self.is_last_request = !framing.keep_alive;
        self.can_probe = head.index().version == Version::Http11;
        if let Err(error) = conn.check_origin(&head) {
            self.exchange.metrics.set_head(&head);
            return self.reject(error, conn);
        }
        let target = worker.application.find(&mut head, conn.info);
        match conn.admit(&target, &head, framing.body != BodyLength::None) {
            Ok(admission) => self.exchange.admission = Some(admission),
            Err(reason) => return self.respond_shed(reason, &head, framing, conn),
        }
        let limit = target.body_limit(conn.listener.limits.body_bytes_max);
        let body = match self.receive_body(framing, limit, conn) {
            Ok(body) => body,
            Err(error) => {
                self.exchange.metrics.set_head(&head);
                return self.reject(error, conn);
            }
        };
        let states = Rc::clone(worker.application.states());
        let request = Request::new(head, body, states, Rc::clone(conn.info));
        self.exchange.begin(target, request);
        (self.probe, self.repoll_reader) = (ProbeSchedule::default(), false);
        if let Poll::Ready(outcome) = self.poll_handler(conn, cx) {
            return self.respond(outcome, conn);
        }
        self.state = ExchangeState::RunningHandler;
        self.spans_turns = true;
        conn.io.keep_awake.get_or_insert_with(|| worker.driver.keep_awake());
        let now = worker.driver.now();
        if let Some(timeout) = self.exchange.handler_timeout {
            conn.io.deadlines.set(TimeoutKind::Handler, now.saturating_add(timeout));
        }
        self.start_exchange_timer(now, conn);
        self.poll_request_body(ResponseProgress::NoContent, conn, cx)
    }

    fn drive_handler<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        match self.poll_handler(conn, cx) {
            Poll::Ready(outcome) => self.respond(outcome, conn),
            Poll::Pending => self.poll_request_body(ResponseProgress::NoContent, conn, cx),
        }
    }

    fn poll_handler<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response, HandlerPanic>> {
        let result = self.exchange.poll_response(cx, &conn.worker.heartbeat);
        let out = &mut conn.io.output.plaintext;
        let unsent_bytes = out.len();
        self.exchange.send_interims(unsent_bytes, |status, fields| {
            conn.protocol.send_interim(status, fields::header_map_pairs(fields), out);
        });
        result
    }

    /// Receives the request's body and detects a disconnect. Called when the handler or the
    /// response's body is not ready, and before a turn that sent many frames yields. `progress` is
    /// for [`Http1::on_peer_eof`].
    fn poll_request_body<D: Driver>(
        &mut self,
        progress: ResponseProgress,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let result = self.forward_body(conn, cx);
        let must_repoll = std::mem::take(&mut self.repoll_reader);
        match result {
            ForwardResult::Disconnected => Action::close(CloseReason::PeerAborted),
            // Poll the reader before the connection waits or closes.
            _ if must_repoll => Action::Continue,
            ForwardResult::Pending { readable } => self.wait_for_handler(readable, conn),
            ForwardResult::Done if conn.is_eof() => self.on_peer_eof(progress, conn),
            ForwardResult::Done => self.wait_for_handler(conn.may_read_ahead(), conn),
        }
    }

    /// Waits until the handler or the response's body wakes the connection and, if `readable`,
    /// until bytes arrive. While the server does not receive, only probes detect a reset.
    fn wait_for_handler<D: Driver>(
        &mut self,
        readable: bool,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        if !readable {
            self.schedule_probe(conn);
        }
        Action::Wait(Interest { readable, writable: false })
    }

    /// Called when the response is written, and again when the rest of the request's body was
    /// received or has no reader any more. Continues with the rest of that body or with the next
    /// request, or closes the connection.
    fn continue_after_response<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        self.requires_idle_restart = true;
        self.exchange.report_request();
        if let Some(task) = self.exchange.take_after_response() {
            let keep_awake = conn.worker.driver.keep_awake();
            conn.worker.driver.spawn_boxed(Box::pin(async move {
                task.await;
                drop(keep_awake);
            }));
        }
        if let Some(error) = self.rejection.take() {
            conn.protocol.stop_after_response();
            return Action::linger(CloseReason::Rejected(error));
        }
        if self.request_body.is_discarding() {
            conn.protocol.discard_body();
        }
        match conn.protocol.next_action() {
            // Only the request's body is incomplete. A task still reads it, so it is received, not
            // discarded. The request was reported above, so `abort` only drops what is left of the
            // handler and the response.
            NextAction::DiscardBody if self.request_body.has_reader() => {
                self.exchange.abort();
                self.state = ExchangeState::ReceivingAfterResponse { consumed: None };
                self.spans_turns = true;
                self.probe = ProbeSchedule::default();
                conn.io.keep_awake.get_or_insert_with(|| conn.worker.driver.keep_awake());
                Action::Continue
            }
            NextAction::Request => {
                self.finish_exchange(conn);
                Action::Continue
            }
            NextAction::DiscardBody => {
                self.finish_exchange(conn);
                self.state = ExchangeState::DiscardingBody;
                self.spans_turns = true;
                conn.io.receive_rate = TransferRate::new(conn.io.input.payload_bytes());
                Action::Continue
            }
            // The response is complete, so `Respond` and `Upgraded` do not occur.
            NextAction::Close | NextAction::Respond | NextAction::Upgraded => {
                let is_shutting_down = conn.worker.lifecycle() >= Lifecycle::LameDuck;
                // `ConnectionClose` covers all other reasons, for example that the rest of the
                // request's body is too long to discard.
                Action::linger(if self.handler_panicked {
                    CloseReason::HandlerPanicked
                } else if is_shutting_down && !self.is_last_request {
                    CloseReason::Drained
                } else {
                    CloseReason::ConnectionClose
                })
            }
        }
    }

    /// Drops what is left of the exchange, whose response is written, and prepares for the next
    /// one.
    fn finish_exchange<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        if let Some(name) = self.exchange.take_request_name() {
            self.last_written = Some(name);
        }
        self.exchange.reset();
        self.request_body = RequestBodySender::Finished;
        self.state = ExchangeState::ReadingHead;
        // Most exchanges complete in one turn. They set no deadlines and do not keep the driver
        // awake, so there is nothing to clear.
        if std::mem::take(&mut self.spans_turns) {
            conn.io.keep_awake = None;
            conn.io.deadlines.clear_all();
        }
    }
}
