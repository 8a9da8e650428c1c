//! Receives requests, and passes their content to the handlers.

use super::streams::{Stream, StreamDeadlines, StreamState};
use super::{Http2, protocol};
use crate::admission::ShedReason;
use crate::exchange::fields;
use crate::exchange::request_body::{BodyCapacity, RequestBodySender};
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
    /// Parses received bytes while the output has room for replies, and passes on their content.
    pub(super) fn receive<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Result<(), Action> {
        let result = self.receive_all(conn);
        for slot in take(&mut self.buffering) {
            self.begin_with_pipe(slot, conn);
            self.streams.update_reservation(slot);
        }
        let mut readable = take(&mut self.readable);
        for slot in readable.drain(..) {
            self.forward_body(slot, conn);
            self.streams.update_reservation(slot);
        }
        self.readable = readable;
        result
    }

    /// Parses received bytes, and collects the content of each stream.
    fn receive_all<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Result<(), Action> {
        while !conn.is_output_over_limit() {
            let head = self.head.get_or_insert_with(RequestHead::from_pool);
            let (bytes, index) = head.buffers_mut();
            let (unread, out) = (conn.io.input.unread(), &mut conn.io.output.plaintext);
            let limits = &conn.listener.http2_protocol;
            let (used, event) = protocol(&mut self.core).receive(limits, unread, bytes, index, out);
            if let Event::Data { stream, range } = event {
                self.on_data(stream, range, conn);
                conn.io.input.consume(used);
                continue;
            }
            conn.io.input.consume(used);
            // These events do not clear the head timeout, and neither do frames without an event.
            // Otherwise, a peer could restart the timeout indefinitely.
            let is_control =
                matches!(event, Event::Settings | Event::StreamError { .. } | Event::GoAway { .. });
            if !is_control && !matches!(event, Event::NeedInput) {
                conn.io.deadlines.clear(TimeoutKind::Head);
            }
            match event {
                Event::NeedInput => return Ok(()),
                Event::Request(request) => self.on_request(request, conn),
                Event::End { stream } => self.on_end_stream(stream, conn),
                Event::RequestError { stream, error } => self.reject_stream(stream, error, conn),
                Event::Reset { stream, cause } => {
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %conn.info.peer,
                        id = stream.id(), ?cause, "a stream was reset")
                    });
                    if let Some(slot) = self.streams.find(stream) {
                        self.fail_stream(slot);
                    }
                }
                Event::StreamError { id, error } => {
                    conn.worker.instrumentation.metrics().record_violation(Violation::Http2(error));
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %conn.info.peer, id,
                        reject = %error, "a stream was refused")
                    });
                }
                Event::GoAway { code } => {
                    catch_log_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %conn.info.peer, ?code,
                        "the peer sent GOAWAY")
                    });
                }
                Event::Settings | Event::Data { .. } => {}
                Event::ConnectionError(error) => {
                    return Err(Action::linger(CloseReason::Http2Rejected(error)));
                }
                Event::Closed => return Err(Action::linger(CloseReason::ConnectionClose)),
            }
        }
        Ok(())
    }

    /// Handles a complete head. If content follows, calls the handler only after all received bytes
    /// have been parsed, because most content arrives together with its head.
    fn on_request<D: Driver>(&mut self, request: Request, conn: &mut ConnectionContext<'_, D>) {
        let mut head = self.head.take().expect("the head was set before `receive`");
        conn.worker.instrumentation.record_request();
        let slot = self.streams.open(request.stream);
        self.start_metrics(slot, Some(&head), conn);
        if let Err(error) = conn.check_origin(&head) {
            conn.worker.instrumentation.metrics().record_violation(Violation::Http(error));
            self.streams.at(slot).exchange.metrics.set_head(&head);
            let response = conn.worker.application.render_problem(error.into(), &head);
            return self.respond(slot, Ok(response), conn);
        }
        if head.index().wants_upgrade(head.as_bytes()) {
            return self.begin_tunnel(slot, head, request.body, conn);
        }
        if request.body == BodyLength::None {
            return self.begin(slot, head, conn, |_, _| Body::empty());
        }
        let target = conn.worker.application.find(&mut head, conn.info);
        let admission = match conn.admit(&target, &head, true) {
            Ok(admission) => admission,
            Err(reason) => return self.respond_shed(slot, reason, &head, conn),
        };
        let stream = self.streams.at(slot);
        stream.exchange.admission = Some(admission);
        stream.content_length = match request.body {
            BodyLength::Exact(length) => Some(length),
            BodyLength::None | BodyLength::Chunked => None,
        };
        stream.buffered = pool::get();
        stream.state = StreamState::Buffering { head, request };
        self.buffering.push(slot);
    }

    /// Responds to a request that was rejected because of overload. A REFUSED_STREAM would be
    /// cheaper, but it has no `Retry-After`, and clients would retry the request immediately.
    #[cold]
    pub(super) fn respond_shed<D: Driver>(
        &mut self,
        slot: u32,
        reason: ShedReason,
        head: &RequestHead,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let metrics = &mut self.streams.at(slot).exchange.metrics;
        metrics.set_route(head.route_id());
        metrics.set_head(head);
        metrics.set_error(reason.error_type());
        let response = conn.worker.admission.shed_response(reason, &conn.worker.application);
        self.respond(slot, Ok(response), conn);
    }

    /// Starts to measure a request.
    fn start_metrics<D: Driver>(
        &mut self,
        slot: u32,
        head: Option<&RequestHead>,
        conn: &ConnectionContext<'_, D>,
    ) {
        let version_and_info = (Version::Http2, &*conn.info);
        let (recorder, now) = (conn.worker.recorder.as_ref(), || conn.worker.driver.now());
        self.streams.at(slot).exchange.metrics.start(recorder, head, version_and_info, now);
    }

    /// Buffers received content of a stream.
    fn on_data<D: Driver>(
        &mut self,
        key: StreamKey,
        range: Range<usize>,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let Some(slot) = self.streams.find(key) else { return };
        let stream = self.streams.at(slot);
        stream.received += range.len() as u64;
        stream.exchange.metrics.add_received(range.len());
        self.received += range.len() as u64;
        if matches!(stream.request_body, RequestBodySender::Discarding) {
            return self.discard_data(slot, key, range.len(), conn);
        }
        stream.buffered.extend_from_slice(&conn.io.input.unread()[range]);
        if !matches!(stream.state, StreamState::Buffering { .. })
            && self.readable.last() != Some(&slot)
        {
            self.readable.push(slot);
        }
    }

    /// Handles the end of a request. A handler that has not been called yet needs no pipe.
    fn on_end_stream<D: Driver>(&mut self, key: StreamKey, conn: &mut ConnectionContext<'_, D>) {
        let Some(slot) = self.streams.find(key) else { return };
        let trailers = fields::to_header_map(protocol(&mut self.core).trailers());
        let stream = self.streams.at(slot);
        if matches!(stream.state, StreamState::DrainingBody) {
            return self.streams.close(slot);
        }
        if trailers.is_empty() && matches!(stream.state, StreamState::Buffering { .. }) {
            let StreamState::Buffering { head, .. } =
                std::mem::replace(&mut stream.state, StreamState::Vacant)
            else {
                unreachable!("the state was checked above");
            };
            self.buffering.retain(|other| *other != slot);
            return self.begin(slot, head, conn, |stream, limit| {
                Body::from_pooled(take(&mut stream.buffered)).limited(limit)
            });
        }
        stream.pending_trailers = Some(trailers);
        self.readable.push(slot);
    }

    /// Calls the handler of a request before all of its content has arrived. The content is passed
    /// through a pipe.
    fn begin_with_pipe<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        let Some(stream) = self.streams.get(slot) else { return };
        let state = std::mem::replace(&mut stream.state, StreamState::Vacant);
        let StreamState::Buffering { head, request } = state else {
            stream.state = state;
            return;
        };
        let unread_max = conn.listener.limits.body_buffer_bytes_max;
        self.begin(slot, head, conn, |stream, limit| {
            let (writer, reader) = pipe(unread_max, stream.content_length);
            stream.consumed = Some(writer.consumed_bytes());
            let awaits_continue = request.expect_continue && stream.buffered.is_empty();
            if stream.buffered.is_empty() {
                pool::put(take(&mut stream.buffered));
            } else {
                writer.send(Bytes::from(take(&mut stream.buffered)));
            }
            let has_length = stream.content_length.is_some();
            stream.request_body =
                RequestBodySender::Open { pipe: writer, awaits_continue, has_length };
            Body::incoming(reader, limit)
        });
        self.forward_body(slot, conn);
    }

    /// Passes content to the handler until its pipe is full, and opens the windows by the number of
    /// bytes that the handler has read.
    pub(super) fn forward_body<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let Some(stream) = self.streams.get(slot) else { return };
        let (Some(key), Some(_)) = (stream.key, &stream.consumed) else { return };
        // The reader gets no more content, but may still read what its pipe contains.
        if matches!(stream.request_body, RequestBodySender::Discarding) {
            return self.release_capacity(slot, key, conn);
        }
        let mut awaits_data = false;
        loop {
            let Stream { request_body, waker, .. } = &mut *stream;
            match request_body.poll_capacity(&mut Context::from_waker(waker)) {
                BodyCapacity::Closed if stream.request_body.is_discarding() => {
                    return self.discard_body(slot, conn);
                }
                BodyCapacity::SendContinue => {
                    let out = &mut conn.io.output.plaintext;
                    protocol(&mut self.core).send_interim(key, 100, std::iter::empty(), out);
                }
                BodyCapacity::Ready if !stream.buffered.is_empty() => {
                    stream.request_body.push(Bytes::from(take(&mut stream.buffered)));
                }
                BodyCapacity::Ready => {
                    match stream.pending_trailers.take() {
                        Some(trailers) => stream.request_body.finish(|| trailers),
                        None => awaits_data = true,
                    }
                    break;
                }
                BodyCapacity::Closed | BodyCapacity::Full | BodyCapacity::AwaitingDemand => break,
            }
        }
        self.release_capacity(slot, key, conn);
        let stream = self.streams.at(slot);
        if matches!(
            (&stream.state, &stream.request_body),
            (StreamState::ReceivingBody, RequestBodySender::Finished)
        ) {
            return self.streams.close(slot);
        }
        stream.awaits_data = awaits_data;
        self.update_receive_timer(slot, conn);
        let (now, stream) = (conn.worker.driver.now(), self.streams.at(slot));
        if matches!(stream.state, StreamState::ReceivingBody) {
            // If the task does not read the content in its pipe within this time, its body fails.
            stream.deadlines.idle = match awaits_data {
                true => Duration::MAX,
                false => now.saturating_add(conn.listener.limits.idle_timeout),
            };
        }
        self.schedule_stream_timer(slot, conn);
    }

    /// Requires the peer to send at the minimum rate while the server waits for content. Content on
    /// any stream counts, because streams share the connection and a client may send one body after
    /// another. A bidirectional stream fails only if both sides are silent for too long.
    pub(super) fn update_receive_timer<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let (now, limits) = (conn.worker.driver.now(), &conn.listener.limits);
        self.receive_progress =
            self.receive_progress.max(self.received + conn.transport.partial_record_bytes());
        let (received, rate) = (self.receive_progress, limits.min_rate());
        let Some(stream) = self.streams.get(slot) else { return };
        if stream.is_tunnel {
            return self.update_tunnel_timer(slot, conn);
        }
        // While this handler or those of other streams do not read, the windows may be exhausted,
        // so that the peer cannot send.
        let can_receive =
            stream.key.is_some_and(|key| protocol(&mut self.core).can_receive_data(key));
        let is_waiting = stream.awaits_data && can_receive;
        let is_bidi = is_waiting && stream.is_bidi();
        stream.deadlines.receive = if is_bidi {
            stream.receive_rate.pause(now, received, rate);
            stream.activity_rate.start(now, stream.received + stream.sent, limits.bidi_min_rate())
        } else if is_waiting {
            stream.receive_rate.start(now, received, rate)
        } else {
            stream.receive_rate.pause(now, received, rate);
            if stream.awaits_data { now.saturating_add(rate.grace) } else { Duration::MAX }
        };
        if !is_bidi {
            stream.activity_rate = TransferRate::default();
        }
    }

    /// Discards the rest of a request's content, because its reader was dropped or got an error.
    /// The content in the pipe occupies the windows until the reader reads it or is dropped.
    pub(super) fn discard_body<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let stream = self.streams.at(slot);
        stream.request_body = RequestBodySender::Discarding;
        let buffered_len = take(&mut stream.buffered).len();
        stream.awaits_data = false;
        stream.deadlines.receive = Duration::MAX;
        if let Some(key) = stream.key {
            protocol(&mut self.core).release_capacity(
                key,
                buffered_len,
                &mut conn.io.output.plaintext,
            );
            self.release_capacity(slot, key, conn);
        }
        let stream = self.streams.at(slot);
        if stream.pending_trailers.take().is_some() {
            return;
        }
        if matches!(stream.state, StreamState::ReceivingBody) {
            self.drain_body(slot, conn);
        }
    }

    /// Begins to discard the rest of a request whose response is complete.
    pub(super) fn drain_body<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        let stream = self.streams.at(slot);
        stream.request_body = RequestBodySender::Discarding;
        (stream.buffered, stream.consumed, stream.awaits_data) = (Vec::new(), None, false);
        let received_len = usize::try_from(stream.received).unwrap_or(usize::MAX);
        if let Some(key) = stream.key {
            protocol(&mut self.core).release_capacity(
                key,
                received_len,
                &mut conn.io.output.plaintext,
            );
        }
        let stream = self.streams.at(slot);
        stream.state = StreamState::DrainingBody;
        let (now, limits) = (conn.worker.driver.now(), &conn.listener.limits);
        // The other deadlines no longer have any effect, so clear them.
        stream.deadlines = StreamDeadlines {
            receive: now.saturating_add(limits.linger_timeout),
            idle: now.saturating_add(limits.linger_time_max),
            ..StreamDeadlines::NONE
        };
        self.streams.draining += 1;
        self.schedule_stream_timer(slot, conn);
    }

    /// Discards received content. Opens the windows by its length until the stream exceeds
    /// `drain_bytes_max`.
    fn discard_data<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        bytes: usize,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let limits = &conn.listener.limits;
        let stream = self.streams.at(slot);
        stream.discarded_bytes += bytes as u64;
        let out = &mut conn.io.output.plaintext;
        if stream.discarded_bytes > u64::from(limits.drain_bytes_max) {
            // After this call, the core no longer opens this stream's window.
            return protocol(&mut self.core).discard_body(key, out);
        }
        protocol(&mut self.core).release_capacity(key, bytes, out);
        if matches!(stream.state, StreamState::DrainingBody) {
            let now = conn.worker.driver.now();
            stream.deadlines.receive = now.saturating_add(limits.linger_timeout);
        }
    }

    /// Closes streams whose response is complete and whose request is complete or not needed.
    pub(super) fn close_drained_streams<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        if self.streams.draining == 0 {
            return;
        }
        // If little of the request remains, the server receives it, because some clients treat a
        // reset as an error. If more remains, the core resets the stream, but one round trip later,
        // so that the peer has received its response.
        let bytes_max = u64::from(conn.listener.limits.drain_bytes_max);
        if self.streams.exceeds_drain_limit(bytes_max) && !self.streams.has_receiving() {
            protocol(&mut self.core).reset_unfinished(&mut conn.io.output.plaintext, |_| {});
        }
        let is_draining = conn.worker.lifecycle() >= Lifecycle::Draining;
        for slot in self.streams.slots() {
            let Some(stream) = self.streams.get(slot) else { continue };
            let (StreamState::DrainingBody, Some(key)) = (&stream.state, stream.key) else {
                continue;
            };
            if !protocol(&mut self.core).is_stream_open(key) {
                self.streams.close(slot);
            } else if is_draining {
                self.reset_stream(slot, ErrorCode::NO_ERROR, conn);
            }
        }
    }

    /// Opens the windows by the number of bytes that the reader has read. The stream is woken when
    /// the reader reads more.
    fn release_capacity<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let Stream { consumed, released, waker, .. } = self.streams.at(slot);
        let Some(consumed_bytes) = consumed else { return };
        let mut cx = Context::from_waker(waker);
        while let Poll::Ready(count) = consumed_bytes.poll_increase(*released, &mut cx) {
            let increase = usize::try_from(count - *released).unwrap_or(usize::MAX);
            *released = count;
            let out = &mut conn.io.output.plaintext;
            protocol(&mut self.core).release_capacity(key, increase, out);
            // The reader was dropped, which consumes everything.
            if count == u64::MAX {
                *consumed = None;
                return;
            }
        }
    }

    /// Rejects a request that violates a rule common to all HTTP versions.
    fn reject_stream<D: Driver>(
        &mut self,
        key: StreamKey,
        error: RequestError,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        conn.worker.instrumentation.metrics().record_violation(Violation::Http(error));
        let Some(slot) = self.streams.find(key) else {
            let slot = self.streams.open(key);
            self.start_metrics(slot, None, conn);
            // The core reports neither content nor the end of this request. With this length, the
            // stream exceeds the drain limit, so it is closed without waiting for them.
            self.streams.at(slot).content_length = Some(u64::MAX);
            return self.respond_problem(slot, error.into(), conn);
        };
        let stream = self.streams.at(slot);
        match stream.state {
            StreamState::Buffering { .. } => {
                stream.record_head();
                stream.state = StreamState::Vacant;
                self.respond_problem(slot, error.into(), conn);
            }
            // The handler is already running, so it responds, as over HTTP/1.
            _ => {
                stream.request_body.fail(BodyError::Protocol(error));
                self.discard_body(slot, conn);
            }
        }
    }
}
