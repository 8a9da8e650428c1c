//! Sends responses: their heads, then their content, as fast as the application produces it and the
//! peer receives it.

use super::streams::{Frames, Step, Stream};
use super::{Http2, protocol};
use crate::exchange::{Exchange, Panicked, fields};
use crate::io::context::Link;
use crate::io::transfer_rate::Meter;
use crate::observe::metrics::Fault;
use crate::panic::{Quiet, guarded};
use bytes::Buf;
use peregrine_driver::Driver;
use peregrine_proto::h1::{BodyMode, ResponseLength};
use peregrine_proto::h2::{After, Code, StreamKey};
use peregrine_web::body::BodyError;
use peregrine_web::panics::contained;
use peregrine_web::{Problem, Response};
use std::mem::take;
use std::task::{Context, Poll};
use std::time::Duration;

/// Two limits per turn: how many frames without content one response's body may yield in a row, and
/// how many frames of content all streams together send without completing a response.
const FRAMES_PER_TURN: usize = 32;

impl Http2 {
    /// Writes a response that the server produces without a handler.
    pub(super) fn answer<D: Driver>(
        &mut self,
        number: u32,
        problem: Problem,
        link: &mut Link<'_, D>,
    ) {
        let response = self.render(number, problem, link);
        self.respond(number, Ok(response), link);
    }

    /// Writes the response. If its body does not fit or is not ready, later turns write the rest.
    pub(super) fn respond<D: Driver>(
        &mut self,
        number: u32,
        outcome: Result<Response, Panicked>,
        link: &mut Link<'_, D>,
    ) {
        let mut response = outcome.unwrap_or_else(|panicked| {
            let exchange = &mut self.streams.at(number).exchange;
            exchange.tally.fail(Fault::Panic);
            exchange.tell_panic("a handler", &panicked, &link.info.peer);
            self.render(number, Problem::handler_panicked(), link)
        });
        let stream = self.streams.at(number);
        let Some(key) = stream.key else { return };
        stream.deadlines.handler = Duration::MAX;
        stream.exchange.keep_rest(response.take_rest());
        if stream.is_tunnel {
            match self.open_tunnel(number, key, response, link) {
                Some(refusal) => response = refusal,
                None => return,
            }
        } else if let Some(upgrade) = response.take_upgrade() {
            contained(|| {
                tracing::error!(target: "peregrine",
                "a handler answered with an upgrade to a request that did not ask for one; the \
                 peer got a 500")
            });
            let answer = self.render(number, Problem::handler_panicked(), link);
            let unused = std::mem::replace(&mut response, answer);
            guarded("the destructor of an upgrade", || drop((upgrade, unused)));
        }
        self.streams.at(number).exchange.tally.answer(response.status);
        if response.body.as_slice().is_some() {
            self.respond_whole(number, key, response, link);
        } else {
            self.respond_with_frames(number, key, response, link);
        }
    }

    /// Writes a response whose body is in memory.
    fn respond_whole<D: Driver>(
        &mut self,
        number: u32,
        key: StreamKey,
        response: Response,
        link: &mut Link<'_, D>,
    ) {
        let mut response = Quiet::new(response);
        let (limits, is_full) = (&link.door.http2, link.is_full());
        let bytes = response.body.as_slice().unwrap_or_default();
        let length = ResponseLength::Exact(bytes.len() as u64);
        let mode = self.write_head(key, &response, length, link);
        if matches!(mode, BodyMode::None | BodyMode::Exact(0)) {
            return self.finish(number, link);
        }
        let protocol = protocol(&mut self.core);
        if !is_full && bytes.len() <= protocol.room(limits, key) {
            protocol.send_data(limits, key, bytes, After::End, &mut link.io.writer.plain);
            self.sent += bytes.len() as u64;
            self.streams.at(number).exchange.tally.send(bytes.len());
            return self.finish(number, link);
        }
        protocol.offer(key);
        self.streams.at(number).step =
            Step::Whole { body: Quiet::new(take(&mut response.body)), from: 0 };
        self.streams.weigh(number);
        self.limit_sending(number, link);
    }

