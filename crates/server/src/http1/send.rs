//! Sends a response: its head, then its body, as fast as the application produces it and the peer
//! receives it.

use super::disconnect::ResponseProgress;
use super::receive::ForwardResult;
use super::{ExchangeState, Http1, encode};
use crate::exchange::{Exchange, HandlerPanic};
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::output::{ZERO_COPY_BYTES_MAX, ZERO_COPY_BYTES_MIN};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ErrorType;
use crate::panic::{CatchDropPanic, catch_panic};
use http::HeaderMap;
use peregrine_driver::{Driver, FileRange, Stream};
use peregrine_proto::Date;
use peregrine_proto::h1::{BodyFraming, ResponseLength};
use peregrine_web::body::{BodyError, BodyPart};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Problem, Response};
use std::task::{Context, Poll};

/// The maximum number of frames of a response's body that are sent in one turn, so that a stream
/// that is always ready cannot monopolise the worker.
const FRAMES_PER_TURN: usize = 32;

/// The connection yields after it has sent this much content. Otherwise, a connection to a peer
/// that receives as fast as the server sends would monopolise the worker.
const YIELD_AFTER_BYTES: usize = 256 * 1024;

/// The state of a response's body that the application produces piece by piece. The exchange holds
/// the body itself.
pub(super) struct BodyWriter {
    framing: BodyFraming,
    /// Bytes still to be sent, if the length was declared. At 0, the body is not polled again, even
    /// if it is longer. Its further bytes would be discarded and cause no backpressure, so an
    /// endless body would monopolise the worker.
    remaining: Option<u64>,
    trailers: HeaderMap,
    /// Bytes sent since this body last made the connection yield.
    bytes_since_yield: usize,
}

impl BodyWriter {
    /// Returns whether only the close of the connection marks the end of the body.
    pub(super) fn is_close_delimited(&self) -> bool {
        self.framing == BodyFraming::CloseDelimited
    }

    /// Returns whether the length of the body is unknown.
    pub(super) fn has_unknown_length(&self) -> bool {
        self.remaining.is_none()
    }
}

impl Http1 {
    /// Informs the protocol core, before it writes the head of the response, whether the connection
    /// must close after this response, and whether the rest of the request's body is read or
    /// discarded.
    fn set_persistence<D: Driver>(&self, conn: &mut ConnectionContext<'_, D>) {
        // A connection in a reserved slot may send only one request.
        if conn.should_close() || conn.uses_reserved_slot {
            conn.protocol.stop_after_response();
        }
        if self.request_body.is_discarding() {
            conn.protocol.discard_body();
        } else if self.request_body.has_reader() {
            conn.protocol.keep_reading_body();
        }
    }

