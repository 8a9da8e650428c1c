//! Receives a request's body and passes it to the handler, or discards it.

use super::{ExchangeState, Http1, encode};
use crate::exchange::request_body::{BodyCapacity, RequestBodySender};
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::TimeoutKind;
use crate::io::transfer_rate::TransferRate;
use crate::observe::close_reason::CloseReason;
use crate::worker::lifecycle::Lifecycle;
use bytes::Bytes;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::{Event, Framing, NextAction};
use peregrine_proto::{BodyLength, RequestError};
use peregrine_web::body::BodyError;
use peregrine_web::pipe::pipe;
use peregrine_web::{Body, pool};
use std::task::Context;

/// What the next received bytes of a body are.
pub(super) enum BodyEvent {
    /// Content, at the range `data` of the unread bytes. After reading it, the caller must consume
    /// `used` bytes, which include its framing.
    Data {
        data: std::ops::Range<usize>,
        used: usize,
    },
    End,
    NeedInput,
    Reject(RequestError),
}

/// The result of [`Http1::forward_body`].
pub(super) enum ForwardResult {
    /// Some of the body is still missing. `forward_body` must be called again when the body's
    /// reader reads and, if `readable`, when more bytes arrive.
    Pending { readable: bool },
    /// The body is complete or failed, or its reader was dropped.
    Done,
    /// The peer ended its sending side before the end of the body.
    Disconnected,
}

impl Http1 {
    /// Creates the body for the handler. It holds the content itself if all of that has already
    /// arrived and no trailers follow. Otherwise, a pipe passes the content. `limit` is the route's
    /// maximum length of a body.
    pub(super) fn receive_body<D: Driver>(
        &mut self,
        framing: Framing,
        limit: u64,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Result<Body, RequestError> {
        let length = match framing.body {
            BodyLength::None => return Ok(Body::empty()),
            BodyLength::Exact(length) => Some(length),
            BodyLength::Unknown => None,
        };
        let mut buffered = pool::get();
        loop {
            match self.next_body_event(conn) {
                BodyEvent::Data { data, used } => {
                    buffered.extend_from_slice(&conn.io.input.unread()[data]);
                    conn.io.input.consume(used);
                }
                // Trailers are rare, so only the pipe supports them.
                BodyEvent::End if conn.protocol.trailers().next().is_none() => {
                    return Ok(Body::from_pooled(buffered).limited(limit));
                }
                BodyEvent::End => {
                    let (writer, reader) = pipe(conn.listener.limits.body_buffer_bytes_max, length);
                    writer.send(Bytes::from(buffered));
                    writer.finish(encode::request_trailers(conn.protocol));
                    return Ok(Body::incoming(reader, limit));
                }
                BodyEvent::NeedInput => break,
                BodyEvent::Reject(error) => return Err(error),
            }
        }
        let (writer, reader) = pipe(conn.listener.limits.body_buffer_bytes_max, length);
        // A client that has begun to send its content no longer waits for `100 Continue`.
        let awaits_continue = framing.expect_continue && buffered.is_empty();
        if buffered.is_empty() {
            pool::put(buffered);
        } else {
            writer.send(Bytes::from(buffered));
        }
        let has_length = length.is_some();
        self.request_body = RequestBodySender::Open { pipe: writer, awaits_continue, has_length };
        conn.io.receive_rate = TransferRate::new(conn.io.input.payload_bytes());
        Ok(Body::incoming(reader, limit))
    }

    /// Passes received content to the body's reader until the pipe is full or more input is needed.
    pub(super) fn forward_body<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> ForwardResult {
        loop {
            match self.request_body.poll_capacity(cx) {
                BodyCapacity::Finished | BodyCapacity::Discarding => {
                    conn.stop_body_timers();
                    return ForwardResult::Done;
                }
                BodyCapacity::Full => {
                    conn.stop_body_timers();
                    return ForwardResult::Pending { readable: false };
                }
                // The peer will send nothing more, so pass the received content without waiting for
                // the handler to read.
                BodyCapacity::AwaitingDemand if conn.is_eof() => {}
                // The peer sends no content before it receives `100 Continue`, but receiving also
                // detects that it resets the connection.
                BodyCapacity::AwaitingDemand => {
                    conn.stop_body_timers();
                    return ForwardResult::Pending { readable: conn.may_read_ahead() };
                }
                BodyCapacity::SendContinue => {
                    conn.protocol.send_interim(
                        100,
                        std::iter::empty(),
                        &mut conn.io.output.plaintext,
                    );
                }
                BodyCapacity::Ready => {}
            }
            match self.forward_available(conn, cx) {
                Some(BodyEvent::NeedInput) if conn.is_eof() => {
                    self.request_body.fail(BodyError::Disconnected);
                    return ForwardResult::Disconnected;
                }
                Some(BodyEvent::NeedInput) => {
                    let is_sending_response = matches!(
                        self.state,
                        ExchangeState::SendingFull { .. } | ExchangeState::SendingStreamed(_)
                    );
                    // On a bidirectional stream, the peer may wait for the response's content, so
                    // the minimum rate does not apply: only the silence of both sides is limited.
                    if is_sending_response && self.request_body.has_unknown_length() {
                        conn.start_silence_timer();
                    } else {
                        conn.start_body_timer();
                    }
                    return ForwardResult::Pending { readable: true };
                }
                Some(BodyEvent::End) => {
                    self.request_body.finish(|| encode::request_trailers(conn.protocol));
                    // If the peer has ended its sending side, `on_peer_eof` may close the
                    // connection. Poll the handler once more before that, so that it can read the
                    // whole body.
                    self.repoll_reader |= conn.is_eof();
                }
                Some(BodyEvent::Reject(error)) => {
                    self.request_body.fail(BodyError::Protocol(error));
                    self.rejection = Some(error);
                }
                Some(BodyEvent::Data { .. }) | None => {}
            }
        }
    }

    /// Passes the body to a task that continues to read it after the response is complete. If the
    /// task reads nothing for `idle_timeout` although the pipe is full, its body fails.
    pub(super) fn receive_after_response<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        match self.forward_body(conn, cx) {
            ForwardResult::Pending { readable: true } => {
                conn.io.deadlines.clear(TimeoutKind::BodyReader);
                Action::Wait(Interest { readable: true, writable: false })
            }
            ForwardResult::Pending { readable: false } => {
                let consumed_now = Some(self.request_body.consumed());
                let now = conn.worker.driver.now();
                let deadline = now.saturating_add(conn.listener.limits.idle_timeout);
                match &mut self.state {
                    // The task has read since the pipe was last full, so its time starts again.
                    ExchangeState::ReceivingAfterResponse { consumed }
                        if *consumed != consumed_now =>
                    {
                        *consumed = consumed_now;
                        conn.io.deadlines.set(TimeoutKind::BodyReader, deadline);
                    }
                    _ => conn.io.deadlines.set_if_unset(TimeoutKind::BodyReader, deadline),
                }
                self.schedule_probe(conn);
                Action::Wait(Interest { readable: false, writable: false })
            }
            ForwardResult::Disconnected => Action::close(CloseReason::PeerClosed),
            ForwardResult::Done => {
                conn.io.deadlines.clear(TimeoutKind::BodyReader);
                self.continue_after_response(conn)
            }
        }
    }