    /// Begins a response whose body is sent as it becomes ready.
    pub(super) fn respond_with_frames<D: Driver>(
        &mut self,
        number: u32,
        key: StreamKey,
        response: Response,
        link: &mut Link<'_, D>,
    ) {
        let mut response = Quiet::new(response);
        let body = take(&mut response.body);
        // If the length is zero, the body may still have trailers, so the length is not declared.
        let length =
            Exchange::length_of(&body).filter(|length| *length > 0 || Exchange::is_over(&body));
        let length = length.map_or(ResponseLength::Unknown, ResponseLength::Exact);
        let mode = self.write_head(key, &response, length, link);
        let stream = self.streams.at(number);
        stream.exchange.stream(body);
        let left = match mode {
            BodyMode::None | BodyMode::Exact(0) => return self.finish(number, link),
            BodyMode::Exact(bytes) => Some(bytes),
            BodyMode::Chunked | BodyMode::UntilClose => None,
        };
        stream.step = Step::Frames(Frames { left, ..Frames::default() });
        self.limit_sending(number, link);
        self.pump(number, link);
        self.streams.weigh(number);
    }

    fn write_head<D: Driver>(
        &mut self,
        key: StreamKey,
        response: &Response,
        length: ResponseLength,
        link: &mut Link<'_, D>,
    ) -> BodyMode {
        let (limits, date) = (&link.door.http2, link.worker.date());
        let (status, fields) = (response.status.as_u16(), fields::pairs(&response.fields));
        let out = &mut link.io.writer.plain;
        protocol(&mut self.core).respond(limits, key, status, fields, length, &date, out)
    }

