//! HTTP/1 on a busy connection: one exchange at a time.
//!
//! Start with [`Http1::turn`]. A turn does as much work as it can without waiting, and returns what
//! to wait for.

mod disconnect;
mod encode;
mod error_response;
mod receive;
mod send;

use self::disconnect::Progress;
use self::receive::ForwardResult;
use self::send::BodyWriter;
use crate::exchange::in_flight::{InFlightRequest, RequestName};
use crate::exchange::request_body::RequestBodySender;
use crate::exchange::{Exchange, HandlerPanic, fields};
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::{ProbeSchedule, TimeoutKind};
use crate::io::transfer_rate::TransferRate;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ErrorType;
use crate::panic::CatchDropPanic;
use crate::worker::lifecycle::Lifecycle;
use bytes::Bytes;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::{Event, Framing, NextAction, WaitingFor};
use peregrine_proto::{BodyLength, HeadIndex, RequestError, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::RequestHead;
use peregrine_web::{Problem, Request, Response};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The HTTP/1 state of a busy connection, in memory that is reused.
pub(crate) struct Http1 {
    state: ExchangeState,
    /// The head that is being received.
    head: Option<RequestHead>,
    /// A head index for calls of the protocol core that require one but do not fill it.
    scratch_index: HeadIndex,
    exchange: Exchange,
    request_body: RequestBodySender,
    /// Whether content was pushed without waking the body's reader, because this task polls it.
    repoll_reader: bool,
    /// The protocol error in the current request's body.
    rejected: Option<RequestError>,
    /// Whether the current handler panicked.
    panicked: bool,
    /// Whether the peer announced that it will send no further request.
    is_last_request: bool,
    /// Whether a peer that has ended its sending side may be probed with an interim response
    /// (HTTP/1.1).
    can_probe: bool,
    probe: ProbeSchedule,
    /// The memory of a large response body that is being sent.
    full_body_bytes: usize,
    /// The last request whose response is written but perhaps not sent yet.
    last_written: Option<RequestName>,
    /// Whether the current exchange had to wait.
    was_pending: bool,
    /// Whether a response was completed since the connection was last idle.
    has_responded: bool,
}

/// The current step.
enum ExchangeState {
    /// Receives a request's head, or waits for one.
    ReadingHead,
    /// The handler works on its response.
    RunningHandler,
    /// Sends a large body from memory. The field is the part that is not sent yet.
    SendingFull(CatchDropPanic<Bytes>),
    /// Sends a body frame by frame.
    SendingStream(BodyWriter),
    /// The response is complete, and a task continues to read the request's body.
    ReceivingBody {
        /// How many bytes the task had read when the server last found its pipe full.
        consumed: Option<u64>,
    },
    /// Discards the part of the request's body that the handler did not read.
    DrainingBody,
}

impl Default for Http1 {
    fn default() -> Self {
        Self {
            state: ExchangeState::ReadingHead,
            head: None,
            scratch_index: HeadIndex::default(),
            exchange: Exchange::default(),
            request_body: RequestBodySender::Complete,
            repoll_reader: false,
            rejected: None,
            panicked: false,
            is_last_request: false,
            can_probe: false,
            probe: ProbeSchedule::default(),
            full_body_bytes: 0,
            last_written: None,
            was_pending: false,
            has_responded: false,
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
            ExchangeState::SendingStream(_) => self.send_streamed_body(conn, cx),
            ExchangeState::ReceivingBody { .. } => self.receive_after_response(conn, cx),
            ExchangeState::DrainingBody => self.drain_body(conn),
        }
    }

    /// Handles an expired deadline.
    pub(crate) fn on_timeout<D: Driver>(
        &mut self,
        kind: TimeoutKind,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        match (kind, &self.state) {
            (TimeoutKind::Head, _) => {
                conn.protocol.drain();
                self.respond_problem(Problem::head_timeout(), conn);
                Action::linger(CloseReason::HeadTimeout)
            }
            (TimeoutKind::Receive, ExchangeState::DrainingBody) => {
                Action::linger(CloseReason::BodyTooSlow)
            }
            (TimeoutKind::Receive, ExchangeState::ReceivingBody { .. }) => {
                self.request_body.fail(BodyError::TooSlow);
                Action::linger(CloseReason::BodyTooSlow)
            }
            (
                TimeoutKind::BodyReader | TimeoutKind::Exchange,
                ExchangeState::ReceivingBody { .. },
            ) => {
                self.request_body.fail(BodyError::Disconnected);
                self.request_body = RequestBodySender::Discarding;
                Action::Continue
            }
            (TimeoutKind::Idle, _) if !conn.is_idle_expired() => Action::Continue,
            (TimeoutKind::Receive | TimeoutKind::Idle, _) => {
                conn.worker.instrumentation.record_limit(match kind {
                    TimeoutKind::Receive => "transfer_rate_min",
                    _ => "upgraded_idle_timeout",
                });
                self.request_body.fail(BodyError::TooSlow);
                self.request_body = RequestBodySender::Discarding;
                conn.protocol.drain();
                Action::Continue
            }
            (TimeoutKind::Handler | TimeoutKind::Exchange, ExchangeState::RunningHandler) => {
                conn.worker.instrumentation.record_limit(match kind {
                    TimeoutKind::Handler => "route_timeout",
                    _ => "exchange_timeout",
                });
                self.exchange.metrics.set_error(ErrorType::Timeout);
                self.exchange.drop_handler();
                let response = self.render_problem(Problem::handler_timeout(), conn);
                self.respond(Ok(response), conn)
            }
            (TimeoutKind::Exchange, _) => Action::close(CloseReason::ExchangeTimeout),
            // The server is not receiving, so only this probe detects that the peer has reset the
            // connection.
            (TimeoutKind::Probe, _) if conn.stream.is_broken() => {
                self.request_body.fail(BodyError::Disconnected);
                Action::close(CloseReason::PeerAborted)
            }
            // The turn sends the next probe.
            (TimeoutKind::Probe, _) => Action::Continue,
            _ => Action::Continue,
        }
    }

    /// Fails the request's body, because the connection is over. Its reader gets an error.
    pub(crate) fn fail(&mut self) {
        self.request_body.fail(BodyError::Disconnected);
    }

    /// Takes the exchange, if its handler must run to completion.
    pub(crate) fn take_detachable(&mut self) -> Option<Exchange> {
        self.exchange.is_detachable().then(|| std::mem::take(&mut self.exchange))
    }

    /// Takes the exchange, which continues with the upgraded protocol.
    pub(crate) fn take_exchange(&mut self) -> Exchange {
        std::mem::take(&mut self.exchange)
    }

    /// Returns whether a handler is running or a response is being sent.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(
            self.state,
            ExchangeState::ReadingHead
                | ExchangeState::ReceivingBody { .. }
                | ExchangeState::DrainingBody
        )
    }

    /// Returns whether the current request must never be rejected.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.exchange.is_never_shed()
    }

    /// The request in progress. If there is none, and unless all output `is_sent`, the last request
    /// whose response is complete.
    pub(crate) fn in_flight(&self, is_sent: bool) -> Option<InFlightRequest<'_>> {
        let written = self.last_written.as_ref().filter(|_| !is_sent);
        self.exchange.in_flight().or(written.map(InFlightRequest::in_delivery))
    }

    /// Returns whether the response in progress ends when the connection closes, without another
    /// delimiter.
    pub(crate) fn is_close_delimited(&self) -> bool {
        matches!(&self.state, ExchangeState::SendingStream(writer) if writer.is_close_delimited())
    }

    /// Drops the handler and its response.
    pub(crate) fn abort(&mut self) {
        self.exchange.abort();
    }

    /// Records that a response from before the connection became idle is still being sent. The idle
    /// time begins when all of it is sent.
    pub(crate) fn mark_flush_pending(&mut self) {
        self.has_responded = true;
    }

    /// Returns whether a response was completed since the connection was last idle.
    pub(crate) fn has_responded(&self) -> bool {
        self.has_responded
    }

    /// The memory of a response body that waits to be sent.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        if matches!(self.state, ExchangeState::SendingFull(_)) { self.full_body_bytes } else { 0 }
    }

    /// Drops everything that belongs to the application, before the state is reused.
    pub(crate) fn reset(&mut self) {
        self.request_body = RequestBodySender::Complete;
        self.state = ExchangeState::ReadingHead;
        self.exchange.reset();
        self.head = None;
        self.last_written = None;
        self.rejected = None;
        (self.panicked, self.was_pending, self.has_responded) = (false, false, false);
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
            conn.protocol.receive(&conn.listener.protocol, unread, head.index_mut());
        match event {
            Event::Head(framing) => {
                let mut head = self.head.take().expect("the head was set before `receive`");
                let skip = usize::from(framing.skip);
                head.set_bytes(&conn.io.input.unread()[skip..used]);
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
                unreachable!("an exchange leaves the protocol before the next head")
            }
        }
    }

    /// Waits for the rest of a head.
    fn wait_for_head<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) -> Action {
        let is_between_requests =
            matches!(conn.protocol.waiting_for(), WaitingFor::FirstByte | WaitingFor::Idle);
        let is_idle = conn.io.input.is_empty() && is_between_requests;
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
        self.was_pending = true;
        conn.io.keep_awake.get_or_insert_with(|| worker.driver.keep_awake());
        let now = worker.driver.now();
        if let Some(timeout) = self.exchange.handler_timeout {
            conn.io.deadlines.set(TimeoutKind::Handler, now.saturating_add(timeout));
        }
        self.start_exchange_timer(now, conn);
        self.poll_request_body(Progress::None, conn, cx)
    }

    /// Starts the timeout of the whole exchange, if there is one.
    fn start_exchange_timer<D: Driver>(
        &mut self,
        now: Duration,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        self.exchange.mark_pending(now);
        if let Some(timeout) = conn.listener.limits.exchange_timeout {
            conn.io.deadlines.set_if_unset(TimeoutKind::Exchange, now.saturating_add(timeout));
        }
    }

    fn drive_handler<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        match self.poll_handler(conn, cx) {
            Poll::Ready(outcome) => self.respond(outcome, conn),
            Poll::Pending => self.poll_request_body(Progress::None, conn, cx),
        }
    }

    fn poll_handler<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Response, HandlerPanic>> {
        let result = self.exchange.poll_response(cx, &conn.worker.heartbeat);
        let out = &mut conn.io.output.plaintext;
        self.exchange.send_interims(out.len(), |status, fields| {
            conn.protocol.send_interim(status, fields::header_map_pairs(fields), out);
        });
        result
    }

    /// Receives the request's body and detects a disconnect. Called while the handler, or the
    /// response body that it returned, is not ready.
    fn poll_request_body<D: Driver>(
        &mut self,
        progress: Progress,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let result = self.forward_body(conn, cx);
        let must_repoll = std::mem::take(&mut self.repoll_reader);
        match result {
            ForwardResult::Disconnected => Action::close(CloseReason::PeerAborted),
            // The body's reader was not woken, so another turn must poll it.
            _ if must_repoll => Action::Continue,
            ForwardResult::Pending(readable) => {
                self.schedule_probe(readable, conn);
                Action::Wait(Interest { readable, writable: false })
            }
            ForwardResult::Done if conn.is_eof() => self.on_peer_eof(progress, conn),
            ForwardResult::Done => {
                let readable = conn.may_read_ahead();
                self.schedule_probe(readable, conn);
                Action::Wait(Interest { readable, writable: false })
            }
        }
    }

    /// Called when the response is written: continues with the next request or with the rest of
    /// this request's body, or closes the connection.
    fn finish_response<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) -> Action {
        self.has_responded = true;
        self.exchange.finish();
        if let Some(task) = self.exchange.take_after_response() {
            let keep_awake = conn.worker.driver.keep_awake();
            conn.worker.driver.spawn_boxed(Box::pin(async move {
                task.await;
                drop(keep_awake);
            }));
        }
        if let Some(error) = self.rejected.take() {
            conn.protocol.drain();
            return Action::linger(CloseReason::Rejected(error));
        }
        if self.request_body.is_discarding() {
            conn.protocol.discard_body();
        }
        match conn.protocol.next_action() {
            NextAction::DiscardBody if self.request_body.has_reader() => {
                self.exchange.abort();
                self.state = ExchangeState::ReceivingBody { consumed: None };
                self.was_pending = true;
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
                self.state = ExchangeState::DrainingBody;
                self.was_pending = true;
                conn.io.receive_rate = TransferRate::new(conn.io.input.payload_bytes());
                Action::Continue
            }
            NextAction::Close | NextAction::Respond | NextAction::Upgraded => {
                Action::linger(match () {
                    () if self.panicked => CloseReason::HandlerPanicked,
                    () if self.is_last_request => CloseReason::ConnectionClose,
                    () if conn.worker.lifecycle() >= Lifecycle::LameDuck => CloseReason::Drained,
                    () => CloseReason::ConnectionClose,
                })
            }
        }
    }

    /// Clears the exchange after its response is written and no application code runs any more.
    fn finish_exchange<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        if let Some(name) = self.exchange.take_request_name() {
            self.last_written = Some(name);
        }
        self.exchange.reset();
        self.request_body = RequestBodySender::Complete;
        self.state = ExchangeState::ReadingHead;
        // Most handlers respond at once. Such an exchange set no deadlines and did not keep the
        // driver awake, so there is nothing to clear.
        if std::mem::take(&mut self.was_pending) {
            conn.io.keep_awake = None;
            conn.io.deadlines.clear_all();
        }
    }
}
