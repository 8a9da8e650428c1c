//! HTTP/1 on a busy connection: requests in, one exchange at a time, responses out.
//!
//! Start with [`Http1::turn`]. A turn does what can be done and says what it waits for; it never
//! waits itself.

use crate::deadlines::Wait;
use crate::ended::Ended;
use crate::exchange::{Asked, Exchange, Panicked};
use crate::link::{For, Link, Turn};
use crate::respond;
use crate::upload::{Room, Upload};
use crate::worker::Order;
use bytes::Bytes;
use http::HeaderMap;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::{self, BodyMode, Event, Framing, Next, ResponseLength, Waiting};
use peregrine_proto::{BodyLength, HeadIndex, Reject, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::Head;
use peregrine_web::pipe::{PIPE_BYTES_MAX, pipe};
use peregrine_web::{Body, Problem, Request, Response, pool};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Unread bytes of further requests that may pile up while a handler is waiting. Beyond this, the
/// server stops reading, and learns that the peer left only when it answers.
const READ_AHEAD_BYTES_MAX: usize = 16 * 1024;

/// The first pause between two probes of a peer that ended its sending side, doubled each time up
/// to the last.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(200);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Frames of a response's body that are taken in one turn. A stream that is always ready must not
/// keep the worker for itself.
const FRAMES_PER_TURN: usize = 32;

/// What HTTP/1 needs to work on requests, in memory that is used again.
pub(crate) struct Http1 {
    step: Step,
    /// The head that is being received.
    head: Option<Head>,
    /// For the calls of the protocol core that meet no head.
    spare: HeadIndex,
    exchange: Exchange,
    upload: Upload,
    /// The rule that the present body broke.
    rejected: Option<Reject>,
    /// The present handler panicked.
    panicked: bool,
    /// The peer said that it sends no further request.
    is_last: bool,
    /// May a peer that ended its sending side be probed?
    can_probe: bool,
    probe_pause: Duration,
    /// The last request whose response is written and may not be sent.
    written: Option<Asked>,
    /// A request was answered.
    answered: bool,
}

/// What is done at present.
enum Step {
    /// A head is received, or nothing yet.
    Head,
    /// The handler works on its response.
    Handler,
    /// A large body that is here is sent, from this place on.
    Whole { body: Body, from: usize },
    /// A body is sent frame by frame.
    Stream(Streaming),
    /// What the handler left of its request's body is thrown away.
    Unread,
}

/// A response's body on its way.
struct Streaming {
    mode: BodyMode,
    /// Bytes still to come, where a length was promised. What is beyond it would be dropped, and a
    /// stream that has no end would hold the worker: nothing waits for a peer where nothing is sent.
    left: Option<u64>,
    trailers: HeaderMap,
}

impl Default for Http1 {
    fn default() -> Self {
        Self {
            step: Step::Head,
            head: None,
            spare: HeadIndex::default(),
            exchange: Exchange::default(),
            upload: Upload::Done,
            rejected: None,
            panicked: false,
            is_last: false,
            can_probe: false,
            probe_pause: PROBE_PAUSE_MIN,
            written: None,
            answered: false,
        }
    }
}

impl Http1 {
    /// Does what can be done now.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.step {
            Step::Head => self.receive_head(protocol, link, context),
            Step::Handler => self.await_handler(protocol, link, context),
            Step::Whole { .. } => self.send_whole(protocol, link, context),
            Step::Stream(_) => self.send_stream(protocol, link, context),
            Step::Unread => self.throw_away(protocol, link),
        }
    }

    /// The time of `wait` is over.
    pub(crate) fn late<D: Driver>(
        &mut self,
        wait: Wait,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Turn {
        match (wait, &self.step) {
            (Wait::Head, _) => {
                protocol.drain();
                self.answer(Problem::head_late(), protocol, link);
                Turn::linger(Ended::HeadLate)
            }
            (Wait::Receive, Step::Unread) => Turn::linger(Ended::BodySlow),
            (Wait::Receive, _) => {
                self.upload.fail(BodyError::TooSlow);
                self.upload = Upload::Unwanted;
                protocol.drain();
                Turn::Again
            }
            (Wait::Handler | Wait::Exchange, Step::Handler) => {
                self.exchange.drop_handler();
                let late = self.render(Problem::handler_late(), link);
                self.respond(Ok(late), protocol, link)
            }
            (Wait::Exchange, _) => Turn::close(Ended::ExchangeLate),
            // The turn sends the next one.
            (Wait::Probe, _) => Turn::Again,
            _ => Turn::Again,
        }
    }

    /// The connection is over. Whoever reads the request's body learns it.
    pub(crate) fn fail(&mut self) {
        self.upload.fail(BodyError::Disconnected);
    }

    /// The exchange, if its handler was promised to run to its end.
    pub(crate) fn take_promised(&mut self) -> Option<Exchange> {
        self.exchange.runs_to_end().then(|| std::mem::take(&mut self.exchange))
    }

    /// Is there a request whose response is not complete?
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.step, Step::Head | Step::Unread)
    }

    /// The request whose response is not sent.
    pub(crate) fn asked(&self) -> Option<&Asked> {
        self.exchange.asked().or(self.written.as_ref())
    }

    /// Was a request answered on this lease?
    pub(crate) fn has_answered(&self) -> bool {
        self.answered
    }

    /// Drops everything of the application, and is as new.
    pub(crate) fn reset(&mut self) {
        self.upload = Upload::Done;
        self.step = Step::Head;
        self.exchange.clear();
        self.head = None;
        self.written = None;
        self.rejected = None;
        (self.panicked, self.answered) = (false, false);
    }

    fn receive_head<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        if link.is_full() {
            return Turn::Wait(For { bytes: false, room: true });
        }
        let head = self.head.get_or_insert_with(Head::take);
        let unread = link.io.reader.unread();
        let (used, event) = protocol.receive(&link.worker.protocol, unread, head.index_mut());
        match event {
            Event::Head(framing) => {
                let mut head = self.head.take().expect("it was just filled");
                let skip = usize::from(framing.skip);
                head.set_bytes(&link.io.reader.unread()[skip..used]);
                link.io.reader.consume(used);
                link.io.deadlines.clear(Wait::Head);
                self.begin(head, framing, protocol, link, context)
            }
            Event::NeedInput => {
                link.io.reader.consume(used);
                self.await_head(protocol, link)
            }
            Event::Reject(reject) => self.reject(reject, protocol, link),
            Event::Closed => Turn::close(Ended::Agreed),
            Event::Data(_) | Event::End | Event::NeedRespond | Event::Upgraded => {
                unreachable!("an exchange leaves the protocol before the next head")
            }
        }
    }

    /// There is no whole head.
    fn await_head<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Turn {
        let is_between = matches!(protocol.waiting(), Waiting::FirstByte | Waiting::Idle);
        let is_nothing = link.io.reader.is_empty() && is_between;
        if link.is_ended() {
            return match protocol.close_receive() {
                Event::Reject(reject) if !is_nothing => self.reject(reject, protocol, link),
                _ => Turn::close(Ended::PeerClosed),
            };
        }
        if is_nothing {
            return Turn::Rest;
        }
        let late = link.worker.driver.now().saturating_add(link.worker.limits.head_timeout);
        link.io.deadlines.begin(Wait::Head, late);
        Turn::Wait(For { bytes: true, room: false })
    }

    /// Calls the handler of a request.
    fn begin<D: Driver>(
        &mut self,
        mut head: Head,
        framing: Framing,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let worker = link.worker;
        worker.observed.request();
        self.is_last = !framing.keep_alive;
        self.can_probe = head.index().version == Version::Http11;
        // RFC 9110 §7.4: a request for an origin that this connection is not of is misdirected.
        if let Err(reject) = head.index().check_scheme(link.info.tls.is_some()) {
            return self.reject(reject, protocol, link);
        }
        let target = worker.application.find(&mut head);
        let limit = target.body_limit(worker.limits.body_bytes_max);
        let body = match self.receive_body(framing, limit, protocol, link) {
            Ok(body) => body,
            Err(reject) => return self.reject(reject, protocol, link),
        };
        let states = Rc::clone(worker.application.states());
        let request = Request::new(head, body, states, Rc::clone(link.info));
        self.exchange.begin(target, request);
        if let Poll::Ready(outcome) = self.exchange.poll_response(context, &worker.pulse) {
            return self.respond(outcome, protocol, link);
        }
        self.step = Step::Handler;
        self.probe_pause = PROBE_PAUSE_MIN;
        link.io.hold.get_or_insert_with(|| worker.driver.hold());
        let now = worker.driver.now();
        if let Some(timeout) = self.exchange.timeout {
            link.io.deadlines.set(Wait::Handler, now.saturating_add(timeout));
        }
        self.limit_exchange(now, link);
        self.attend(protocol, link, context)
    }

    /// Exchanges may have a time as a whole, from when they could not be answered at once.
    fn limit_exchange<D: Driver>(&self, now: Duration, link: &mut Link<'_, D>) {
        if let Some(timeout) = link.worker.limits.exchange_timeout {
            link.io.deadlines.begin(Wait::Exchange, now.saturating_add(timeout));
        }
    }

    /// Takes as much of the body as is here already. A whole body needs no pipe.
    fn receive_body<D: Driver>(
        &mut self,
        framing: Framing,
        limit: u64,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Result<Body, Reject> {
        let length = match framing.body {
            BodyLength::None => return Ok(Body::empty()),
            BodyLength::Exact(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let mut here = pool::take();
        loop {
            match self.receive(protocol, link) {
                Received::Data { data, used } => {
                    here.extend_from_slice(&link.io.reader.unread()[data]);
                    link.io.reader.consume(used);
                }
                // Trailers are rare enough to take the longer way, where they have a place.
                Received::End if protocol.trailers().next().is_none() => {
                    return Ok(Body::buffer(here).limited(limit));
                }
                Received::End => {
                    let (writer, reader) = pipe(PIPE_BYTES_MAX, length);
                    writer.push(Bytes::from(here));
                    writer.finish(respond::trailers(protocol));
                    return Ok(Body::incoming(reader, limit));
                }
                Received::NeedInput => break,
                Received::Reject(reject) => return Err(reject),
            }
        }
        let (writer, reader) = pipe(PIPE_BYTES_MAX, length);
        let is_awaited = framing.expect_continue && here.is_empty();
        if here.is_empty() {
            pool::give(here);
        } else {
            writer.push(Bytes::from(here));
        }
        self.upload = Upload::Flowing { pipe: writer, is_awaited };
        link.io.receiving = crate::meter::Meter::new(link.io.reader.received());
        Ok(Body::incoming(reader, limit))
    }

    fn await_handler<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.exchange.poll_response(context, &link.worker.pulse) {
            Poll::Ready(outcome) => self.respond(outcome, protocol, link),
            Poll::Pending => self.attend(protocol, link, context),
        }
    }

    /// While the handler, or a stream that it made, is not ready: receive the request's body, and
    /// notice when the peer leaves.
    fn attend<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.feed(protocol, link, context) {
            Fed::Wait(bytes) => Turn::Wait(For { bytes, room: false }),
            Fed::Left => Turn::close(Ended::PeerLeft),
            Fed::Over if link.is_ended() => {
                // A probe would stand in the middle of a response that has begun: what is written
                // next finds out.
                let is_probed = link.io.deadlines.of(Wait::Probe).is_some();
                if self.can_probe && !is_probed && matches!(self.step, Step::Handler) {
                    self.probe(protocol, link);
                }
                Turn::Wait(For::default())
            }
            Fed::Over => {
                let bytes = link.io.reader.unread().len() < READ_AHEAD_BYTES_MAX;
                Turn::Wait(For { bytes, room: false })
            }
        }
    }

    /// Moves what is here of the request's body to the handler, as far as there is room.
    fn feed<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Fed {
        loop {
            match self.upload.poll_room(context) {
                Room::None => {
                    link.pause_content();
                    return Fed::Over;
                }
                Room::Full => {
                    link.pause_content();
                    return Fed::Wait(false);
                }
                Room::Awaited => {
                    protocol.send_interim(100, std::iter::empty(), &mut link.io.writer.plain);
                }
                Room::Free => {}
            }
            match self.feed_some(protocol, link) {
                Some(Received::NeedInput) if link.is_ended() => {
                    self.upload.fail(BodyError::Disconnected);
                    return Fed::Left;
                }
                Some(Received::NeedInput) => {
                    link.await_content();
                    return Fed::Wait(true);
                }
                Some(Received::End) => self.upload.finish(|| respond::trailers(protocol)),
                Some(Received::Reject(reject)) => {
                    self.upload.fail(BodyError::Rejected(reject));
                    self.rejected = Some(reject);
                }
                Some(Received::Data { .. }) | None => {}
            }
        }
    }

    /// Moves data. `None`: there was some, and there may be no room for more.
    fn feed_some<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Option<Received> {
        // Small chunks go together: each piece costs more memory than a chunk of one byte.
        let mut piece = Vec::new();
        let mut any = false;
        let last = loop {
            match self.receive(protocol, link) {
                Received::Data { data, used } => {
                    any = true;
                    let reader = &mut link.io.reader;
                    let is_all = piece.is_empty() && data == (0..reader.unread().len());
                    if is_all && let Some(kept) = reader.take_kept(D::Stream::keep) {
                        self.upload.push(kept);
                        continue;
                    }
                    piece.extend_from_slice(&reader.unread()[data]);
                    reader.consume(used);
                }
                last => break last,
            }
        };
        if !piece.is_empty() {
            self.upload.push(Bytes::from(piece));
        }
        (!any || !matches!(last, Received::NeedInput)).then_some(last)
    }

    /// The next event of a body.
    fn receive<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Received {
        let reader = &mut link.io.reader;
        let (used, event) =
            protocol.receive(&link.worker.protocol, reader.unread(), &mut self.spare);
        if let Event::Data(data) = event {
            return Received::Data { data, used };
        }
        reader.consume(used);
        match event {
            Event::NeedInput => Received::NeedInput,
            Event::Reject(reject) => Received::Reject(reject),
            Event::End | Event::NeedRespond | Event::Closed => Received::End,
            Event::Head(_) | Event::Data(_) | Event::Upgraded => {
                unreachable!("only data and an end come between a head and its response")
            }
        }
    }

    /// Writes the response, or begins to.
    fn respond<D: Driver>(
        &mut self,
        outcome: Result<Response, Panicked>,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Turn {
        link.io.deadlines.clear(Wait::Handler);
        link.io.deadlines.clear(Wait::Probe);
        let mut response = outcome.unwrap_or_else(|Panicked(message)| {
            self.panicked = true;
            protocol.drain();
            self.log_panic(&message, link);
            self.render(Problem::handler_panicked(), link)
        });
        if link.is_to_close() {
            protocol.drain();
        }
        if self.upload.is_unwanted() {
            protocol.discard_body();
        }
        if let Some(upgrade) = response.take_upgrade() {
            if respond::switch_protocols(protocol, &response, &mut link.io.writer.plain) {
                return Turn::Upgrade(upgrade);
            }
            tracing::error!(target: "peregrine",
                "a handler answered with an upgrade to a request that did not ask for one, or whose \
                 body was not read; the peer got a 500");
            response = self.render(Problem::handler_panicked(), link);
        }
        let date = link.worker.date();
        let most = link.worker.limits.pending_output_bytes_max.max(1);
        let out = &mut link.io.writer.plain;
        if let Some(bytes) = response.body.as_slice() {
            let length = bytes.len();
            if length <= most {
                respond::whole(protocol, &response, &date, out);
                return self.after(protocol, link);
            }
            respond::head(protocol, &response, ResponseLength::Exact(length as u64), &date, out);
            self.step = Step::Whole { body: std::mem::take(&mut response.body), from: 0 };
        } else {
            let body = std::mem::take(&mut response.body);
            let length = Exchange::length_of(&body);
            let length = length.map_or(ResponseLength::Unknown, ResponseLength::Exact);
            let mode = respond::head(protocol, &response, length, &date, out);
            let left = match mode {
                BodyMode::None => Some(0),
                BodyMode::Exact(bytes) => Some(bytes),
                BodyMode::Chunked | BodyMode::UntilClose => None,
            };
            self.exchange.stream(body);
            self.step = Step::Stream(Streaming { mode, left, trailers: HeaderMap::new() });
        }
        self.limit_exchange(link.worker.driver.now(), link);
        Turn::Again
    }

    /// Sends a body that is here in pieces, as fast as the peer takes them.
    fn send_whole<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let most = link.worker.limits.pending_output_bytes_max.max(1);
        if link.is_full() {
            return self.await_room(protocol, link, context);
        }
        let Step::Whole { body, from } = &mut self.step else { unreachable!("it is this step") };
        let rest = &body.as_slice().unwrap_or_default()[*from..];
        let piece = &rest[..rest.len().min(most)];
        protocol.send_data(piece, &mut link.io.writer.plain);
        *from += piece.len();
        if piece.len() < rest.len() {
            return Turn::Again;
        }
        protocol.finish(std::iter::empty(), &mut link.io.writer.plain);
        self.after(protocol, link)
    }

    /// Sends a body as its frames become ready.
    fn send_stream<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        for _ in 0..FRAMES_PER_TURN {
            if link.is_full() {
                return self.await_room(protocol, link, context);
            }
            let Step::Stream(streaming) = &mut self.step else { unreachable!("it is this step") };
            if streaming.left == Some(0) {
                return self.finish_stream(protocol, link);
            }
            let frame = match self.exchange.poll_frame(context, &link.worker.pulse) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) => return self.finish_stream(protocol, link),
                Poll::Ready(Some(Err(error))) => return self.break_stream(&error, link),
                Poll::Pending => {
                    link.io.hold.get_or_insert_with(|| link.worker.driver.hold());
                    return self.attend(protocol, link, context);
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let taken = protocol.send_data(&data, &mut link.io.writer.plain);
                    streaming.left = streaming.left.map(|left| left - taken as u64);
                }
                Err(frame) => {
                    if let Ok(more) = frame.into_trailers() {
                        streaming.trailers.extend(more);
                    }
                }
            }
        }
        Turn::Yield
    }

    fn finish_stream<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Turn {
        let Step::Stream(streaming) = &self.step else { unreachable!("it is this step") };
        respond::finish(protocol, &streaming.trailers, &mut link.io.writer.plain);
        self.after(protocol, link)
    }

    /// What was promised cannot be kept, and only the end of the connection says so: the peer sees a
    /// body that ends too early.
    fn break_stream<D: Driver>(&mut self, error: &BodyError, link: &mut Link<'_, D>) -> Turn {
        let (peer, request) = (&link.info.peer, self.exchange.asked());
        let request = request.map(ToString::to_string).unwrap_or_default();
        let is_ours = matches!(error, BodyError::Failed(_));
        if is_ours {
            tracing::error!(target: "peregrine", %error, request, %peer,
                "the body of a response failed");
        } else {
            tracing::debug!(target: "peregrine", %error, request, %peer,
                "the body of a response ended with that of its request");
        }
        if let Step::Stream(Streaming { mode: BodyMode::UntilClose, .. }) = self.step {
            // An orderly close would say that the body is whole.
            link.stream.reset_on_drop();
        }
        Turn::close(Ended::ResponseFailed)
    }

    /// There is enough to be sent. The request's body goes on being received meanwhile.
    fn await_room<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.feed(protocol, link, context) {
            Fed::Wait(bytes) => Turn::Wait(For { bytes, room: true }),
            Fed::Left | Fed::Over => Turn::Wait(For { bytes: false, room: true }),
        }
    }

    /// After a response: the next request, the rest of this one's body, or the end.
    fn after<D: Driver>(&mut self, protocol: &mut h1::Connection, link: &mut Link<'_, D>) -> Turn {
        let is_received = !self.upload.is_open();
        self.answered = true;
        if let Some(reject) = self.rejected.take() {
            protocol.drain();
            return Turn::linger(Ended::Rejected(reject));
        }
        match protocol.next() {
            Next::Request => {
                self.finish_exchange(link);
                Turn::Again
            }
            Next::FinishBody => {
                self.finish_exchange(link);
                self.step = Step::Unread;
                link.io.receiving = crate::meter::Meter::new(link.io.reader.received());
                Turn::Again
            }
            Next::Close | Next::Respond | Next::Upgraded => {
                let is_whole = self.is_last && is_received && link.io.reader.is_empty();
                let ended = match () {
                    () if self.panicked => Ended::HandlerPanicked,
                    () if is_whole => return Turn::close(Ended::Agreed),
                    () if link.worker.order() >= Order::LameDuck => Ended::Drained,
                    () => Ended::Agreed,
                };
                Turn::linger(ended)
            }
        }
    }

    /// The response is written, and nothing of the application is needed any more.
    fn finish_exchange<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        self.written = self.exchange.take_asked();
        self.exchange.clear();
        self.upload = Upload::Done;
        self.step = Step::Head;
        if link.io.hold.take().is_some() || link.io.deadlines.first().is_some() {
            link.io.deadlines.clear_all();
        }
    }

    /// Reads what the handler left of its request's body, so that the next request can be found.
    fn throw_away<D: Driver>(
        &mut self,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Turn {
        while protocol.next() == Next::FinishBody {
            let reader = &mut link.io.reader;
            let (used, event) =
                protocol.receive(&link.worker.protocol, reader.unread(), &mut self.spare);
            reader.consume(used);
            match event {
                Event::NeedInput if link.is_ended() => return Turn::close(Ended::PeerLeft),
                Event::NeedInput => {
                    link.await_content();
                    return Turn::Wait(For { bytes: true, room: false });
                }
                Event::Reject(reject) => return Turn::linger(Ended::Rejected(reject)),
                Event::Closed => return Turn::linger(Ended::Agreed),
                _ => {}
            }
        }
        link.io.deadlines.clear(Wait::Receive);
        self.after(protocol, link)
    }

    /// The peer ended its sending side: it may have left, or only have nothing more to say. TCP shows
    /// the difference only to those who send. RFC 9110 §15.2: a client must be able to parse interim
    /// responses even if it does not expect one, so one of them is what is sent; where nobody is left
    /// to read it, it comes back as a reset.
    fn probe<D: Driver>(&mut self, protocol: &mut h1::Connection, link: &mut Link<'_, D>) {
        protocol.send_interim(102, std::iter::empty(), &mut link.io.writer.plain);
        let next = link.worker.driver.now().saturating_add(self.probe_pause);
        link.io.deadlines.set(Wait::Probe, next);
        self.probe_pause = (self.probe_pause * 2).min(PROBE_PAUSE_MAX);
    }

    /// Answers a broken rule.
    fn reject<D: Driver>(
        &mut self,
        reject: Reject,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) -> Turn {
        protocol.drain();
        self.answer(reject.into(), protocol, link);
        Turn::linger(Ended::Rejected(reject))
    }

    /// Writes an answer of the server's own.
    fn answer<D: Driver>(
        &mut self,
        problem: Problem,
        protocol: &mut h1::Connection,
        link: &mut Link<'_, D>,
    ) {
        let response = self.render(problem, link);
        respond::whole(protocol, &response, &link.worker.date(), &mut link.io.writer.plain);
    }

    /// A problem in the form that the application gives its problems.
    fn render<D: Driver>(&self, problem: Problem, link: &Link<'_, D>) -> Response {
        let application = &link.worker.application;
        match self.exchange.head() {
            Some(head) => application.render(problem, head),
            None => application.render(problem, &Head::take()),
        }
    }

    fn log_panic<D: Driver>(&self, message: &str, link: &Link<'_, D>) {
        let request = self.exchange.asked().map(ToString::to_string).unwrap_or_default();
        let peer = &link.info.peer;
        tracing::error!(target: "peregrine", message, request, %peer, "a handler panicked");
    }
}

/// What receiving gave.
enum Received {
    /// Where the data is in the unread bytes, and how many of those are done with.
    Data {
        data: std::ops::Range<usize>,
        used: usize,
    },
    End,
    NeedInput,
    Reject(Reject),
}

/// How far moving a body has come.
enum Fed {
    /// It goes on when the handler takes some, and with `true` also when more bytes come.
    Wait(bool),
    /// Nothing more is to come, or to be wanted.
    Over,
    /// The peer ended its sending side in the middle.
    Left,
}
