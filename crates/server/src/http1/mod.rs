//! HTTP/1 on a busy connection: one exchange at a time.
//!
//! Start with [`Http1::turn`]. A turn does as much work as it can without waiting, and returns what
//! to wait for.

mod disconnect;
mod encode;
mod error_response;
mod receive;
mod send;

use self::disconnect::Progress;
use self::receive::Fed;
use self::send::Streaming;
use crate::exchange::body_sender::Upload;
use crate::exchange::in_flight::{InProgress, RequestName};
use crate::exchange::{Exchange, Panicked, fields};
use crate::io::context::{For, Link, Turn};
use crate::io::timeouts::{Probes, Wait};
use crate::io::transfer_rate::Meter;
use crate::observe::close_reason::Ended;
use crate::observe::metrics::Fault;
use crate::panic::Quiet;
use crate::worker::lifecycle::Order;
use bytes::Bytes;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::{Event, Framing, Next, Waiting};
use peregrine_proto::{BodyLength, HeadIndex, Reject, Version};
use peregrine_web::body::BodyError;
use peregrine_web::head::Head;
use peregrine_web::{Problem, Request, Response};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// The HTTP/1 state of a busy connection, in memory that is reused.
pub(crate) struct Http1 {
    step: Step,
    /// The head that is being received.
    head: Option<Head>,
    /// A head index for calls of the protocol core that require one but do not fill it.
    spare: HeadIndex,
    exchange: Exchange,
    upload: Upload,
    /// Whether content was pushed without waking its reader, because this task polls the reader.
    has_fed: bool,
    /// The protocol error in the current request's body.
    rejected: Option<Reject>,
    /// Whether the current handler panicked.
    panicked: bool,
    /// Whether the peer announced that it will send no further request.
    is_last: bool,
    /// Whether a peer that has ended its sending side may be probed with an interim response
    /// (HTTP/1.1).
    can_probe: bool,
    probes: Probes,
    /// The memory of a large response body that is being sent.
    whole_bytes: usize,
    /// The last request whose response is written but perhaps not sent yet.
    written: Option<RequestName>,
    /// Whether the current exchange could not be answered at once.
    has_waited: bool,
    /// Whether a request was answered in this session.
    answered: bool,
}

/// The current step.
enum Step {
    /// Receives a request's head, or waits for one.
    Head,
    /// The handler works on its response.
    Handler,
    /// Sends a large body from memory. The field is the part that is not sent yet.
    Whole(Quiet<Bytes>),
    /// Sends a body frame by frame.
    Stream(Streaming),
    /// The response is complete, and a task continues to read the request's body.
    ReadOn {
        /// How many bytes the task had read when the server last found its pipe full.
        consumed: Option<u64>,
    },
    /// Discards the part of the request's body that the handler did not read.
    Unread,
}

impl Default for Http1 {
    fn default() -> Self {
        Self {
            step: Step::Head,
            head: None,
            spare: HeadIndex::default(),
            exchange: Exchange::default(),
            upload: Upload::Done,
            has_fed: false,
            rejected: None,
            panicked: false,
            is_last: false,
            can_probe: false,
            probes: Probes::default(),
            whole_bytes: 0,
            written: None,
            has_waited: false,
            answered: false,
        }
    }
}

