//! One request and its response, independent of the connection and the HTTP version.
//!
//! An [`Exchange`] takes a request and produces interim responses, a response head and body frames.
//! The connection passes the request's body to the handler through a
//! [`RequestBodySender`](request_body::RequestBodySender). All application code (handlers, bodies,
//! upgraded protocols) runs here, inside the request's span, and panics of that code are caught
//! here. The exchange reuses the memory of each handler's future for the next handler.

pub(crate) mod fields;
pub(crate) mod in_flight;
pub(crate) mod request_body;

use self::in_flight::{InFlightRequest, RequestName, UpgradedTask};
use crate::admission::AdmissionPermit;
use crate::observe::close_reason::InFlightStage;
use crate::observe::metrics::ErrorType;
use crate::observe::request_metrics::RequestMetrics;
use crate::observe::span;
use crate::observe::trace::RequestSpan;
use crate::observe::watchdog::Heartbeat;
use crate::panic::{catch_panic, panic_message};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame};
use peregrine_slot::{FutureSlot, PinnedFuture};
use peregrine_web::body::{BodyError, BodyPart};
use peregrine_web::built::MatchedEndpoint;
use peregrine_web::handler::OnDisconnect;
use peregrine_web::head::RequestHead;
use peregrine_web::memory::MemoryReservation;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::problem::LoadShed;
use peregrine_web::response::AfterResponse;
use peregrine_web::route::display_pattern;
use peregrine_web::scope::CATCH_ALL;
use peregrine_web::upgrade::{UpgradeHandler, Upgraded};
use peregrine_web::{Body, Request, Response};
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The memory of a handler's future is reused for the next one up to this size. Otherwise, it is
/// freed with the future.
const RETAINED_SLOT_BYTES_MAX: usize = 64 * 1024;

/// The approximate memory of a waiting request besides its head and body: the head index and the
/// handler's future.
const PENDING_REQUEST_BYTES: usize = 1024;

/// If more bytes of output than this are unsent, interim responses are dropped.
const INTERIM_UNSENT_BYTES_MAX: usize = 16 * 1024;

/// Holds one exchange at a time, and is reused for the next one.
///
/// The order of the fields is chosen for the processor's cache, and `repr(C)` preserves it. The
/// fields that an upgraded protocol uses for each message come first, so that together they occupy
/// few cache lines: with thousands of active connections, every cache line must be fetched from
/// memory.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Exchange {
    /// The protocol that the request was upgraded to.
    upgraded: Option<UpgradedTask>,
    name: Option<RequestName>,
    /// The request's span. Application code runs inside it.
    span: RequestSpan,
    handler: Option<PinnedFuture<'static, Response>>,
    /// Reusable memory for the next handler's future. Empty while a handler uses that memory.
    slot: FutureSlot,
    /// The body of the response while it is being sent.
    body: Option<Body>,
    /// A future to spawn on the worker when the response is complete. If code outside the handler
    /// still reads the request's body, the future continues to forward the body to that code.
    after_response: Option<AfterResponse>,
    /// When the exchange first had to wait; `None` if it never did.
    pending_since: Option<Duration>,
    on_disconnect: OnDisconnect,
    /// Measures the request for metrics, traces and the access log.
    pub(crate) metrics: RequestMetrics,
    /// The request counts as in progress until this permit is dropped.
    pub(crate) admission: Option<AdmissionPermit>,
    /// Accounts for the memory of a waiting request.
    reservation: MemoryReservation,
    /// Bytes of the request's body that arrived before the handler was called. Included in
    /// `reservation`.
    content_bytes: usize,
    /// The route's timeout for the handler.
    pub(crate) handler_timeout: Option<Duration>,
    /// The request's head, for the server's own responses and log lines.
    head: Option<RequestHead>,
    /// Interim responses that the last poll of the handler produced. They are not sent yet.
    interim_responses: Vec<(StatusCode, HeaderMap)>,
}

/// Drops a handler's future and reuses its memory for the next one.
fn recycle_slot(slot: &mut FutureSlot, handler: PinnedFuture<'static, Response>) {
    match catch_panic("the destructor of a handler's future", || handler.into_slot()) {
        Some(recycled) if recycled.capacity() <= RETAINED_SLOT_BYTES_MAX => *slot = recycled,
        _ => {}
    }
}

