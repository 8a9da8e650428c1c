//! Sends a response: its head, then its body, as fast as the application produces it and the peer
//! receives it.

use super::disconnect::Progress;
use super::receive::Fed;
use super::{Http1, Step, encode};
use crate::exchange::{Exchange, Panicked};
use crate::io::context::{For, Link, Turn};
use crate::io::output::{SHARED_BYTES_MAX, SHARED_BYTES_MIN};
use crate::io::timeouts::Wait;
use crate::observe::close_reason::Ended;
use crate::observe::metrics::Fault;
use crate::panic::{Quiet, guarded};
use http::HeaderMap;
use peregrine_driver::{Driver, FilePart, Stream};
use peregrine_proto::h1::{BodyMode, ResponseLength};
use peregrine_web::body::{BodyError, Part};
use peregrine_web::panics::contained;
use peregrine_web::{Problem, Response};
use std::task::{Context, Poll};

/// How many frames of a response's body are sent in one turn. A stream that is always ready must
/// not monopolise the worker.
const FRAMES_PER_TURN: usize = 32;

/// The connection yields after this much content. Otherwise, if the peer receives everything at
/// once, one connection could send forever.
const YIELD_BYTES: usize = 256 * 1024;

/// A response's body that is being sent.
pub(super) struct Streaming {
    mode: BodyMode,
    /// Bytes still to be sent, if the length was declared. At 0, the body is not polled again.
    /// Further bytes would not be sent and so would never wait for the peer, and an endless body
    /// would monopolise the worker.
    left: Option<u64>,
    trailers: HeaderMap,
    /// Bytes since this body last made the connection yield.
    unbroken: usize,
}

impl Streaming {
    /// Returns whether the body ends with the connection.
    pub(super) fn is_until_close(&self) -> bool {
        self.mode == BodyMode::UntilClose
    }

    /// Returns whether the length of the body is unknown.
    pub(super) fn is_open_ended(&self) -> bool {
        self.left.is_none()
    }
}

impl Http1 {
    /// Decides whether the connection closes after this response, and whether the rest of the
    /// request's body is read or discarded.
    fn settle_request<D: Driver>(&self, link: &mut Link<'_, D>) {
        // Connections in reserved slots close after their response.
        if link.is_to_close() || link.is_by_wicket {
            link.protocol.drain();
        }
        if self.upload.is_unwanted() {
            link.protocol.discard_body();
        } else if self.upload.is_read() {
            link.protocol.keep_body();
        }
    }

    /// Writes the response. If its body does not fit or is not ready, later turns write the rest.
    pub(super) fn respond<D: Driver>(
        &mut self,
        outcome: Result<Response, Panicked>,
        link: &mut Link<'_, D>,
    ) -> Turn {
        link.io.deadlines.clear(Wait::Handler);
        link.io.deadlines.clear(Wait::Probe);
        let response = outcome.unwrap_or_else(|panicked| {
            self.panicked = true;
            self.exchange.tally.fail(Fault::Panic);
            link.protocol.drain();
            self.exchange.tell_panic("a handler", &panicked, &link.info.peer);
            self.render(Problem::handler_panicked(), link)
        });
        self.settle_request(link);
        let mut response = Quiet::new(response);
        self.exchange.keep_rest(response.take_rest());
        if let Some(upgrade) = response.take_upgrade() {
            if encode::switch_protocols(link.protocol, &response, &mut link.io.writer.plain) {
                self.exchange.tally.answer(response.status);
                self.exchange.finish();
                return Turn::Upgrade(upgrade);
            }
            contained(|| {
                tracing::error!(target: "peregrine",
                "a handler answered with an upgrade to a request that did not ask for one, or \
                 whose body was not read; the peer got a 500")
            });
            let unused =
                std::mem::replace(&mut *response, self.render(Problem::handler_panicked(), link));
            guarded("the destructor of an upgrade", || drop((upgrade, unused)));
        }
        self.exchange.tally.answer(response.status);
        let date = link.worker.date();
        let most = link.door.limits.pending_output_bytes_max.max(1);
        let writer = &mut link.io.writer;
        if let Some(bytes) = response.body.as_slice() {
            let length = bytes.len();
            // Copy the content of a pooled buffer, even if it is large: returning the buffer to the
            // pool saves more than the copy costs.
            if length <= most && (length < SHARED_BYTES_MIN || response.body.is_buffer()) {
                let out = &mut writer.plain;
                self.exchange.tally.send(encode::whole(link.protocol, &response, &date, out));
                return self.after(link);
            }
            let held = response.body.held_bytes();
            let body = std::mem::take(&mut response.body).into_shared().unwrap_or_default();
            let exact = ResponseLength::Exact(length as u64);
            encode::head(link.protocol, &response, exact, &date, &mut writer.plain);
            if length <= most {
                self.exchange.tally.send(encode::content(link.protocol, body, writer));
                link.protocol.finish(std::iter::empty(), &mut writer.plain);
                return self.after(link);
            }
            self.whole_bytes = held;
            self.step = Step::Whole(Quiet::new(body));
        } else {
            let out = &mut writer.plain;
            let body = std::mem::take(&mut response.body);
            let length = Exchange::length_of(&body);
            let length = length.map_or(ResponseLength::Unknown, ResponseLength::Exact);
            let mode = encode::head(link.protocol, &response, length, &date, out);
            let left = match mode {
                BodyMode::None => Some(0),
                BodyMode::Exact(bytes) => Some(bytes),
                BodyMode::Chunked | BodyMode::UntilClose => None,
            };
            self.exchange.stream(body);
            self.step =
                Step::Stream(Streaming { mode, left, trailers: HeaderMap::new(), unbroken: 0 });
        }
        self.has_waited = true;
        self.limit_exchange(link.worker.driver.now(), link);
        Turn::Again
    }

