//! Receives requests, and passes their content to the handlers.

use super::streams::{Stream, StreamState};
use super::{Http2, protocol};
use crate::admission::ShedReason;
use crate::exchange::fields;
use crate::exchange::request_body::{BodyCapacity, RequestBodySender};
use crate::io::context::{Action, ConnectionContext};
use crate::io::timeouts::TimeoutKind;
use crate::io::transfer_rate::TransferRate;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::Violation;
use bytes::Bytes;
use peregrine_driver::Driver;
use peregrine_proto::h2::{Event, Request, StreamKey};
use peregrine_proto::{BodyLength, RequestError, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::RequestHead;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::pipe::pipe;
use peregrine_web::{Body, pool};
use std::mem::take;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Duration;

impl Http2 {
    /// Parses received bytes while the output has room for replies, and passes their content to the
    /// handlers. If the connection must close, returns the closing action as the error.
    pub(super) fn receive<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Result<(), Action> {
        let result = self.parse_input(conn);
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

    /// Parses received bytes, and collects the content of each stream in its buffer.
    fn parse_input<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Result<(), Action> {
        while !conn.is_output_over_limit() {
            let head = self.head.get_or_insert_with(RequestHead::from_pool);
            let (bytes, index) = head.buffers_mut();
            let (unread, out) = (conn.io.input.unread(), &mut conn.io.output.plaintext);
            let limits = &conn.listener.http2_proto_limits;
            let (used, event) = protocol(&mut self.core).receive(limits, unread, bytes, index, out);
            if let Event::Data { stream, range } = event {
                self.on_data(stream, range, conn);
                conn.io.input.consume(used);
                continue;
            }
            conn.io.input.consume(used);
            // Control events do not clear the head timeout, nor do frames without an event: no
            // request progresses with them, and a peer could use them to restart the timeout
            // indefinitely.
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
                    catch_subscriber_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %conn.info.peer,
                        id = stream.id(), ?cause, "a stream was reset")
                    });
                    if let Some(slot) = self.streams.find(stream) {
                        self.fail_stream(slot);
                    }
                }
                // The core has written RST_STREAM for a head that it rejected or a frame on a
                // closed stream. No exchange is affected.
                Event::StreamError { id, error } => {
                    conn.worker.instrumentation.metrics().record_violation(Violation::Http2(error));
                    catch_subscriber_panic(|| {
                        tracing::debug!(target: "peregrine", peer = %conn.info.peer, id,
                        reject = %error, "a stream was refused")
                    });
                }
                Event::GoAway { code } => {
                    catch_subscriber_panic(|| {
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

    /// Handles a complete head. If content follows, the handler is called when the request is
    /// complete, but at the latest when all received bytes have been parsed: most content arrives
    /// together with its head.
    fn on_request<D: Driver>(&mut self, request: Request, conn: &mut ConnectionContext<'_, D>) {
        let mut head = self.head.take().expect("`parse_input` sets the head");
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
        let has_content = true;
        let admission = match conn.admit(&target, &head, has_content) {
            Ok(admission) => admission,
            Err(reason) => return self.respond_shed(slot, reason, &head, conn),
        };
        let stream = self.streams.at(slot);
        stream.exchange.admission = Some(admission);
        stream.content_length = match request.body {
            BodyLength::Exact(length) => Some(length),
            BodyLength::None | BodyLength::Unknown => None,
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

    /// Buffers received content of a stream, or discards it if it is not needed.
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
        // A stream in `Buffering` is in `self.buffering`, so `receive` handles it anyway.
        if !matches!(stream.state, StreamState::Buffering { .. })
            && self.readable.last() != Some(&slot)
        {
            self.readable.push(slot);
        }
    }

    /// Handles the end of a request. If its handler has not been called yet, and there are no
    /// trailers, calls the handler with the complete body: no pipe is needed.
    fn on_end_stream<D: Driver>(&mut self, key: StreamKey, conn: &mut ConnectionContext<'_, D>) {
        let Some(slot) = self.streams.find(key) else { return };
        let trailers = fields::to_header_map(protocol(&mut self.core).trailers());
        let stream = self.streams.at(slot);
        if matches!(stream.state, StreamState::DiscardingBody) {
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

    /// Calls the handler of a request whose content is incomplete or has trailers. The content is
    /// passed through a pipe.
    fn begin_with_pipe<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        let Some(stream) = self.streams.get(slot) else { return };
        let state = std::mem::replace(&mut stream.state, StreamState::Vacant);
        let StreamState::Buffering { head, request } = state else {
            // The stream was rejected or replaced after it was added to `buffering`.
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
        // Without `consumed`, there is no pipe, or nothing of the request is needed any more.
        let (Some(key), Some(_)) = (stream.key, &stream.consumed) else { return };
        // The reader gets no more content, but may still read what its pipe contains, which opens
        // the windows.
        if matches!(stream.request_body, RequestBodySender::Discarding) {
            return self.release_capacity(slot, key, conn);
        }
        let mut awaits_data = false;
        loop {
            let Stream { request_body, waker, .. } = &mut *stream;
            match request_body.poll_capacity(&mut Context::from_waker(waker)) {
                BodyCapacity::Discarding => return self.discard_body(slot, conn),
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
                BodyCapacity::Finished | BodyCapacity::Full | BodyCapacity::AwaitingDemand => break,
            }
        }
        self.release_capacity(slot, key, conn);
        let stream = self.streams.at(slot);
        if matches!(
            (&stream.state, &stream.request_body),
            (StreamState::ReceivingAfterResponse, RequestBodySender::Finished)
        ) {
            return self.streams.close(slot);
        }
        stream.awaits_data = awaits_data;
        self.update_receive_timer(slot, conn);
        let (now, stream) = (conn.worker.driver.now(), self.streams.at(slot));
        if matches!(stream.state, StreamState::ReceivingAfterResponse) {
            // A task still reads the content after the response. If it does not read what is in its
            // pipe within `idle_timeout`, its body fails. While the server waits for the peer
            // instead, `deadlines.receive` applies.
            stream.deadlines.current_state = match awaits_data {
                true => Duration::MAX,
                false => now.saturating_add(conn.listener.limits.idle_timeout),
            };
        }
        self.schedule_stream_timer(slot, conn);
    }

    /// Updates the deadline for content from the peer, which must send at the minimum rate while
    /// the server waits for content. Content on any stream counts, because streams share the
    /// connection and a client may send one body after another. A bidirectional stream fails only
    /// if both sides are silent for too long.
    pub(super) fn update_receive_timer<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let (now, limits) = (conn.worker.driver.now(), &conn.listener.limits);
        self.receive_progress =
            self.receive_progress.max(self.received + conn.transport.partial_record_bytes());
        let (progress, rate) = (self.receive_progress, limits.min_rate());
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
            stream.receive_rate.pause(now, progress, rate);
            stream.activity_rate.start(now, stream.received + stream.sent, limits.bidi_min_rate())
        } else if is_waiting {
            stream.receive_rate.start(now, progress, rate)
        } else {
            stream.receive_rate.pause(now, progress, rate);
            // Other handlers may read, which opens the connection's window, so check again.
            if stream.awaits_data { now.saturating_add(rate.grace) } else { Duration::MAX }
        };
        if !is_bidi {
            stream.activity_rate = TransferRate::default();
        }
    }

    /// Opens the windows by the number of bytes that the reader has read since the last call. The
    /// stream is woken when the reader reads more.
    pub(super) fn release_capacity<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let Stream { consumed, released, waker, .. } = self.streams.at(slot);
        let Some(consumed_bytes) = consumed else { return };
        let mut cx = Context::from_waker(waker);
        while let Poll::Ready(consumed_total) = consumed_bytes.poll_increase(*released, &mut cx) {
            let increase = usize::try_from(consumed_total - *released).unwrap_or(usize::MAX);
            *released = consumed_total;
            let out = &mut conn.io.output.plaintext;
            protocol(&mut self.core).release_capacity(key, increase, out);
            if consumed_total == u64::MAX {
                // The reader was dropped, which counts as reading everything.
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
            // stream exceeds `drain_bytes_max`, so it is reset without waiting for them.
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
            // The handler was already called, so it responds, as over HTTP/1.
            _ => {
                stream.request_body.fail(BodyError::Protocol(error));
                self.discard_body(slot, conn);
            }
        }
    }
}