/// The message of a panic in a handler or an upgraded protocol.
#[derive(Debug)]
pub(crate) struct HandlerPanic(pub(crate) String);

impl Exchange {
    /// Starts the exchange for `request`. No application code runs before the first poll.
    pub(crate) fn begin(&mut self, target: MatchedEndpoint<'_>, request: Request) {
        debug_assert!(self.handler.is_none(), "the previous exchange must have ended");
        let options = target.options();
        (self.on_disconnect, self.handler_timeout) = (options.on_disconnect, options.timeout);
        let pattern = target.pattern();
        self.metrics.set_route(request.parts.head.route_id());
        self.metrics.set_head(&request.parts.head);
        self.head = Some(request.parts.head.share());
        self.content_bytes = request.body.as_slice().map_or(0, <[u8]>::len);
        self.start_span(&request, pattern.map(|pattern| &**pattern));
        let method = request.parts.head.index().method;
        self.name = Some(RequestName { method, pattern: pattern.map(Rc::clone) });
        self.handler = Some(target.call(std::mem::take(&mut self.slot), request));
    }

    /// Starts the request's span, if spans are enabled.
    #[inline]
    fn start_span(&mut self, request: &Request, pattern: Option<&str>) {
        let Some(tracer) = self.metrics.tracer() else {
            let span = span::minimal_span(request, pattern);
            self.span.span = (!span.is_disabled()).then_some(span);
            return;
        };
        tracer.start_span(request, pattern, &mut self.span);
        if let Some(trace_context) = &self.span.trace_context {
            self.metrics.set_trace_context(trace_context);
        }
    }

    /// Reports the request, whether complete or aborted, to metrics, traces and the access log.
    pub(crate) fn report_request(&mut self) {
        if self.metrics.tracer().is_some()
            && let Some(span) = &self.span.span
        {
            span::record_end(span, self.metrics.summary());
        }
        self.metrics.finish();
    }

    /// Accounts for the memory of an exchange that has to wait. The first call sets the beginning
    /// of the wait to `now`.
    pub(crate) fn mark_pending(&mut self, now: Duration) {
        self.pending_since.get_or_insert(now);
        let head_bytes = self.head.as_ref().map_or(0, |head| head.as_bytes().len());
        self.reservation.resize(PENDING_REQUEST_BYTES + head_bytes + self.content_bytes);
    }

