//! Receives requests, and passes their content to the handlers.

use super::streams::{Stream, StreamDeadlines, StreamState};
use super::{Http2, protocol};
use crate::admission::ShedReason;
use crate::exchange::body_sender::{BodyCapacity, RequestBodySender};
use crate::exchange::fields;
use crate::io::context::{Action, ConnectionContext};
use crate::io::timeouts::TimeoutKind;
use crate::io::transfer_rate::TransferRate;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::Violation;
use crate::worker::lifecycle::Lifecycle;
use bytes::Bytes;
use peregrine_driver::Driver;
use peregrine_proto::h2::{ErrorCode, Event, Request, StreamKey};
use peregrine_proto::{BodyLength, RequestError, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::RequestHead;
use peregrine_web::panic::catch_log_panic;
use peregrine_web::pipe::pipe;
use peregrine_web::{Body, pool};
use std::mem::take;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Duration;

impl Http2 {
    /// Parses everything that has arrived, as long as the output buffer has room for replies.
    pub(super) fn receive<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
    ) -> Result<(), Action> {
        let outcome = self.receive_all(link);
        for number in take(&mut self.buffering) {
            self.begin_with_pipe(number, link);
            self.streams.update_reservation(number);
        }
        let mut fed = take(&mut self.readable);
        for number in fed.drain(..) {
            self.forward_body(number, link);
            self.streams.update_reservation(number);
        }
        self.readable = fed;
        outcome
    }

    fn receive_all<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
    ) -> Result<(), Action> {
        while !link.is_output_over_limit() {
            let head = self.head.get_or_insert_with(RequestHead::from_pool);
            let (bytes, index) = head.buffers_mut();
            let (unread, out) = (link.io.input.unread(), &mut link.io.output.plaintext);
            let limits = &link.listener.http2_protocol;
            let (used, event) = protocol(&mut self.core).receive(limits, unread, bytes, index, out);
            if let Event::Data { stream, range } = event {
                self.on_data(stream, range, link);
                link.io.input.consume(used);
                continue;
            }
            link.io.input.consume(used);
            // These events do not extend the timeout for heads, and neither do frames without an
            // event.
            let is_idle =
                matches!(event, Event::Settings | Event::StreamError { .. } | Event::GoAway { .. });
            if !is_idle && !matches!(event, Event::NeedInput) {
                link.io.deadlines.clear(TimeoutKind::Head);
            }
            match event {
                Event::NeedInput => return Ok(()),
                Event::Request(request) => self.on_request(request, link),
                Event::End { stream } => self.on_end_stream(stream, link),
                Event::RequestError { stream, error: reject } => {
                    self.reject_stream(stream, reject, link)
                }
                Event::Reset { stream, cause } => {
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %link.info.peer,
                        id = stream.id(), ?cause, "a stream was reset")
                    });
                    if let Some(number) = self.streams.find(stream) {
                        self.fail_stream(number);
                    }
                }
                Event::StreamError { id, error: reject } => {
                    link.worker
                        .instrumentation
                        .metrics()
                        .record_violation(Violation::Http2(reject));
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %link.info.peer, id, %reject,
                        "a stream was refused")
                    });
                }
                Event::GoAway { code } => {
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %link.info.peer, ?code,
                        "the peer sent GOAWAY")
                    });
                }
                Event::Settings | Event::Data { .. } => {}
                Event::ConnectionError(reject) => {
                    return Err(Action::linger(CloseReason::Http2Rejected(reject)));
                }
                Event::Closed => return Err(Action::linger(CloseReason::ConnectionClose)),
            }
        }
        Ok(())
    }

    fn on_request<D: Driver>(&mut self, request: Request, link: &mut ConnectionContext<'_, D>) {
        let mut head = self.head.take().expect("set before receiving");
        link.worker.instrumentation.record_request();
        let number = self.streams.open(request.stream);
        self.start_metrics(number, Some(&head), link);
        if let Err(reject) = link.check_origin(&head) {
            link.worker.instrumentation.metrics().record_violation(Violation::Http(reject));
            self.streams.at(number).exchange.metrics.set_head(&head);
            let response = link.worker.application.render_problem(reject.into(), &head);
            return self.respond(number, Ok(response), link);
        }
        if head.index().wants_upgrade(head.as_bytes()) {
            return self.begin_tunnel(number, head, request.body, link);
        }
        if request.body == BodyLength::None {
            return self.begin(number, head, link, |_, _| Body::empty());
        }
        let target = link.worker.application.find(&mut head, link.info);
        let admitted = match link.admit(&target, &head, true) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.respond_shed(number, refusal, &head, link),
        };
        let stream = self.streams.at(number);
        stream.exchange.admission = Some(admitted);
        stream.content_length = match request.body {
            BodyLength::Exact(length) => Some(length),
            BodyLength::None | BodyLength::Chunked => None,
        };
        stream.buffered = pool::get();
        stream.state = StreamState::Buffering { head, request };
        self.buffering.push(number);
    }

    /// Responds to a request that was rejected because of overload. REFUSED_STREAM would be
    /// cheaper, but clients retry such a request at once, and it has no `Retry-After`.
    #[cold]
    pub(super) fn respond_shed<D: Driver>(
        &mut self,
        number: u32,
        refusal: ShedReason,
        head: &RequestHead,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let tally = &mut self.streams.at(number).exchange.metrics;
        tally.set_route(head.route_id());
        tally.set_head(head);
        tally.set_error(refusal.error_type());
        let response = link.worker.admission.shed_response(refusal, &link.worker.application);
        self.respond(number, Ok(response), link);
    }

    /// Starts to measure a request.
    fn start_metrics<D: Driver>(
        &mut self,
        number: u32,
        head: Option<&RequestHead>,
        link: &ConnectionContext<'_, D>,
    ) {
        let facts = (Version::Http2, &*link.info);
        let (meters, now) = (link.worker.recorder.as_ref(), || link.worker.driver.now());
        self.streams.at(number).exchange.metrics.start(meters, head, facts, now);
    }

    /// Collects received content for its stream.
    fn on_data<D: Driver>(
        &mut self,
        key: StreamKey,
        range: Range<usize>,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let Some(number) = self.streams.find(key) else { return };
        let stream = self.streams.at(number);
        stream.received += range.len() as u64;
        stream.exchange.metrics.add_received(range.len());
        self.received += range.len() as u64;
        if matches!(stream.request_body, RequestBodySender::Discarding) {
            return self.discard_data(number, key, range.len(), link);
        }
        stream.buffered.extend_from_slice(&link.io.input.unread()[range]);
        if !matches!(stream.state, StreamState::Buffering { .. })
            && self.readable.last() != Some(&number)
        {
            self.readable.push(number);
        }
    }

    /// Handles the end of a request. If all of its content is collected, calls the handler.
    fn on_end_stream<D: Driver>(&mut self, key: StreamKey, link: &mut ConnectionContext<'_, D>) {
        let Some(number) = self.streams.find(key) else { return };
        let trailers = fields::to_header_map(protocol(&mut self.core).trailers());
        let stream = self.streams.at(number);
        if matches!(stream.state, StreamState::DrainingBody) {
            return self.streams.close(number);
        }
        if trailers.is_empty() && matches!(stream.state, StreamState::Buffering { .. }) {
            let StreamState::Buffering { head, .. } =
                std::mem::replace(&mut stream.state, StreamState::Vacant)
            else {
                unreachable!("the step was checked");
            };
            self.buffering.retain(|gathering| *gathering != number);
            return self.begin(number, head, link, |stream, limit| {
                Body::from_pooled(take(&mut stream.buffered)).limited(limit)
            });
        }
        stream.pending_trailers = Some(trailers);
        self.readable.push(number);
    }

    /// Calls the handler of a request before all of its content has arrived. The rest is passed
    /// through a pipe.
    fn begin_with_pipe<D: Driver>(&mut self, number: u32, link: &mut ConnectionContext<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        let step = std::mem::replace(&mut stream.state, StreamState::Vacant);
        let StreamState::Buffering { head, request } = step else {
            stream.state = step;
            return;
        };
        let unread_max = link.listener.limits.body_buffer_bytes_max;
        self.begin(number, head, link, |stream, limit| {
            let (writer, reader) = pipe(unread_max, stream.content_length);
            stream.consumed = Some(writer.consumed_bytes());
            let is_awaited = request.expect_continue && stream.buffered.is_empty();
            if stream.buffered.is_empty() {
                pool::put(take(&mut stream.buffered));
            } else {
                writer.send(Bytes::from(take(&mut stream.buffered)));
            }
            let is_promised = stream.content_length.is_some();
            stream.request_body = RequestBodySender::Open {
                pipe: writer,
                awaits_continue: is_awaited,
                has_length: is_promised,
            };
            Body::incoming(reader, limit)
        });
        self.forward_body(number, link);
    }

    /// Passes content to the handler as far as its pipe has room, and opens the windows by the
    /// bytes that the handler has read.
    pub(super) fn forward_body<D: Driver>(
        &mut self,
        number: u32,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let Some(stream) = self.streams.get(number) else { return };
        let (Some(key), Some(_)) = (stream.key, &stream.consumed) else { return };
        // The reader gets no more content, but may still read the content in its pipe.
        if matches!(stream.request_body, RequestBodySender::Discarding) {
            return self.release_capacity(number, key, link);
        }
        let mut is_awaiting = false;
        loop {
            let Stream { request_body: upload, waker, .. } = &mut *stream;
            match upload.poll_capacity(&mut Context::from_waker(waker)) {
                BodyCapacity::Closed if stream.request_body.is_discarding() => {
                    return self.discard_body(number, link);
                }
                BodyCapacity::SendContinue => {
                    let out = &mut link.io.output.plaintext;
                    protocol(&mut self.core).send_interim(key, 100, std::iter::empty(), out);
                }
                BodyCapacity::Ready if !stream.buffered.is_empty() => {
                    stream.request_body.push(Bytes::from(take(&mut stream.buffered)));
                }
                BodyCapacity::Ready => {
                    match stream.pending_trailers.take() {
                        Some(trailers) => stream.request_body.finish(|| trailers),
                        None => is_awaiting = true,
                    }
                    break;
                }
                BodyCapacity::Closed | BodyCapacity::Full | BodyCapacity::AwaitingDemand => break,
            }
        }
        self.release_capacity(number, key, link);
        let stream = self.streams.at(number);
        if matches!(
            (&stream.state, &stream.request_body),
            (StreamState::ReceivingBody, RequestBodySender::Complete)
        ) {
            return self.streams.close(number);
        }
        stream.awaits_data = is_awaiting;
        self.update_receive_timer(number, link);
        let (now, stream) = (link.worker.driver.now(), self.streams.at(number));
        if matches!(stream.state, StreamState::ReceivingBody) {
            // If the task does not read the content in its pipe for this long, the stream counts as
            // idle.
            stream.deadlines.idle = match is_awaiting {
                true => Duration::MAX,
                false => now.saturating_add(link.listener.limits.idle_timeout),
            };
        }
        self.schedule_stream_timer(number, link);
    }

    /// Requires the peer to send at the minimum rate while the server waits for content. Content of
    /// all streams counts, because streams share the connection and a client may send one after the
    /// other. A conversation has no minimum rate: it fails only if both sides are silent for too
    /// long.
    pub(super) fn update_receive_timer<D: Driver>(
        &mut self,
        number: u32,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let (now, limits) = (link.worker.driver.now(), &link.listener.limits);
        self.receive_progress =
            self.receive_progress.max(self.received + link.transport.partial_record_bytes());
        let (received, rate) = (self.receive_progress, limits.min_rate());
        let Some(stream) = self.streams.get(number) else { return };
        if stream.is_tunnel {
            return self.update_tunnel_timer(number, link);
        }
        // If this handler or those of other streams do not read, the windows are closed and the
        // peer cannot send.
        let may_send = stream.key.is_some_and(|key| protocol(&mut self.core).can_receive_data(key));
        let is_waiting = stream.awaits_data && may_send;
        let is_conversation = is_waiting && stream.is_bidi();
        stream.deadlines.receive = if is_conversation {
            stream.receive_rate.pause(now, received, rate);
            stream.activity_rate.start(now, stream.received + stream.sent, limits.bidi_min_rate())
        } else if is_waiting {
            stream.receive_rate.start(now, received, rate)
        } else {
            stream.receive_rate.pause(now, received, rate);
            if stream.awaits_data { now.saturating_add(rate.grace) } else { Duration::MAX }
        };
        if !is_conversation {
            stream.activity_rate = TransferRate::default();
        }
    }

    /// Discards the rest of a request's content, because it is unwanted or its reader got an error.
    /// The content in the pipe still occupies the windows until the reader reads it or is dropped.
    pub(super) fn discard_body<D: Driver>(
        &mut self,
        number: u32,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let stream = self.streams.at(number);
        stream.request_body = RequestBodySender::Discarding;
        let passed = take(&mut stream.buffered).len();
        stream.awaits_data = false;
        stream.deadlines.receive = Duration::MAX;
        if let Some(key) = stream.key {
            protocol(&mut self.core).release_capacity(key, passed, &mut link.io.output.plaintext);
            self.release_capacity(number, key, link);
        }
        let stream = self.streams.at(number);
        if stream.pending_trailers.take().is_some() {
            return;
        }
        if matches!(stream.state, StreamState::ReceivingBody) {
            self.drain_body(number, link);
        }
    }

    /// Discards the rest of a request whose response is complete.
    pub(super) fn drain_body<D: Driver>(
        &mut self,
        number: u32,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let stream = self.streams.at(number);
        stream.request_body = RequestBodySender::Discarding;
        (stream.buffered, stream.consumed, stream.awaits_data) = (Vec::new(), None, false);
        let held = usize::try_from(stream.received).unwrap_or(usize::MAX);
        if let Some(key) = stream.key {
            protocol(&mut self.core).release_capacity(key, held, &mut link.io.output.plaintext);
        }
        let stream = self.streams.at(number);
        stream.state = StreamState::DrainingBody;
        let (now, limits) = (link.worker.driver.now(), &link.listener.limits);
        // The other deadlines would expire without any effect, so they are cleared.
        stream.deadlines = StreamDeadlines {
            receive: now.saturating_add(limits.linger_timeout),
            idle: now.saturating_add(limits.linger_time_max),
            ..StreamDeadlines::NONE
        };
        self.streams.draining += 1;
        self.schedule_stream_timer(number, link);
    }

    /// Discards content that is unwanted.
    fn discard_data<D: Driver>(
        &mut self,
        number: u32,
        key: StreamKey,
        bytes: usize,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let limits = &link.listener.limits;
        let stream = self.streams.at(number);
        stream.discarded_bytes += bytes as u64;
        let out = &mut link.io.output.plaintext;
        if stream.discarded_bytes > u64::from(limits.drain_bytes_max) {
            // The server no longer opens this stream's window.
            return protocol(&mut self.core).discard_body(key, out);
        }
        protocol(&mut self.core).release_capacity(key, bytes, out);
        if matches!(stream.state, StreamState::DrainingBody) {
            let now = link.worker.driver.now();
            stream.deadlines.receive = now.saturating_add(limits.linger_timeout);
        }
    }

    /// Closes streams whose response is complete and whose rest of the request has ended or is not
    /// needed.
    pub(super) fn close_drained_streams<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) {
        if self.streams.draining == 0 {
            return;
        }
        // If little is left of the request, the server receives it, because some clients treat a
        // reset as an error. If more is left, the core resets the stream, but one round trip later,
        // so that the peer has seen its response.
        let bytes_max = u64::from(link.listener.limits.drain_bytes_max);
        if self.streams.exceeds_drain_limit(bytes_max) && !self.streams.has_receiving() {
            protocol(&mut self.core).close_answered_streams(&mut link.io.output.plaintext, |_| {});
        }
        let is_draining = link.worker.lifecycle() >= Lifecycle::Draining;
        for number in self.streams.numbers() {
            let Some(stream) = self.streams.get(number) else { continue };
            let (StreamState::DrainingBody, Some(key)) = (&stream.state, stream.key) else {
                continue;
            };
            if !protocol(&mut self.core).is_stream_open(key) {
                self.streams.close(number);
            } else if is_draining {
                self.reset_stream(number, ErrorCode::NO_ERROR, link);
            }
        }
    }

    /// Opens the windows by the bytes that the reader has read. The stream is woken when the reader
    /// reads more.
    fn release_capacity<D: Driver>(
        &mut self,
        number: u32,
        key: StreamKey,
        link: &mut ConnectionContext<'_, D>,
    ) {
        let Stream { consumed: taken, released: taken_told, waker, .. } = self.streams.at(number);
        let Some(all) = taken else { return };
        let mut context = Context::from_waker(waker);
        while let Poll::Ready(count) = all.poll_increase(*taken_told, &mut context) {
            let more = usize::try_from(count - *taken_told).unwrap_or(usize::MAX);
            *taken_told = count;
            let out = &mut link.io.output.plaintext;
            protocol(&mut self.core).release_capacity(key, more, out);
            if count == u64::MAX {
                *taken = None;
                return;
            }
        }
    }

    /// Rejects a request that broke a rule of HTTP that is common to all versions.
    fn reject_stream<D: Driver>(
        &mut self,
        key: StreamKey,
        reject: RequestError,
        link: &mut ConnectionContext<'_, D>,
    ) {
        link.worker.instrumentation.metrics().record_violation(Violation::Http(reject));
        let Some(number) = self.streams.find(key) else {
            let number = self.streams.open(key);
            self.start_metrics(number, None, link);
            // The core reports no content and no end of this request, so do not wait for its end.
            self.streams.at(number).content_length = Some(u64::MAX);
            return self.respond_problem(number, reject.into(), link);
        };
        let stream = self.streams.at(number);
        match stream.state {
            StreamState::Buffering { .. } => {
                stream.record_head();
                stream.state = StreamState::Vacant;
                self.respond_problem(number, reject.into(), link);
            }
            // The handler is already running, so it responds, as over HTTP/1.
            _ => {
                stream.request_body.fail(BodyError::Protocol(reject));
                self.discard_body(number, link);
            }
        }
    }
}