    /// Passes received content to the body's reader until another kind of event, and returns that
    /// event. Returns `None` if it passed content and now needs more input. The caller must then
    /// check whether the pipe still has room before it waits for that input.
    pub(super) fn forward_available<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &Context<'_>,
    ) -> Option<BodyEvent> {
        // Combine small chunks: storing each one separately would use more memory than its content.
        let mut combined = Vec::new();
        let mut has_data = false;
        let event = loop {
            match self.next_body_event(conn) {
                BodyEvent::Data { data, used } => {
                    has_data = true;
                    let input = &mut conn.io.input;
                    // If the content is all of the input, pass the memory that holds it, uncopied.
                    let is_whole_input = combined.is_empty() && data == (0..input.unread().len());
                    if is_whole_input
                        && let Some(owned) = input.take_without_copy(D::Stream::try_into_vec)
                    {
                        self.repoll_reader |= self.request_body.push_without_wake(owned, cx);
                        continue;
                    }
                    combined.extend_from_slice(&input.unread()[data]);
                    input.consume(used);
                }
                other => break other,
            }
        };
        if !combined.is_empty() {
            self.repoll_reader |= self.request_body.push_without_wake(Bytes::from(combined), cx);
        }
        (!has_data || !matches!(event, BodyEvent::NeedInput)).then_some(event)
    }

    /// Parses the next event of the request's body.
    pub(super) fn next_body_event<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> BodyEvent {
        let input = &mut conn.io.input;
        let (used, event) = conn.protocol.receive(
            &conn.listener.proto_limits,
            input.unread(),
            &mut self.scratch_index,
        );
        if let Event::Data(data) = event {
            self.exchange.metrics.add_received(data.len());
            return BodyEvent::Data { data, used };
        }
        input.consume(used);
        match event {
            Event::NeedInput => BodyEvent::NeedInput,
            Event::RequestError(error) => BodyEvent::Reject(error),
            // `Paused` and `Closed` also mean that no more content follows.
            Event::End | Event::Paused | Event::Closed => BodyEvent::End,
            Event::Head(_) | Event::Data(_) | Event::Upgraded => {
                unreachable!("a body yields only data, an end or an error")
            }
        }
    }

    /// Receives and discards the rest of the request's body, because the next request starts after
    /// it. The response is complete.
    pub(super) fn discard_body_after_response<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        while conn.protocol.next_action() == NextAction::DiscardBody {
            let input = &mut conn.io.input;
            let (used, event) = conn.protocol.receive(
                &conn.listener.proto_limits,
                input.unread(),
                &mut self.scratch_index,
            );
            input.consume(used);
            match event {
                Event::NeedInput if conn.is_eof() => return Action::close(CloseReason::PeerClosed),
                // Nothing is in progress, so a server that shuts down need not wait for the rest.
                Event::NeedInput if conn.worker.lifecycle() >= Lifecycle::Draining => {
                    return Action::linger(CloseReason::Drained);
                }
                Event::NeedInput => {
                    conn.start_body_timer();
                    return Action::Wait(Interest { readable: true, writable: false });
                }
                Event::RequestError(error) => {
                    return Action::linger(CloseReason::Rejected(error));
                }
                Event::Closed => return Action::linger(CloseReason::ConnectionClose),
                _ => {}
            }
        }
        conn.io.deadlines.clear(TimeoutKind::Receive);
        self.continue_after_response(conn)
    }
}
