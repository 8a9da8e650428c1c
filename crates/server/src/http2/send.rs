//! Sends responses: their heads, then their content, as fast as the application produces it and the
//! peer receives it.

use super::streams::{BodyFrames, Stream, StreamState};
use super::{Http2, protocol};
use crate::exchange::{Exchange, HandlerPanic, fields};
use crate::io::context::ConnectionContext;
use crate::io::transfer_rate::TransferRate;
use crate::observe::metrics::ErrorType;
use crate::panic::{CatchDropPanic, catch_panic};
use bytes::Buf;
use peregrine_driver::Driver;
use peregrine_proto::h1::{BodyFraming, ResponseLength};
use peregrine_proto::h2::{ErrorCode, MoreData, StreamKey};
use peregrine_web::body::BodyError;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Problem, Response};
use std::mem::take;
use std::task::{Context, Poll};
use std::time::Duration;

/// Limits two counts: how often a body is polled in a row while it yields frames without content,
/// and how many sends of one turn do not complete a response.
const FRAMES_PER_TURN: usize = 32;

impl Http2 {
    /// Responds without calling a handler, with an error that the server detected.
    pub(super) fn respond_problem<D: Driver>(
        &mut self,
        slot: u32,
        problem: Problem,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let response = self.render_problem(slot, problem, conn);
        self.respond(slot, Ok(response), conn);
    }

    /// Writes the response. If its body does not fit or is not ready, [`Http2::send_ready`] writes
    /// the rest.
    pub(super) fn respond<D: Driver>(
        &mut self,
        slot: u32,
        outcome: Result<Response, HandlerPanic>,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let mut response = outcome.unwrap_or_else(|panic| {
            let exchange = &mut self.streams.at(slot).exchange;
            exchange.metrics.set_error(ErrorType::Panic);
            exchange.log_panic("a handler", &panic, &conn.info.peer);
            self.render_problem(slot, Problem::internal_error(), conn)
        });
        let stream = self.streams.at(slot);
        let Some(key) = stream.key else { return };
        stream.deadlines.handler = Duration::MAX;
        stream.exchange.set_after_response(response.take_after_response());
        if stream.is_tunnel {
            match self.open_tunnel(slot, key, response, conn) {
                Some(rejection) => response = rejection,
                None => return,
            }
        } else if let Some(upgrade_handler) = response.take_upgrade() {
            catch_subscriber_panic(|| {
                tracing::error!(target: "peregrine",
                "a handler responded with an upgrade to a request that did not request one; the \
                 peer got a 500")
            });
            let problem_response = self.render_problem(slot, Problem::internal_error(), conn);
            let rejected = std::mem::replace(&mut response, problem_response);
            catch_panic("the destructor of an upgrade", || drop((upgrade_handler, rejected)));
        }
        self.streams.at(slot).exchange.metrics.set_status(response.status);
        if response.body.as_slice().is_some() {
            self.respond_full(slot, key, response, conn);
        } else {
            self.respond_streamed(slot, key, response, conn);
        }
    }