    /// The request in progress, from [`Exchange::begin`] to [`Exchange::reset`].
    pub(crate) fn in_flight(&self) -> Option<InFlightRequest<'_>> {
        let stage = if self.handler.is_some() {
            InFlightStage::Handler
        } else if self.upgraded.is_some() {
            InFlightStage::Upgraded
        } else {
            InFlightStage::Response
        };
        self.name.as_ref().map(|name| InFlightRequest {
            name,
            stage,
            pending_since: self.pending_since,
        })
    }

    /// The request's name, from [`Exchange::begin`] to [`Exchange::reset`].
    pub(crate) fn request_name(&self) -> Option<&RequestName> {
        self.name.as_ref()
    }

    /// The request's head, from [`Exchange::begin`] to [`Exchange::reset`].
    pub(crate) fn head(&self) -> Option<&RequestHead> {
        self.head.as_ref()
    }

    /// Runs `log`, which writes a log line, inside the request's span.
    pub(crate) fn in_span(&self, log: impl FnOnce()) {
        catch_subscriber_panic(|| self.span.in_scope(log));
    }

    /// Logs a panic of application code together with its request. `source` names the code, such as
    /// `a handler`.
    pub(crate) fn log_panic(
        &self,
        source: &str,
        handler_panic: &HandlerPanic,
        peer: &impl fmt::Display,
    ) {
        let request = self.name.as_ref().map(ToString::to_string).unwrap_or_default();
        let (panic, route) = (&handler_panic.0, self.route());
        self.in_span(|| {
            tracing::error!(target: "peregrine", panic, request, route = route.as_deref(), %peer,
                "{source} panicked");
        });
    }

    /// The route's pattern, from [`Exchange::begin`] to [`Exchange::reset`].
    pub(crate) fn route(&self) -> Option<Cow<'_, str>> {
        self.name.as_ref()?.pattern.as_deref().map(display_pattern)
    }

    /// Takes the request's name, for a caller that needs it after the exchange.
    pub(crate) fn take_request_name(&mut self) -> Option<RequestName> {
        self.name.take()
    }

    /// Returns whether a handler is running that must run to completion even if its client
    /// disconnects. In that case, the exchange is detached from its connection.
    pub(crate) fn is_detachable(&self) -> bool {
        self.handler.is_some() && self.on_disconnect == OnDisconnect::RunToCompletion
    }

    /// Polls the handler for its response. Must not be called again after it returns `Ready`.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        heartbeat: &Heartbeat,
    ) -> Poll<Result<Response, HandlerPanic>> {
        let mut handler = self.handler.take().expect("no handler is polled after it has responded");
        let pattern = self.name.as_ref().and_then(|name| name.pattern.as_deref());
        let poll_guard = heartbeat.start_poll(pattern);
        // A future that panicked is never polled again, so `AssertUnwindSafe` cannot expose
        // inconsistent state.
        let result = self.span.in_scope(|| {
            let run = AssertUnwindSafe(|| Pin::new(&mut handler).poll(cx));
            let result = catch_unwind(run);
            match result {
                Ok(Poll::Pending) => self.handler = Some(handler),
                _ => recycle_slot(&mut self.slot, handler),
            }
            result
        });
        let had_warning = poll_guard.has_warning();
        drop(poll_guard);
        // If a mounted service blocked, the watchdog's warning names only the mount, so log the
        // request too.
        if had_warning
            && pattern.is_some_and(|pattern| pattern.ends_with(CATCH_ALL))
            && let Some(head) = &self.head
        {
            log_blocking_request(pattern, head);
        }
        if let Some(head) = &self.head {
            let is_finished = !matches!(result, Ok(Poll::Pending));
            self.interim_responses = head.take_interim_responses(is_finished, cx);
        }
        let outcome = match result {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(mut response)) => {
                if let Some(head) = &self.head {
                    PrivateResponse::finish_response(head, &mut response);
                }
                // If an extractor failed because of the memory limit, count the request as rejected
                // because of overload.
                let extensions =
                    response.extensions().filter(|_| response.status.is_server_error());
                if extensions.is_some_and(|extensions| extensions.get::<LoadShed>().is_some()) {
                    self.metrics.set_error(ErrorType::Overloaded);
                }
                Ok(response)
            }
            Err(panic) => Err(HandlerPanic(panic_message(panic))),
        };
        Poll::Ready(outcome)
    }

    /// Passes the interim responses that the last poll produced to `send`. If much output
    /// (`unsent_bytes`) is unsent, the peer receives slowly, and the interim responses are dropped:
    /// they are only hints.
    pub(crate) fn send_interims(
        &mut self,
        unsent_bytes: usize,
        mut send: impl FnMut(u16, &HeaderMap),
    ) {
        for (status, fields) in std::mem::take(&mut self.interim_responses) {
            if unsent_bytes <= INTERIM_UNSENT_BYTES_MAX {
                send(status.as_u16(), &fields);
            }
        }
    }

    /// Drops the handler's future, if there is one, and reuses its memory for the next one.
    pub(crate) fn drop_handler(&mut self) {
        if let Some(handler) = self.handler.take() {
            self.span.in_scope(|| recycle_slot(&mut self.slot, handler));
        }
    }

    /// Returns whether the request must never be rejected because of overload.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.admission.as_ref().is_some_and(|permit| permit.is_never_shed)
    }

    /// The length of `body`, if it is known.
    pub(crate) fn body_length(body: &Body) -> Option<u64> {
        catch_panic("a body's size hint", || body.length()).flatten()
    }

    /// Returns whether neither content nor trailers follow in `body`.
    pub(crate) fn is_end_of_body(body: &Body) -> bool {
        catch_panic("a body's end", || body.is_end_stream()).unwrap_or(true)
    }

    /// Stores the future to spawn when the response is complete.
    pub(crate) fn set_after_response(&mut self, future: Option<AfterResponse>) {
        self.after_response = future;
    }

    /// Takes the future that [`Exchange::set_after_response`] stored.
    pub(crate) fn take_after_response(&mut self) -> Option<AfterResponse> {
        self.after_response.take()
    }

    /// Stores the protocol of an upgraded connection or stream. The next poll starts it.
    pub(crate) fn set_upgraded(&mut self, handler: UpgradeHandler, io: Upgraded) {
        self.upgraded = Some(UpgradedTask::NotStarted(Some((handler, io))));
    }

    /// Polls the upgraded protocol, if there is one, and drops it when it completes or panics.
    pub(crate) fn poll_upgraded(
        &mut self,
        cx: &mut Context<'_>,
        heartbeat: &Heartbeat,
    ) -> Result<(), HandlerPanic> {
        let Some(task) = &mut self.upgraded else { return Ok(()) };
        let pattern = self.name.as_ref().and_then(|name| name.pattern.as_deref());
        let _poll_guard = heartbeat.start_poll(pattern);
        let run = AssertUnwindSafe(|| task.poll(cx));
        let result = self.span.in_scope(|| catch_unwind(run));
        if let Ok(Poll::Pending) = result {
            return Ok(());
        }
        self.drop_upgraded();
        result.map(drop).map_err(|panic| HandlerPanic(panic_message(panic)))
    }

    /// Returns whether an upgraded protocol has been set and has not ended.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.upgraded.is_some()
    }

    fn drop_upgraded(&mut self) {
        let Some(task) = self.upgraded.take() else { return };
        let drop_task = || catch_panic("the destructor of an upgraded protocol", || drop(task));
        self.span.in_scope(drop_task);
    }

    /// Stores the response's body, to be sent frame by frame.
    pub(crate) fn set_body(&mut self, body: Body) {
        self.body = Some(body);
    }

    /// Polls for the next frame of the response's body; `None` at the end of the body. If the body
    /// panics, it fails with [`BodyError::Stream`].
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        heartbeat: &Heartbeat,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll_body(heartbeat, |body| body.poll_frame(cx))
    }

    /// Like [`Exchange::poll_frame`], for a driver that sends files without reading them into
    /// memory: parts of files are returned as such.
    pub(crate) fn poll_body_part(
        &mut self,
        cx: &mut Context<'_>,
        heartbeat: &Heartbeat,
    ) -> Poll<Option<Result<BodyPart, BodyError>>> {
        self.poll_body(heartbeat, |body| body.poll_part(cx))
    }

    fn poll_body<T>(
        &mut self,
        heartbeat: &Heartbeat,
        poll: impl FnOnce(Pin<&mut Body>) -> Poll<Option<Result<T, BodyError>>>,
    ) -> Poll<Option<Result<T, BodyError>>> {
        let pattern = self.name.as_ref().and_then(|name| name.pattern.as_deref());
        let _poll_guard = heartbeat.start_poll(pattern);
        let body = Pin::new(self.body.as_mut().expect("a streamed response has a body"));
        let run = AssertUnwindSafe(|| poll(body));
        let result = self.span.in_scope(|| catch_unwind(run));
        result.unwrap_or_else(|panic| {
            let error = format!("the stream panicked: {}", panic_message(panic)).into();
            Poll::Ready(Some(Err(BodyError::Stream(error))))
        })
    }

    /// Drops all application code of the exchange: the handler, the upgraded protocol, the
    /// response's body and the future to spawn after the response. If the request has not been
    /// reported yet, reports it as aborted. Its name and head remain for log lines.
    pub(crate) fn abort(&mut self) {
        if self.metrics.is_started() {
            self.metrics.mark_aborted();
            self.report_request();
        }
        self.drop_handler();
        self.drop_upgraded();
        if let Some(future) = self.after_response.take() {
            let drop_future = || catch_panic("the destructor of a request's body", || drop(future));
            self.span.in_scope(drop_future);
        }
        if let Some(body) = self.body.take() {
            let drop_body = || catch_panic("the destructor of a response's body", || drop(body));
            self.span.in_scope(drop_body);
        }
        self.admission = None;
        self.reservation.resize(0);
    }

    /// Aborts the exchange if it is still running, and clears its state for the next one.
    pub(crate) fn reset(&mut self) {
        self.abort();
        (self.name, self.head, self.pending_since) = (None, None, None);
        self.span.clear();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Logs the request whose handler blocked, because the watchdog's warning named only the mount.
#[cold]
fn log_blocking_request(pattern: Option<&str>, head: &RequestHead) {
    let route = pattern.map(display_pattern).unwrap_or_default();
    let (method, path) = (head.method_str(), head.path());
    catch_subscriber_panic(|| {
        tracing::warn!(target: "peregrine", %route, method, path,
        "this request's handler, inside a mounted service, blocked its thread")
    });
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("runs", &self.handler.is_some()).finish_non_exhaustive()
    }
}