    /// Sends a body from memory in pieces, as fast as the peer receives them.
    pub(super) fn send_whole<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let most = link.door.limits.pending_output_bytes_max.max(1);
        let Step::Whole(rest) = &mut self.step else { unreachable!("wrong step") };
        // The exchange ends only when the driver has sent its content.
        if link.is_full() || (rest.is_empty() && !link.stream.has_room()) {
            return self.await_room(link, context);
        }
        if !rest.is_empty() {
            let is_shared = rest.len() >= SHARED_BYTES_MIN;
            let most = if is_shared { SHARED_BYTES_MAX } else { most };
            let all = rest.len();
            let piece = rest.split_to(all.min(most));
            let is_enough = piece.len() >= YIELD_BYTES;
            self.exchange.tally.send(encode::content(link.protocol, piece, &mut link.io.writer));
            return if is_enough { Turn::Yield(For::default()) } else { Turn::Again };
        }
        link.protocol.finish(std::iter::empty(), &mut link.io.writer.plain);
        self.after(link)
    }

    /// Sends a body as its frames become ready.
    pub(super) fn send_stream<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let mut progress = Progress::None;
        for _ in 0..FRAMES_PER_TURN {
            if link.is_full() {
                return self.await_room(link, context);
            }
            let Step::Stream(streaming) = &mut self.step else { unreachable!("wrong step") };
            if streaming.left == Some(0) {
                return self.finish_stream(link);
            }
            let polled = if link.sends_files() {
                self.exchange.poll_part(context, &link.worker.pulse)
            } else {
                let frame = self.exchange.poll_frame(context, &link.worker.pulse);
                frame.map(|frame| frame.map(|frame| frame.map(Part::Frame)))
            };
            let part = match polled {
                Poll::Ready(Some(Ok(part))) => part,
                Poll::Ready(None) => return self.finish_stream(link),
                Poll::Ready(Some(Err(error))) => return self.break_stream(&error, link),
                Poll::Pending => {
                    link.io.hold.get_or_insert_with(|| link.worker.driver.hold());
                    return self.attend(progress, link, context);
                }
            };
            let taken = match part {
                Part::File { file, at, length } => {
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let part = FilePart { file, at, length };
                    encode::file(link.protocol, part, &mut link.io.writer)
                }
                Part::Frame(frame) => match frame.into_data() {
                    Ok(data) => encode::content(link.protocol, data, &mut link.io.writer),
                    // Trailers are the last frame of a body, so the body is not polled again.
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            streaming.trailers = trailers;
                            return self.finish_stream(link);
                        }
                        continue;
                    }
                },
            };
            streaming.left = streaming.left.map(|left| left - taken as u64);
            self.exchange.tally.send(taken);
            if taken > 0 {
                progress = Progress::Some;
            }
            streaming.unbroken += taken;
            if streaming.unbroken >= YIELD_BYTES {
                streaming.unbroken = 0;
                break;
            }
        }
        // The turn has used up its share, but the response may still need the request's content.
        // Receive that before yielding.
        match self.attend(progress, link, context) {
            Turn::Wait(what) => Turn::Yield(what),
            turn => turn,
        }
    }

    pub(super) fn finish_stream<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Turn {
        let Step::Stream(streaming) = &self.step else { unreachable!("wrong step") };
        encode::finish(link.protocol, &streaming.trailers, &mut link.io.writer.plain);
        self.after(link)
    }

    /// Ends the connection because the response's body failed. The peer sees a truncated body.
    pub(super) fn break_stream<D: Driver>(
        &mut self,
        error: &BodyError,
        link: &mut Link<'_, D>,
    ) -> Turn {
        let (peer, request) = (&link.info.peer, self.exchange.request_name());
        let request = request.map(ToString::to_string).unwrap_or_default();
        let is_ours = matches!(error, BodyError::Failed(_));
        self.exchange.tell(|| {
            if is_ours {
                tracing::error!(target: "peregrine", %error, request, %peer,
                    "the body of a response failed");
            } else {
                tracing::debug!(target: "peregrine", %error, request, %peer,
                    "the body of a response failed because its request's body failed");
            }
        });
        if let Step::Stream(Streaming { mode: BodyMode::UntilClose, .. }) = self.step {
            // An orderly close would tell the peer that the body is complete.
            link.stream.reset_on_drop();
            return Turn::close(Ended::ResponseFailed);
        }
        Turn::linger(Ended::ResponseFailed)
    }

    /// Waits until the peer has received some output. Meanwhile, the request's body is still
    /// received.
    pub(super) fn await_room<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.feed(link, context) {
            Fed::Wait(bytes) => Turn::Wait(For { bytes, room: true }),
            Fed::Left | Fed::Over => Turn::Wait(For { bytes: false, room: true }),
        }
    }
}