    /// Writes a response whose body is in memory.
    fn respond_full<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        response: Response,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let mut response = CatchDropPanic::new(response);
        let (limits, is_full) = (&conn.listener.http2_proto_limits, conn.is_output_full());
        let bytes = response.body.as_slice().unwrap_or_default();
        let length = ResponseLength::Exact(bytes.len() as u64);
        let framing = self.write_head(key, &response, length, conn);
        if matches!(framing, BodyFraming::None | BodyFraming::Exact(0)) {
            return self.finish_exchange(slot, conn);
        }
        let core = protocol(&mut self.core);
        if !is_full && bytes.len() <= core.send_capacity(limits, key) {
            core.send_data(limits, key, bytes, MoreData::End, &mut conn.io.output.plaintext);
            self.sent += bytes.len() as u64;
            self.streams.at(slot).exchange.metrics.add_sent(bytes.len());
            return self.finish_exchange(slot, conn);
        }
        core.mark_ready(key);
        self.streams.at(slot).state = StreamState::SendingFull {
            body: CatchDropPanic::new(take(&mut response.body)),
            offset: 0,
        };
        self.streams.update_reservation(slot);
        self.start_exchange_timer(slot, conn);
    }

    /// Writes the head of a response whose body is a stream, and begins to send the body.
    pub(super) fn respond_streamed<D: Driver>(
        &mut self,
        slot: u32,
        key: StreamKey,
        response: Response,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let mut response = CatchDropPanic::new(response);
        let body = take(&mut response.body);
        // A declared length of zero would end the stream, so it is not declared if trailers may
        // follow.
        let length = Exchange::body_length(&body)
            .filter(|length| *length > 0 || Exchange::is_end_of_body(&body));
        let length = length.map_or(ResponseLength::Unknown, ResponseLength::Exact);
        let framing = self.write_head(key, &response, length, conn);
        let stream = self.streams.at(slot);
        stream.exchange.set_body(body);
        let remaining = match framing {
            BodyFraming::None | BodyFraming::Exact(0) => return self.finish_exchange(slot, conn),
            BodyFraming::Exact(bytes) => Some(bytes),
            BodyFraming::Chunked | BodyFraming::CloseDelimited => None,
        };
        stream.state =
            StreamState::SendingStreamed(BodyFrames { remaining, ..BodyFrames::default() });
        self.start_exchange_timer(slot, conn);
        self.poll_response_body(slot, conn);
        self.streams.update_reservation(slot);
    }

    /// Writes a response's head. Returns the framing of its body.
    fn write_head<D: Driver>(
        &mut self,
        key: StreamKey,
        response: &Response,
        length: ResponseLength,
        conn: &mut ConnectionContext<'_, D>,
    ) -> BodyFraming {
        let (limits, date) = (&conn.listener.http2_proto_limits, conn.worker.date());
        let (status, fields) = (response.status.as_u16(), fields::field_pairs(&response.headers));
        let out = &mut conn.io.output.plaintext;
        protocol(&mut self.core).send_response(limits, key, status, fields, length, &date, out)
    }

    /// Marks the exchange as waiting, and starts its timeouts.
    fn start_exchange_timer<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        let now = conn.worker.driver.now();
        self.streams.at(slot).exchange.mark_pending(now);
        if let Some(timeout) = conn.listener.limits.exchange_timeout {
            let deadline = now.saturating_add(timeout);
            let deadlines = &mut self.streams.at(slot).deadlines;
            deadlines.exchange = deadlines.exchange.min(deadline);
        }
        self.update_send_timer(slot, conn);
        self.update_receive_timer(slot, conn);
        self.schedule_stream_timer(slot, conn);
    }

    /// Polls the body for content, unless earlier content is still unsent. If the unsent content
    /// completes the declared length, polls the body again before that content is sent, because
    /// trailers may follow.
    pub(super) fn poll_response_body<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        // The upgraded protocol of a tunnel produces the content of the body. If it panics,
        // `poll_tunnel` resets the stream.
        if !self.poll_tunnel(slot, conn) {
            return;
        }
        for _ in 0..FRAMES_PER_TURN {
            let Stream { state, exchange, waker, is_tunnel, .. } = self.streams.at(slot);
            let StreamState::SendingStreamed(frames) = state else { return };
            let unsent_len = frames.data.len() as u64;
            let completes_body = frames.remaining == Some(unsent_len);
            if frames.has_ended || !(unsent_len == 0 || completes_body) {
                return self.offer_data(slot, conn);
            }
            match exchange.poll_frame(&mut Context::from_waker(waker), &conn.worker.heartbeat) {
                // A tunnel's body does not end by itself. It ends here: the protocol has ended, and
                // all of its output was polled.
                Poll::Pending if *is_tunnel && !exchange.is_upgraded() => frames.has_ended = true,
                Poll::Pending => return self.offer_data(slot, conn),
                Poll::Ready(None) => frames.has_ended = true,
                Poll::Ready(Some(Err(error))) => return self.fail_body(slot, &error, conn),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data().map(CatchDropPanic::new) {
                    Ok(data) if data.is_empty() => {}
                    // Content beyond the declared length is not sent.
                    Ok(_) if completes_body => frames.has_ended = true,
                    Ok(mut data) => {
                        let remaining =
                            frames.remaining.and_then(|remaining| usize::try_from(remaining).ok());
                        data.truncate(remaining.unwrap_or(usize::MAX));
                        frames.data = data;
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            // Trailers are the last frame of a body, so it is not polled again.
                            (frames.trailers, frames.has_ended) = (trailers, true);
                        }
                    }
                },
            }
        }
        self.offer_data(slot, conn);
        // The limit was reached. Poll the body again, after other tasks.
        self.streams.woken.wake(slot);
    }

    /// Marks the stream as ready to send if it has unsent content. Otherwise, ends the response if
    /// its body has ended.
    fn offer_data<D: Driver>(&mut self, slot: u32, conn: &mut ConnectionContext<'_, D>) {
        let Stream { key, state, .. } = self.streams.at(slot);
        let (Some(key), StreamState::SendingStreamed(frames)) = (*key, state) else { return };
        if !frames.data.is_empty() {
            protocol(&mut self.core).mark_ready(key);
            self.update_send_timer(slot, conn);
        } else if frames.has_ended {
            let trailers = fields::header_map_pairs(&frames.trailers);
            let (limits, out) = (&conn.listener.http2_proto_limits, &mut conn.io.output.plaintext);
            protocol(&mut self.core).finish(limits, key, trailers, out);
            self.finish_exchange(slot, conn);
        }
    }

    /// Resets a stream whose response body failed, so that the peer detects that the content is
    /// incomplete.
    fn fail_body<D: Driver>(
        &mut self,
        slot: u32,
        error: &BodyError,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let (peer, exchange) = (&conn.info.peer, &self.streams.at(slot).exchange);
        let request = exchange.request_name().map(ToString::to_string).unwrap_or_default();
        exchange.in_span(|| match error {
            BodyError::Stream(_) => tracing::error!(target: "peregrine", %error, request, %peer,
                "the body of a response failed"),
            _ => tracing::debug!(target: "peregrine", %error, request, %peer,
                "the body of a response failed because its request's body failed"),
        });
        self.reset_stream(slot, ErrorCode::INTERNAL_ERROR, conn);
    }

    /// Writes content, the most urgent first, until the output buffer is full or no stream can
    /// send. Returns whether it stopped before that, at [`FRAMES_PER_TURN`], so that the connection
    /// must yield.
    pub(super) fn send_ready<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) -> bool {
        let limits = &conn.listener.http2_proto_limits;
        let mut incomplete_sends = 0;
        while !conn.is_output_full() {
            if incomplete_sends == FRAMES_PER_TURN {
                return true;
            }
            let Some(ready) = protocol(&mut self.core).next_ready(limits) else { return false };
            let key = ready.stream;
            let Some(slot) = self.streams.find(key) else {
                debug_assert!(false, "only streams with an exchange are marked as ready");
                let out = &mut conn.io.output.plaintext;
                protocol(&mut self.core).reset(key, ErrorCode::INTERNAL_ERROR, out);
                continue;
            };
            let stream = self.streams.at(slot);
            let (core, out) = (protocol(&mut self.core), &mut conn.io.output.plaintext);
            let is_complete = match &mut stream.state {
                StreamState::SendingFull { body, offset } => {
                    let unsent = &body.as_slice().unwrap_or_default()[*offset..];
                    let sent = core.send_data(limits, key, unsent, MoreData::End, out);
                    *offset += sent;
                    (stream.sent, self.sent) = (stream.sent + sent as u64, self.sent + sent as u64);
                    stream.exchange.metrics.add_sent(sent);
                    sent == unsent.len()
                }
                StreamState::SendingStreamed(frames) => {
                    let is_last = frames.has_ended && frames.trailers.is_empty();
                    let more_data = if is_last { MoreData::End } else { MoreData::Pending };
                    let sent = core.send_data(limits, key, &frames.data, more_data, out);
                    frames.data.advance(sent);
                    frames.remaining = frames.remaining.map(|remaining| remaining - sent as u64);
                    (stream.sent, self.sent) = (stream.sent + sent as u64, self.sent + sent as u64);
                    stream.exchange.metrics.add_sent(sent);
                    is_last && frames.data.is_empty()
                }
                StreamState::Buffering { .. }
                | StreamState::RunningHandler
                | StreamState::ReceivingAfterResponse
                | StreamState::DiscardingBody
                | StreamState::Vacant => {
                    unreachable!("only streams that send a response are marked as ready")
                }
            };
            if is_complete {
                self.finish_exchange(slot, conn);
            } else {
                self.poll_response_body(slot, conn);
                self.update_send_timer(slot, conn);
                self.streams.update_reservation(slot);
                incomplete_sends += 1;
            }
        }
        false
    }

    /// Updates the deadline by which the peer must open its windows: it must do so at the minimum
    /// rate while content waits for them. If no content waits, the windows have allowed everything
    /// so far, so earlier waits no longer count against the peer.
    pub(super) fn update_send_timer<D: Driver>(
        &mut self,
        slot: u32,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let Some(stream) = self.streams.get(slot) else { return };
        let has_content = match &stream.state {
            StreamState::SendingFull { .. } => true,
            StreamState::SendingStreamed(frames) => !frames.data.is_empty(),
            _ => false,
        };
        let (now, rate) = (conn.worker.driver.now(), conn.listener.limits.min_rate());
        let (core, connection_sent) = (protocol(&mut self.core), self.sent);
        if !has_content {
            (stream.send_rate, stream.connection_send_rate) =
                (TransferRate::new(stream.sent), TransferRate::new(connection_sent));
        }
        let is_stream_blocked =
            has_content && stream.key.is_some_and(|key| core.is_stream_window_exhausted(key));
        let is_connection_blocked =
            has_content && !is_stream_blocked && core.is_connection_window_exhausted();
        stream.deadlines.send = if is_stream_blocked {
            stream.connection_send_rate.pause(now, connection_sent, rate);
            stream.send_rate.start(now, stream.sent, rate)
        } else {
            stream.send_rate.pause(now, stream.sent, rate);
            if is_connection_blocked {
                stream.connection_send_rate.start(now, connection_sent, rate)
            } else {
                stream.connection_send_rate.pause(now, connection_sent, rate);
                // Other streams may use up the connection's window, so check again.
                if has_content { now.saturating_add(rate.grace) } else { Duration::MAX }
            }
        };
        if stream.is_tunnel {
            self.update_tunnel_timer(slot, conn);
        }
        self.schedule_stream_timer(slot, conn);
    }
}