impl Http1 {
    /// Does as much work as it can without waiting.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.step {
            Step::Head => self.receive_head(link, context),
            Step::Handler => self.await_handler(link, context),
            Step::Whole(_) => self.send_whole(link, context),
            Step::Stream(_) => self.send_stream(link, context),
            Step::ReadOn { .. } => self.read_on(link, context),
            Step::Unread => self.throw_away(link),
        }
    }

    /// Handles the expired deadline of `wait`.
    pub(crate) fn late<D: Driver>(&mut self, wait: Wait, link: &mut Link<'_, D>) -> Turn {
        match (wait, &self.step) {
            (Wait::Head, _) => {
                link.protocol.drain();
                self.answer(Problem::head_late(), link);
                Turn::linger(Ended::HeadLate)
            }
            (Wait::Receive, Step::Unread) => Turn::linger(Ended::BodySlow),
            (Wait::Receive, Step::ReadOn { .. }) => {
                self.upload.fail(BodyError::TooSlow);
                Turn::linger(Ended::BodySlow)
            }
            (Wait::Reading | Wait::Exchange, Step::ReadOn { .. }) => {
                self.upload.fail(BodyError::Disconnected);
                self.upload = Upload::Unwanted;
                Turn::Again
            }
            (Wait::Traffic, _) if !link.is_silent() => Turn::Again,
            (Wait::Receive | Wait::Traffic, _) => {
                link.worker.observed.limit(match wait {
                    Wait::Receive => "rate_min",
                    _ => "upgraded_idle_timeout",
                });
                self.upload.fail(BodyError::TooSlow);
                self.upload = Upload::Unwanted;
                link.protocol.drain();
                Turn::Again
            }
            (Wait::Handler | Wait::Exchange, Step::Handler) => {
                link.worker.observed.limit(match wait {
                    Wait::Handler => "route_timeout",
                    _ => "exchange_timeout",
                });
                self.exchange.tally.fail(Fault::Late);
                self.exchange.drop_handler();
                let late = self.render(Problem::handler_late(), link);
                self.respond(Ok(late), link)
            }
            (Wait::Exchange, _) => Turn::close(Ended::ExchangeLate),
            // The server is not receiving, so only this probe has noticed that the peer is gone.
            (Wait::Probe, _) if link.stream.is_broken() => {
                self.upload.fail(BodyError::Disconnected);
                Turn::close(Ended::PeerLeft)
            }
            // The turn sends the next probe.
            (Wait::Probe, _) => Turn::Again,
            _ => Turn::Again,
        }
    }

    /// Fails the request's body, because the connection is over. Its reader gets an error.
    pub(crate) fn fail(&mut self) {
        self.upload.fail(BodyError::Disconnected);
    }

    /// Takes the exchange, if its handler must run to its end.
    pub(crate) fn take_promised(&mut self) -> Option<Exchange> {
        self.exchange.runs_to_end().then(|| std::mem::take(&mut self.exchange))
    }

    /// Takes the exchange, which continues with the upgraded protocol.
    pub(crate) fn take_exchange(&mut self) -> Exchange {
        std::mem::take(&mut self.exchange)
    }

    /// Returns whether a request is being answered.
    pub(crate) fn is_busy(&self) -> bool {
        !matches!(self.step, Step::Head | Step::ReadOn { .. } | Step::Unread)
    }

    /// Returns whether the current request must never be rejected.
    pub(crate) fn is_never_shed(&self) -> bool {
        self.exchange.is_never_shed()
    }

    /// The request that is being answered. If there is none and not everything `is_sent`, the last
    /// request that was answered.
    pub(crate) fn in_progress(&self, is_sent: bool) -> Option<InProgress<'_>> {
        let written = self.written.as_ref().filter(|_| !is_sent);
        self.exchange.in_progress().or(written.map(InProgress::delivery))
    }

    /// Returns whether the response in progress ends when the connection closes, without another
    /// delimiter.
    pub(crate) fn is_until_close(&self) -> bool {
        matches!(&self.step, Step::Stream(streaming) if streaming.is_until_close())
    }

    /// Drops the handler and its response.
    pub(crate) fn stop(&mut self) {
        self.exchange.stop();
    }

    /// Records that a response of the previous session is still being sent. The idle time begins
    /// when all of it is sent.
    pub(crate) fn goes_on(&mut self) {
        self.answered = true;
    }

    /// Returns whether a request was answered in this session.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered
    }

    /// The memory of a response body that waits to be sent.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        if matches!(self.step, Step::Whole(_)) { self.whole_bytes } else { 0 }
    }

    /// Drops everything that belongs to the application, for the next session.
    pub(crate) fn reset(&mut self) {
        self.upload = Upload::Done;
        self.step = Step::Head;
        self.exchange.clear();
        self.head = None;
        self.written = None;
        self.rejected = None;
        (self.panicked, self.has_waited, self.answered) = (false, false, false);
    }

    fn receive_head<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        if link.is_full() {
            return Turn::Wait(For { bytes: false, room: true });
        }
        let head = self.head.get_or_insert_with(Head::take);
        let unread = link.io.reader.unread();
        let (used, event) = link.protocol.receive(&link.door.protocol, unread, head.index_mut());
        match event {
            Event::Head(framing) => {
                let mut head = self.head.take().expect("set before receiving");
                let skip = usize::from(framing.skip);
                head.set_bytes(&link.io.reader.unread()[skip..used]);
                link.io.reader.consume(used);
                link.io.deadlines.clear(Wait::Head);
                self.begin(head, framing, link, context)
            }
            Event::NeedInput => {
                link.io.reader.consume(used);
                self.await_head(link)
            }
            Event::Reject(reject) => self.reject(reject, link),
            Event::Closed => Turn::linger(Ended::Agreed),
            Event::Data(_) | Event::End | Event::NeedRespond | Event::Upgraded => {
                unreachable!("an exchange leaves the protocol before the next head")
            }
        }
    }

    /// Waits for the rest of a head.
    fn await_head<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Turn {
        let is_between = matches!(link.protocol.waiting(), Waiting::FirstByte | Waiting::Idle);
        let is_nothing = link.io.reader.is_empty() && is_between;
        if link.is_ended() {
            return match link.protocol.close_receive() {
                Event::Reject(reject) if !is_nothing => self.reject(reject, link),
                _ => Turn::close(Ended::PeerClosed),
            };
        }
        if is_nothing {
            return Turn::Rest;
        }
        let late = link.worker.driver.now().saturating_add(link.door.limits.head_timeout);
        link.io.deadlines.begin(Wait::Head, late);
        Turn::Wait(For { bytes: true, room: false })
    }

    /// Admits a request and calls its handler.
    fn begin<D: Driver>(
        &mut self,
        mut head: Head,
        framing: Framing,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let worker = link.worker;
        worker.observed.request();
        let facts = (head.index().version, &*link.info);
        let tally = &mut self.exchange.tally;
        tally.begin(worker.meters.as_ref(), Some(&head), facts, || worker.driver.now());
        self.is_last = !framing.keep_alive;
        self.can_probe = head.index().version == Version::Http11;
        if let Err(reject) = link.check_origin(&head) {
            self.exchange.tally.keep(&head);
            return self.reject(reject, link);
        }
        let target = worker.application.find(&mut head, link.info);
        match link.admit(&target, &head, framing.body != BodyLength::None) {
            Ok(admitted) => self.exchange.admitted = Some(admitted),
            Err(refusal) => return self.refuse(refusal, &head, framing, link),
        }
        let limit = target.body_limit(link.door.limits.body_bytes_max);
        let body = match self.receive_body(framing, limit, link) {
            Ok(body) => body,
            Err(reject) => {
                self.exchange.tally.keep(&head);
                return self.reject(reject, link);
            }
        };
        let states = Rc::clone(worker.application.states());
        let request = Request::new(head, body, states, Rc::clone(link.info));
        self.exchange.begin(target, request);
        (self.probes, self.has_fed) = (Probes::default(), false);
        if let Poll::Ready(outcome) = self.poll_handler(link, context) {
            return self.respond(outcome, link);
        }
        self.step = Step::Handler;
        self.has_waited = true;
        link.io.hold.get_or_insert_with(|| worker.driver.hold());
        let now = worker.driver.now();
        if let Some(timeout) = self.exchange.timeout {
            link.io.deadlines.set(Wait::Handler, now.saturating_add(timeout));
        }
        self.limit_exchange(now, link);
        self.attend(Progress::None, link, context)
    }

    /// Starts the timeout of the whole exchange, if there is one.
    fn limit_exchange<D: Driver>(&mut self, now: Duration, link: &mut Link<'_, D>) {
        self.exchange.goes_on(now);
        if let Some(timeout) = link.door.limits.exchange_timeout {
            link.io.deadlines.begin(Wait::Exchange, now.saturating_add(timeout));
        }
    }

    fn await_handler<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.poll_handler(link, context) {
            Poll::Ready(outcome) => self.respond(outcome, link),
            Poll::Pending => self.attend(Progress::None, link, context),
        }
    }

    fn poll_handler<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response, Panicked>> {
        let polled = self.exchange.poll_response(context, &link.worker.pulse);
        let out = &mut link.io.writer.plain;
        self.exchange.send_interims(out.len(), |status, fields| {
            link.protocol.send_interim(status, fields::map_pairs(fields), out);
        });
        polled
    }

    /// Receives the request's body and detects a disconnect. Called while the handler, or the
    /// response body that it returned, is not ready.
    fn attend<D: Driver>(
        &mut self,
        progress: Progress,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let fed = self.feed(link, context);
        let has_fed = std::mem::take(&mut self.has_fed);
        match fed {
            Fed::Left => Turn::close(Ended::PeerLeft),
            // The body's reader was not woken, so another turn must poll it.
            _ if has_fed => Turn::Again,
            Fed::Wait(bytes) => {
                self.watch_peer(bytes, link);
                Turn::Wait(For { bytes, room: false })
            }
            Fed::Over if link.is_ended() => self.on_peer_end(progress, link),
            Fed::Over => {
                let bytes = link.reads_ahead();
                self.watch_peer(bytes, link);
                Turn::Wait(For { bytes, room: false })
            }
        }
    }

    /// Called when the response is written: continues with the next request or with the rest of
    /// this request's body, or closes the connection.
    fn after<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Turn {
        self.answered = true;
        self.exchange.finish();
        if let Some(rest) = self.exchange.take_rest() {
            let hold = link.worker.driver.hold();
            link.worker.driver.spawn_boxed(Box::pin(async move {
                rest.await;
                drop(hold);
            }));
        }
        if let Some(reject) = self.rejected.take() {
            link.protocol.drain();
            return Turn::linger(Ended::Rejected(reject));
        }
        if self.upload.is_unwanted() {
            link.protocol.discard_body();
        }
        match link.protocol.next() {
            Next::FinishBody if self.upload.is_read() => {
                self.exchange.stop();
                self.step = Step::ReadOn { consumed: None };
                self.has_waited = true;
                self.probes = Probes::default();
                link.io.hold.get_or_insert_with(|| link.worker.driver.hold());
                Turn::Again
            }
            Next::Request => {
                self.finish_exchange(link);
                Turn::Again
            }
            Next::FinishBody => {
                self.finish_exchange(link);
                self.step = Step::Unread;
                self.has_waited = true;
                link.io.receiving = Meter::new(link.io.reader.brought());
                Turn::Again
            }
            Next::Close | Next::Respond | Next::Upgraded => Turn::linger(match () {
                () if self.panicked => Ended::HandlerPanicked,
                () if self.is_last => Ended::Agreed,
                () if link.worker.order() >= Order::LameDuck => Ended::Drained,
                () => Ended::Agreed,
            }),
        }
    }

    /// Clears the exchange when its response is written and no application code is needed any more.
    fn finish_exchange<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        if let Some(name) = self.exchange.take_request_name() {
            self.written = Some(name);
        }
        self.exchange.clear();
        self.upload = Upload::Done;
        self.step = Step::Head;
        // Most exchanges are answered at once. They have no hold and no deadlines, so skip clearing
        // them.
        if std::mem::take(&mut self.has_waited) {
            link.io.hold = None;
            link.io.deadlines.clear_all();
        }
    }
}
