//! Receives requests, and passes their content to the handlers.

use super::streams::{Deadlines, Step, Stream};
use super::{Http2, protocol};
use crate::admission::Refusal;
use crate::exchange::body_sender::{Room, Upload};
use crate::exchange::fields;
use crate::io::context::{Link, Turn};
use crate::io::timeouts::Wait;
use crate::io::transfer_rate::Meter;
use crate::observe::close_reason::Ended;
use crate::observe::metrics::Rule;
use crate::worker::lifecycle::Order;
use bytes::Bytes;
use peregrine_driver::Driver;
use peregrine_proto::h2::{Code, Event, Request, StreamKey};
use peregrine_proto::{BodyLength, Reject, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::Head;
use peregrine_web::panics::contained;
use peregrine_web::pipe::pipe;
use peregrine_web::{Body, pool};
use std::mem::take;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Duration;

impl Http2 {
    /// Parses everything that has arrived, as long as the output buffer has room for replies.
    pub(super) fn receive<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Result<(), Turn> {
        let outcome = self.receive_all(link);
        for number in take(&mut self.gathering) {
            self.begin_with_pipe(number, link);
            self.streams.weigh(number);
        }
        let mut fed = take(&mut self.fed);
        for number in fed.drain(..) {
            self.feed(number, link);
            self.streams.weigh(number);
        }
        self.fed = fed;
        outcome
    }

    fn receive_all<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Result<(), Turn> {
        while !link.is_flooded() {
            let head = self.head.get_or_insert_with(Head::take);
            let (bytes, index) = head.buffers_mut();
            let (unread, out) = (link.io.reader.unread(), &mut link.io.writer.plain);
            let limits = &link.door.http2;
            let (used, event) = protocol(&mut self.core).receive(limits, unread, bytes, index, out);
            if let Event::Data { stream, range } = event {
                self.gather(stream, range, link);
                link.io.reader.consume(used);
                continue;
            }
            link.io.reader.consume(used);
            // These events do not extend the timeout for heads, and neither do frames without an
            // event.
            let is_idle =
                matches!(event, Event::Settings | Event::Rejected { .. } | Event::GoAway { .. });
            if !is_idle && !matches!(event, Event::NeedInput) {
                link.io.deadlines.clear(Wait::Head);
            }
            match event {
                Event::NeedInput => return Ok(()),
                Event::Request(request) => self.request(request, link),
                Event::End { stream } => self.end(stream, link),
                Event::Refuse { stream, reject } => self.refuse(stream, reject, link),
                Event::Reset { stream, cause } => {
                    contained(|| {
                        tracing::debug!(target: "peregrine", peer = %link.info.peer,
                        id = stream.id(), ?cause, "a stream was reset")
                    });
                    if let Some(number) = self.streams.find(stream) {
                        self.fail(number);
                    }
                }
                Event::Rejected { id, reject } => {
                    link.worker.observed.counts().refuse(Rule::Http2(reject));
                    contained(|| {
                        tracing::debug!(target: "peregrine", peer = %link.info.peer, id, %reject,
                        "a stream was refused")
                    });
                }
                Event::GoAway { code } => {
                    contained(|| {
                        tracing::debug!(target: "peregrine", peer = %link.info.peer, ?code,
                        "the peer sent GOAWAY")
                    });
                }
                Event::Settings | Event::Data { .. } => {}
                Event::Error(reject) => return Err(Turn::linger(Ended::Http2(reject))),
                Event::Closed => return Err(Turn::linger(Ended::Agreed)),
            }
        }
        Ok(())
    }

    fn request<D: Driver>(&mut self, request: Request, link: &mut Link<'_, D>) {
        let mut head = self.head.take().expect("set before receiving");
        link.worker.observed.request();
        let number = self.streams.open(request.stream);
        self.measure(number, Some(&head), link);
        if let Err(reject) = link.check_origin(&head) {
            link.worker.observed.counts().refuse(Rule::Http(reject));
            self.streams.at(number).exchange.tally.keep(&head);
            let response = link.worker.application.render(reject.into(), &head);
            return self.respond(number, Ok(response), link);
        }
        if head.index().asks_upgrade(head.as_bytes()) {
            return self.begin_tunnel(number, head, request.body, link);
        }
        if request.body == BodyLength::None {
            return self.begin(number, head, link, |_, _| Body::empty());
        }
        let target = link.worker.application.find(&mut head, link.info);
        let admitted = match link.admit(&target, &head, true) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refuse_request(number, refusal, &head, link),
        };
        let stream = self.streams.at(number);
        stream.exchange.admitted = Some(admitted);
        stream.length = match request.body {
            BodyLength::Exact(length) => Some(length),
            BodyLength::None | BodyLength::Chunked => None,
        };
        stream.gathered = pool::take();
        stream.step = Step::Gather { head, request };
        self.gathering.push(number);
    }

    /// Responds to a request that was rejected because of overload. REFUSED_STREAM would be
    /// cheaper, but clients retry such a request at once, and it has no `Retry-After`.
    #[cold]
    pub(super) fn refuse_request<D: Driver>(
        &mut self,
        number: u32,
        refusal: Refusal,
        head: &Head,
        link: &mut Link<'_, D>,
    ) {
        let tally = &mut self.streams.at(number).exchange.tally;
        tally.route(head.route());
        tally.keep(head);
        tally.fail(refusal.fault());
        let response = link.worker.overload.answer(refusal, &link.worker.application);
        self.respond(number, Ok(response), link);
    }

    /// Starts to measure a request.
    fn measure<D: Driver>(&mut self, number: u32, head: Option<&Head>, link: &Link<'_, D>) {
        let facts = (Version::Http2, &*link.info);
        let (meters, now) = (link.worker.meters.as_ref(), || link.worker.driver.now());
        self.streams.at(number).exchange.tally.begin(meters, head, facts, now);
    }

    /// Collects received content for its stream.
    fn gather<D: Driver>(&mut self, key: StreamKey, range: Range<usize>, link: &mut Link<'_, D>) {
        let Some(number) = self.streams.find(key) else { return };
        let stream = self.streams.at(number);
        stream.received += range.len() as u64;
        stream.exchange.tally.receive(range.len());
        self.received += range.len() as u64;
        if matches!(stream.upload, Upload::Unwanted) {
            return self.pass_over(number, key, range.len(), link);
        }
        stream.gathered.extend_from_slice(&link.io.reader.unread()[range]);
        if !matches!(stream.step, Step::Gather { .. }) && self.fed.last() != Some(&number) {
            self.fed.push(number);
        }
    }

    /// Handles the end of a request. If all of its content is collected, calls the handler.
    fn end<D: Driver>(&mut self, key: StreamKey, link: &mut Link<'_, D>) {
        let Some(number) = self.streams.find(key) else { return };
        let trailers = fields::header_map(protocol(&mut self.core).trailers());
        let stream = self.streams.at(number);
        if matches!(stream.step, Step::Unread) {
            return self.streams.close(number);
        }
        if trailers.is_empty() && matches!(stream.step, Step::Gather { .. }) {
            let Step::Gather { head, .. } = std::mem::replace(&mut stream.step, Step::Free) else {
                unreachable!("the step was checked");
            };
            self.gathering.retain(|gathering| *gathering != number);
            return self.begin(number, head, link, |stream, limit| {
                Body::buffer(take(&mut stream.gathered)).limited(limit)
            });
        }
        stream.end = Some(trailers);
        self.fed.push(number);
    }

    /// Calls the handler of a request before all of its content has arrived. The rest is passed
    /// through a pipe.
    fn begin_with_pipe<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        let step = std::mem::replace(&mut stream.step, Step::Free);
        let Step::Gather { head, request } = step else {
            stream.step = step;
            return;
        };
        let unread_max = link.door.limits.unread_body_bytes_max;
        self.begin(number, head, link, |stream, limit| {
            let (writer, reader) = pipe(unread_max, stream.length);
            stream.taken = Some(writer.taken());
            let is_awaited = request.expect_continue && stream.gathered.is_empty();
            if stream.gathered.is_empty() {
                pool::give(take(&mut stream.gathered));
            } else {
                writer.push(Bytes::from(take(&mut stream.gathered)));
            }
            let is_promised = stream.length.is_some();
            stream.upload = Upload::Flowing { pipe: writer, is_awaited, is_promised };
            Body::incoming(reader, limit)
        });
        self.feed(number, link);
    }

    /// Passes content to the handler as far as its pipe has room, and opens the windows by the
    /// bytes that the handler has read.
    pub(super) fn feed<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let Some(stream) = self.streams.get(number) else { return };
        let (Some(key), Some(_)) = (stream.key, &stream.taken) else { return };
        // The reader gets no more content, but may still read the content in its pipe.
        if matches!(stream.upload, Upload::Unwanted) {
            return self.tell_taken(number, key, link);
        }
        let mut is_awaiting = false;
        loop {
            let Stream { upload, waker, .. } = &mut *stream;
            match upload.poll_room(&mut Context::from_waker(waker)) {
                Room::None if stream.upload.is_unwanted() => {
                    return self.discard(number, link);
                }
                Room::Awaited => {
                    let out = &mut link.io.writer.plain;
                    protocol(&mut self.core).send_interim(key, 100, std::iter::empty(), out);
                }
                Room::Free if !stream.gathered.is_empty() => {
                    stream.upload.push(Bytes::from(take(&mut stream.gathered)));
                }
                Room::Free => {
                    match stream.end.take() {
                        Some(trailers) => stream.upload.finish(|| trailers),
                        None => is_awaiting = true,
                    }
                    break;
                }
                Room::None | Room::Full | Room::Unasked => break,
            }
        }
        self.tell_taken(number, key, link);
        let stream = self.streams.at(number);
        if matches!((&stream.step, &stream.upload), (Step::ReadOn, Upload::Done)) {
            return self.streams.close(number);
        }
        stream.is_awaiting = is_awaiting;
        self.watch_content(number, link);
        let (now, stream) = (link.worker.driver.now(), self.streams.at(number));
        if matches!(stream.step, Step::ReadOn) {
            // If the task does not read the content in its pipe for this long, the stream counts as
            // idle.
            stream.deadlines.rest = match is_awaiting {
                true => Duration::MAX,
                false => now.saturating_add(link.door.limits.idle_timeout),
            };
        }
        self.hasten(number, link);
    }

    /// Requires the peer to send at the minimum rate while the server waits for content. Content of
    /// all streams counts, because streams share the connection and a client may send one after the
    /// other. A conversation has no minimum rate: it fails only if both sides are silent for too
    /// long.
    pub(super) fn watch_content<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let (now, limits) = (link.worker.driver.now(), &link.door.limits);
        self.arrived = self.arrived.max(self.received + link.stage.incomplete_bytes());
        let (received, rate) = (self.arrived, limits.rate());
        let Some(stream) = self.streams.get(number) else { return };
        if stream.is_tunnel {
            return self.watch_tunnel(number, link);
        }
        // If this handler or those of other streams do not read, the windows are closed and the
        // peer cannot send.
        let may_send = stream.key.is_some_and(|key| protocol(&mut self.core).may_receive(key));
        let is_waiting = stream.is_awaiting && may_send;
        let is_conversation = is_waiting && stream.is_conversation();
        stream.deadlines.receive = if is_conversation {
            stream.receiving.pause(now, received, rate);
            stream.talking.wait(now, stream.received + stream.sent, limits.conversation())
        } else if is_waiting {
            stream.receiving.wait(now, received, rate)
        } else {
            stream.receiving.pause(now, received, rate);
            if stream.is_awaiting { now.saturating_add(rate.slack) } else { Duration::MAX }
        };
        if !is_conversation {
            stream.talking = Meter::default();
        }
    }

    /// Discards the rest of a request's content, because it is unwanted or its reader got an error.
    /// The content in the pipe still occupies the windows until the reader reads it or is dropped.
    pub(super) fn discard<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let stream = self.streams.at(number);
        stream.upload = Upload::Unwanted;
        let passed = take(&mut stream.gathered).len();
        stream.is_awaiting = false;
        stream.deadlines.receive = Duration::MAX;
        if let Some(key) = stream.key {
            protocol(&mut self.core).consumed(key, passed, &mut link.io.writer.plain);
            self.tell_taken(number, key, link);
        }
        let stream = self.streams.at(number);
        if stream.end.take().is_some() {
            return;
        }
        if matches!(stream.step, Step::ReadOn) {
            self.throw_away(number, link);
        }
    }

    /// Discards the rest of a request whose response is complete.
    pub(super) fn throw_away<D: Driver>(&mut self, number: u32, link: &mut Link<'_, D>) {
        let stream = self.streams.at(number);
        stream.upload = Upload::Unwanted;
        (stream.gathered, stream.taken, stream.is_awaiting) = (Vec::new(), None, false);
        let held = usize::try_from(stream.received).unwrap_or(usize::MAX);
        if let Some(key) = stream.key {
            protocol(&mut self.core).consumed(key, held, &mut link.io.writer.plain);
        }
        let stream = self.streams.at(number);
        stream.step = Step::Unread;
        let (now, limits) = (link.worker.driver.now(), &link.door.limits);
        // The other deadlines would expire without any effect, so they are cleared.
        stream.deadlines = Deadlines {
            receive: now.saturating_add(limits.linger_timeout),
            rest: now.saturating_add(limits.linger_max),
            ..Deadlines::NONE
        };
        self.streams.unread += 1;
        self.hasten(number, link);
    }

    /// Discards content that is unwanted.
    fn pass_over<D: Driver>(
        &mut self,
        number: u32,
        key: StreamKey,
        bytes: usize,
        link: &mut Link<'_, D>,
    ) {
        let limits = &link.door.limits;
        let stream = self.streams.at(number);
        stream.thrown_away += bytes as u64;
        let out = &mut link.io.writer.plain;
        if stream.thrown_away > u64::from(limits.drain_bytes_max) {
            // The server no longer opens this stream's window.
            return protocol(&mut self.core).discard_body(key, out);
        }
        protocol(&mut self.core).consumed(key, bytes, out);
        if matches!(stream.step, Step::Unread) {
            let now = link.worker.driver.now();
            stream.deadlines.receive = now.saturating_add(limits.linger_timeout);
        }
    }

    /// Closes streams whose response is complete and whose rest of the request has ended or is not
    /// needed.
    pub(super) fn sweep<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        if self.streams.unread == 0 {
            return;
        }
        // If little is left of the request, the server receives it, because some clients treat a
        // reset as an error. If more is left, the core resets the stream, but one round trip later,
        // so that the peer has seen its response.
        let bytes_max = u64::from(link.door.limits.drain_bytes_max);
        if self.streams.is_more_to_come_than(bytes_max) && !self.streams.is_read_on() {
            protocol(&mut self.core).settle(&mut link.io.writer.plain, |_| {});
        }
        let is_draining = link.worker.order() >= Order::Drain;
        for number in self.streams.numbers() {
            let Some(stream) = self.streams.get(number) else { continue };
            let (Step::Unread, Some(key)) = (&stream.step, stream.key) else { continue };
            if !protocol(&mut self.core).is_open(key) {
                self.streams.close(number);
            } else if is_draining {
                self.reset_stream(number, Code::NO_ERROR, link);
            }
        }
    }

    /// Opens the windows by the bytes that the reader has read. The stream is woken when the reader
    /// reads more.
    fn tell_taken<D: Driver>(&mut self, number: u32, key: StreamKey, link: &mut Link<'_, D>) {
        let Stream { taken, taken_told, waker, .. } = self.streams.at(number);
        let Some(all) = taken else { return };
        let mut context = Context::from_waker(waker);
        while let Poll::Ready(count) = all.poll_more(*taken_told, &mut context) {
            let more = usize::try_from(count - *taken_told).unwrap_or(usize::MAX);
            *taken_told = count;
            let out = &mut link.io.writer.plain;
            protocol(&mut self.core).consumed(key, more, out);
            if count == u64::MAX {
                *taken = None;
                return;
            }
        }
    }

    /// Rejects a request that broke a rule of HTTP that is common to all versions.
    fn refuse<D: Driver>(&mut self, key: StreamKey, reject: Reject, link: &mut Link<'_, D>) {
        link.worker.observed.counts().refuse(Rule::Http(reject));
        let Some(number) = self.streams.find(key) else {
            let number = self.streams.open(key);
            self.measure(number, None, link);
            // The core reports no content and no end of this request, so do not wait for its end.
            self.streams.at(number).length = Some(u64::MAX);
            return self.answer(number, reject.into(), link);
        };
        let stream = self.streams.at(number);
        match stream.step {
            Step::Gather { .. } => {
                stream.keep_head();
                stream.step = Step::Free;
                self.answer(number, reject.into(), link);
            }
            // The handler is already running, so it responds, as over HTTP/1.
            _ => {
                stream.upload.fail(BodyError::Rejected(reject));
                self.discard(number, link);
            }
        }
    }
}