    /// Writes the response. If its body does not fit or is not ready, later turns write the rest.
    pub(super) fn respond<D: Driver>(
        &mut self,
        outcome: Result<Response, HandlerPanic>,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        conn.io.deadlines.clear(TimeoutKind::Handler);
        conn.io.deadlines.clear(TimeoutKind::Probe);
        let response = outcome.unwrap_or_else(|panic| {
            self.handler_panicked = true;
            self.exchange.metrics.set_error(ErrorType::Panic);
            conn.protocol.stop_after_response();
            self.exchange.log_panic("a handler", &panic, &conn.info.peer);
            self.render_problem(Problem::internal_error(), conn)
        });
        self.set_persistence(conn);
        let mut response = CatchDropPanic::new(response);
        self.exchange.set_after_response(response.take_after_response());
        if let Some(upgrade_handler) = response.take_upgrade() {
            if encode::switch_protocols(conn.protocol, &response, &mut conn.io.output.plaintext) {
                self.exchange.metrics.set_status(response.status);
                self.exchange.report_request();
                return Action::Upgrade(upgrade_handler);
            }
            catch_subscriber_panic(|| {
                tracing::error!(target: "peregrine",
                "a handler responded with an upgrade to a request that did not request one, or \
                 whose body was not read; the peer got a 500")
            });
            let rejected = std::mem::replace(
                &mut *response,
                self.render_problem(Problem::internal_error(), conn),
            );
            catch_panic("the destructor of an upgrade", || drop((upgrade_handler, rejected)));
        }
        self.exchange.metrics.set_status(response.status);
        let date = conn.worker.date();
        let buffer_max = conn.listener.limits.write_buffer_bytes_max.max(1);
        let output = &mut conn.io.output;
        if let Some(bytes) = response.body.as_slice() {
            let length = bytes.len();
            // Copy the content of a pooled buffer, even if it is large: returning the buffer to the
            // pool saves more than the copy costs.
            if length <= buffer_max && (length < ZERO_COPY_BYTES_MIN || response.body.is_pooled()) {
                let out = &mut output.plaintext;
                self.exchange.metrics.add_sent(encode::write_full(
                    conn.protocol,
                    &response,
                    &date,
                    out,
                ));
                return self.continue_after_response(conn);
            }
            let memory_bytes = response.body.memory_bytes();
            let body = std::mem::take(&mut response.body).try_into_bytes().unwrap_or_default();
            let declared = ResponseLength::Exact(length as u64);
            encode::write_head(conn.protocol, &response, declared, &date, &mut output.plaintext);
            if length <= buffer_max {
                self.exchange.metrics.add_sent(encode::write_content(conn.protocol, body, output));
                conn.protocol.finish(std::iter::empty(), &mut output.plaintext);
                return self.continue_after_response(conn);
            }
            self.full_body_memory_bytes = memory_bytes;
            self.state = ExchangeState::SendingFull(CatchDropPanic::new(body));
        } else {
            self.start_streaming(&mut response, &date, conn);
        }
        self.spans_turns = true;
        self.start_exchange_timer(conn.worker.driver.now(), conn);
        Action::Continue
    }

    /// Writes the head of a response whose body is a stream.
    fn start_streaming<D: Driver>(
        &mut self,
        response: &mut Response,
        date: &Date,
        conn: &mut ConnectionContext<'_, D>,
    ) {
        let body = std::mem::take(&mut response.body);
        let length = Exchange::body_length(&body);
        let length = length.map_or(ResponseLength::Unknown, ResponseLength::Exact);
        let out = &mut conn.io.output.plaintext;
        let framing = encode::write_head(conn.protocol, response, length, date, out);
        let remaining = match framing {
            BodyFraming::None => Some(0),
            BodyFraming::Exact(bytes) => Some(bytes),
            BodyFraming::Chunked | BodyFraming::CloseDelimited => None,
        };
        self.exchange.set_body(body);
        self.state = ExchangeState::SendingStreamed(BodyWriter {
            framing,
            remaining,
            trailers: HeaderMap::new(),
            bytes_since_yield: 0,
        });
    }