    /// Starts the timeout of the whole exchange, if there is one.
    fn limit_sending<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let now = link.worker.driver.now();
        self.streams.at(number).exchange.goes_on(now);
        if let Some(timeout) = link.door.limits.exchange_timeout {
            let until = now.saturating_add(timeout);
            let deadlines = &mut self.streams.at(number).deadlines;
            deadlines.exchange = deadlines.exchange.min(until);
        }
        self.watch_window(number, link);
        self.watch_content(number, link);
        self.hasten(number, link);
    }

    /// Polls the body for content, unless earlier content is still unsent. If the unsent content
    /// completes the declared length, the body is polled once more before that content is sent,
    /// because trailers may follow.
    pub(super) fn pump<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        if !self.run_tunnel(number, link) {
            return;
        }
        for _ in 0..FRAMES_PER_TURN {
            let Stream { step, exchange, waker, is_tunnel, .. } = self.streams.at(number);
            let Step::Frames(frames) = step else { return };
            let rest = frames.data.len() as u64;
            let is_whole = frames.left == Some(rest);
            if frames.is_over || !(rest == 0 || is_whole) {
                return self.go_on(number, link);
            }
            match exchange.poll_frame(&mut Context::from_waker(waker), &link.worker.pulse) {
                Poll::Pending if *is_tunnel && !exchange.has_protocol() => frames.is_over = true,
                Poll::Pending => return self.go_on(number, link),
                Poll::Ready(None) => frames.is_over = true,
                Poll::Ready(Some(Err(error))) => return self.break_off(number, &error, link),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data().map(Quiet::new) {
                    Ok(data) if data.is_empty() => {}
                    // Content beyond the declared length is not sent.
                    Ok(_) if is_whole => frames.is_over = true,
                    Ok(mut data) => {
                        let left = frames.left.and_then(|left| usize::try_from(left).ok());
                        data.truncate(left.unwrap_or(usize::MAX));
                        frames.data = data;
                    }
                    // Trailers are the last frame of a body, so the body is not polled again.
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            (frames.trailers, frames.is_over) = (trailers, true);
                        }
                    }
                },
            }
        }
        self.go_on(number, link);
        // The body was always ready but had no content. Poll it again after other tasks.
        self.streams.woken.wake(number);
    }

    /// Offers unsent content to the core, or ends the response if there is none left.
    fn go_on<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let Stream { key, step, .. } = self.streams.at(number);
        let (Some(key), Step::Frames(frames)) = (*key, step) else { return };
        if !frames.data.is_empty() {
            protocol(&mut self.core).offer(key);
            self.watch_window(number, link);
        } else if frames.is_over {
            let trailers = fields::map_pairs(&frames.trailers);
            let (limits, out) = (&link.door.http2, &mut link.io.writer.plain);
            protocol(&mut self.core).finish(limits, key, trailers, out);
            self.finish(number, link);
        }
    }

    /// Resets a stream whose response body failed, so that the peer knows that the content is
    /// incomplete.
    fn break_off<D: Driver>(&mut self, number: u32, error: &BodyError, link: &mut Link<'_, D>) {
        let (peer, exchange) = (&link.info.peer, &self.streams.at(number).exchange);
        let request = exchange.request_name().map(ToString::to_string).unwrap_or_default();
        exchange.tell(|| match error {
            BodyError::Failed(_) => tracing::error!(target: "peregrine", %error, request, %peer,
                "the body of a response failed"),
            _ => tracing::debug!(target: "peregrine", %error, request, %peer,
                "the body of a response failed because its request's body failed"),
        });
        self.reset_stream(number, Code::INTERNAL_ERROR, link);
    }

    /// Writes content, the most urgent first, until the output buffer is full. Returns false if it
    /// stopped after [`FRAMES_PER_TURN`] frames; the connection must then yield.
    pub(super) fn send_ready<D: Driver>(&mut self, link: &mut Link<'_, D>) -> bool {
        let limits = &link.door.http2;
        let mut frames = 0;
        while !link.is_full() {
            if frames == FRAMES_PER_TURN {
                return false;
            }
            let Some(ready) = protocol(&mut self.core).next_ready(limits) else { return true };
            let key = ready.stream;
            let Some(number) = self.streams.find(key) else {
                debug_assert!(false, "only streams with an exchange offer content");
                let out = &mut link.io.writer.plain;
                protocol(&mut self.core).reset(key, Code::INTERNAL_ERROR, out);
                continue;
            };
            let stream = self.streams.at(number);
            let (core, out) = (protocol(&mut self.core), &mut link.io.writer.plain);
            let is_complete = match &mut stream.step {
                Step::Whole { body, from } => {
                    let rest = &body.as_slice().unwrap_or_default()[*from..];
                    let sent = core.send_data(limits, key, rest, After::End, out);
                    *from += sent;
                    (stream.sent, self.sent) = (stream.sent + sent as u64, self.sent + sent as u64);
                    stream.exchange.tally.send(sent);
                    sent == rest.len()
                }
                Step::Frames(frames) => {
                    let is_last = frames.is_over && frames.trailers.is_empty();
                    let after = if is_last { After::End } else { After::Wait };
                    let sent = core.send_data(limits, key, &frames.data, after, out);
                    frames.data.advance(sent);
                    frames.left = frames.left.map(|left| left - sent as u64);
                    (stream.sent, self.sent) = (stream.sent + sent as u64, self.sent + sent as u64);
                    stream.exchange.tally.send(sent);
                    is_last && frames.data.is_empty()
                }
                Step::Gather { .. } | Step::Handler | Step::ReadOn | Step::Unread | Step::Free => {
                    unreachable!("only a response that has begun has content")
                }
            };
            if is_complete {
                self.finish(number, link);
            } else {
                self.pump(number, link);
                self.watch_window(number, link);
                self.streams.weigh(number);
                frames += 1;
            }
        }
        true
    }

    /// Requires the peer to open its windows at the minimum rate while content waits for them. If
    /// no content waits, the peer's windows allowed everything so far, so earlier waiting time no
    /// longer counts against it.
    pub(super) fn watch_window<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        let has_content = match &stream.step {
            Step::Whole { .. } => true,
            Step::Frames(frames) => !frames.data.is_empty(),
            _ => false,
        };
        let (now, rate) = (link.worker.driver.now(), link.door.limits.rate());
        let (core, sent) = (protocol(&mut self.core), self.sent);
        if !has_content {
            (stream.sending, stream.sharing) = (Meter::new(stream.sent), Meter::new(sent));
        }
        let is_stalled = has_content && stream.key.is_some_and(|key| core.is_stalled(key));
        let is_blocked = has_content && !is_stalled && core.is_blocked();
        stream.deadlines.send = if is_stalled {
            stream.sharing.pause(now, sent, rate);
            stream.sending.wait(now, stream.sent, rate)
        } else {
            stream.sending.pause(now, stream.sent, rate);
            if is_blocked {
                stream.sharing.wait(now, sent, rate)
            } else {
                stream.sharing.pause(now, sent, rate);
                // Other streams may use up the connection's window, so check again.
                if has_content { now.saturating_add(rate.slack) } else { Duration::MAX }
            }
        };
        if stream.is_tunnel {
            self.watch_tunnel(number, link);
        }
        self.hasten(number, link);
    }
}