    /// Sends a body from memory in chunks, as fast as the peer receives them.
    pub(super) fn send_full_body<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let buffer_max = conn.listener.limits.write_buffer_bytes_max.max(1);
        let ExchangeState::SendingFull(remaining) = &mut self.state else {
            unreachable!("called only in `SendingFull`")
        };
        // The exchange must not end before the driver has sent all of the body, because
        // `Http1::memory_bytes` counts the body only while the exchange is in this state.
        if conn.is_output_full() || (remaining.is_empty() && !conn.stream.is_writable()) {
            return self.wait_writable(conn, cx);
        }
        if !remaining.is_empty() {
            let remaining_len = remaining.len();
            let is_zero_copy = remaining_len >= ZERO_COPY_BYTES_MIN;
            let chunk_bytes_max = if is_zero_copy { ZERO_COPY_BYTES_MAX } else { buffer_max };
            let chunk = remaining.split_to(remaining_len.min(chunk_bytes_max));
            // A smaller chunk is one of the last, so a counter of the bytes sent is not needed.
            let must_yield = chunk.len() >= YIELD_AFTER_BYTES;
            self.exchange.metrics.add_sent(encode::write_content(
                conn.protocol,
                chunk,
                &mut conn.io.output,
            ));
            return if must_yield { Action::Yield(Interest::default()) } else { Action::Continue };
        }
        conn.protocol.finish(std::iter::empty(), &mut conn.io.output.plaintext);
        self.continue_after_response(conn)
    }

    /// Sends a body as its frames become ready.
    pub(super) fn send_streamed_body<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let mut progress = ResponseProgress::NoContent;
        for _ in 0..FRAMES_PER_TURN {
            if conn.is_output_full() {
                return self.wait_writable(conn, cx);
            }
            let ExchangeState::SendingStreamed(writer) = &mut self.state else {
                unreachable!("called only in `SendingStreamed`")
            };
            if writer.remaining == Some(0) {
                return self.finish_body(conn);
            }
            let poll = if conn.supports_sendfile() {
                self.exchange.poll_body_part(cx, &conn.worker.heartbeat)
            } else {
                let next_frame = self.exchange.poll_frame(cx, &conn.worker.heartbeat);
                next_frame.map(|next| next.map(|result| result.map(BodyPart::Frame)))
            };
            let part = match poll {
                Poll::Ready(Some(Ok(part))) => part,
                Poll::Ready(None) => return self.finish_body(conn),
                Poll::Ready(Some(Err(error))) => return self.fail_body(&error, conn),
                Poll::Pending => {
                    conn.io.keep_awake.get_or_insert_with(|| conn.worker.driver.keep_awake());
                    return self.poll_request_body(progress, conn, cx);
                }
            };
            let written = match part {
                BodyPart::File { file, offset, len } => {
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    let range = FileRange { file, offset, len };
                    encode::write_file(conn.protocol, range, &mut conn.io.output)
                }
                BodyPart::Frame(frame) => match frame.into_data() {
                    Ok(data) => encode::write_content(conn.protocol, data, &mut conn.io.output),
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            // Trailers are the last frame of a body, so it is not polled again.
                            writer.trailers = trailers;
                            return self.finish_body(conn);
                        }
                        continue;
                    }
                },
            };
            writer.remaining = writer.remaining.map(|remaining| remaining - written as u64);
            self.exchange.metrics.add_sent(written);
            if written > 0 {
                progress = ResponseProgress::Content;
            }
            writer.bytes_since_yield += written;
            if writer.bytes_since_yield >= YIELD_AFTER_BYTES {
                writer.bytes_since_yield = 0;
                break;
            }
        }
        // Before the turn yields, receive the request's content, because the response's body may
        // need it to produce more.
        match self.poll_request_body(progress, conn, cx) {
            Action::Wait(interest) => Action::Yield(interest),
            action => action,
        }
    }

    /// Writes the end of a streamed body with its trailers.
    pub(super) fn finish_body<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) -> Action {
        let ExchangeState::SendingStreamed(writer) = &self.state else {
            unreachable!("called only in `SendingStreamed`")
        };
        encode::finish_body(conn.protocol, &writer.trailers, &mut conn.io.output.plaintext);
        self.continue_after_response(conn)
    }

    /// Ends the connection because the response's body failed. The peer sees a truncated body.
    pub(super) fn fail_body<D: Driver>(
        &mut self,
        error: &BodyError,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Action {
        let (peer, request) = (&conn.info.peer, self.exchange.request_name());
        let request = request.map(ToString::to_string).unwrap_or_default();
        let is_application_error = matches!(error, BodyError::Stream(_));
        self.exchange.in_span(|| {
            if is_application_error {
                tracing::error!(target: "peregrine", %error, request, %peer,
                    "the body of a response failed");
            } else {
                tracing::debug!(target: "peregrine", %error, request, %peer,
                    "the body of a response failed because its request's body failed");
            }
        });
        if self.is_close_delimited() {
            // With an orderly close, the body would look complete to the peer.
            conn.stream.reset_on_drop();
            return Action::close(CloseReason::ResponseBodyFailed);
        }
        Action::linger(CloseReason::ResponseBodyFailed)
    }

    /// Waits until there is room for more output. Meanwhile, the server still receives the
    /// request's body. If that ends early, the wait continues: a peer that has ended its sending
    /// side may still receive the response.
    pub(super) fn wait_writable<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        match self.forward_body(conn, cx) {
            ForwardResult::Pending { readable } => {
                Action::Wait(Interest { readable, writable: true })
            }
            ForwardResult::Disconnected | ForwardResult::Done => {
                Action::Wait(Interest { readable: false, writable: true })
            }
        }
    }
}
