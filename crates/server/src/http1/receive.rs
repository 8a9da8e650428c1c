//! Receives a request's body and passes it to the handler, or discards it.

use super::{ExchangeState, Http1, encode};
use crate::exchange::body_sender::{BodyCapacity, RequestBodySender};
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

/// The result of receiving.
pub(super) enum BodyEvent {
    /// `data` is the range of the content in the unread bytes. After reading it, the caller must
    /// consume `used` bytes.
    Data {
        data: std::ops::Range<usize>,
        used: usize,
    },
    End,
    NeedInput,
    Reject(RequestError),
}

/// How far [`Http1::forward_body`] has passed on a body.
pub(super) enum ForwardResult {
    /// Must be called again when the handler reads and, if `true`, also when more bytes arrive.
    Pending(bool),
    /// The body is complete, failed or unwanted.
    Done,
    /// The peer ended its sending side before the end of the body.
    Disconnected,
}

impl Http1 {
    /// Takes the part of the body that has arrived. A complete body needs no pipe.
    pub(super) fn receive_body<D: Driver>(
        &mut self,
        framing: Framing,
        limit: u64,
        link: &mut ConnectionContext<'_, D>,
    ) -> Result<Body, RequestError> {
        let length = match framing.body {
            BodyLength::None => return Ok(Body::empty()),
            BodyLength::Exact(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let mut here = pool::get();
        loop {
            match self.next_body_event(link) {
                BodyEvent::Data { data, used } => {
                    here.extend_from_slice(&link.io.input.unread()[data]);
                    link.io.input.consume(used);
                }
                // Trailers are rare and are passed through a pipe.
                BodyEvent::End if link.protocol.trailers().next().is_none() => {
                    return Ok(Body::from_pooled(here).limited(limit));
                }
                BodyEvent::End => {
                    let (writer, reader) = pipe(link.listener.limits.body_buffer_bytes_max, length);
                    writer.send(Bytes::from(here));
                    writer.finish(encode::request_trailers(link.protocol));
                    return Ok(Body::incoming(reader, limit));
                }
                BodyEvent::NeedInput => break,
                BodyEvent::Reject(reject) => return Err(reject),
            }
        }
        let (writer, reader) = pipe(link.listener.limits.body_buffer_bytes_max, length);
        let is_awaited = framing.expect_continue && here.is_empty();
        if here.is_empty() {
            pool::put(here);
        } else {
            writer.send(Bytes::from(here));
        }
        let is_promised = length.is_some();
        self.request_body = RequestBodySender::Open {
            pipe: writer,
            awaits_continue: is_awaited,
            has_length: is_promised,
        };
        link.io.receive_rate = TransferRate::new(link.io.input.payload_bytes());
        Ok(Body::incoming(reader, limit))
    }

    /// Passes received content to the handler, as far as the pipe has room.
    pub(super) fn forward_body<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> ForwardResult {
        loop {
            match self.request_body.poll_capacity(cx) {
                BodyCapacity::Closed => {
                    link.stop_body_timers();
                    return ForwardResult::Done;
                }
                BodyCapacity::Full => {
                    link.stop_body_timers();
                    return ForwardResult::Pending(false);
                }
                // The peer sends nothing more, so pass on what has arrived without waiting for the
                // handler to read.
                BodyCapacity::AwaitingDemand if link.is_eof() => {}
                // The peer sends no content before it gets `100 Continue`, but a reset may arrive.
                BodyCapacity::AwaitingDemand => {
                    link.stop_body_timers();
                    return ForwardResult::Pending(link.may_read_ahead());
                }
                BodyCapacity::SendContinue => {
                    link.protocol.send_interim(
                        100,
                        std::iter::empty(),
                        &mut link.io.output.plaintext,
                    );
                }
                BodyCapacity::Ready => {}
            }
            match self.forward_available(link, cx) {
                Some(BodyEvent::NeedInput) if link.is_eof() => {
                    self.request_body.fail(BodyError::Disconnected);
                    return ForwardResult::Disconnected;
                }
                Some(BodyEvent::NeedInput) => {
                    let is_answering = matches!(
                        self.state,
                        ExchangeState::SendingFull { .. } | ExchangeState::SendingStream(_)
                    );
                    if is_answering && self.request_body.has_unknown_length() {
                        link.start_idle_timer();
                    } else {
                        link.start_body_timer();
                    }
                    return ForwardResult::Pending(true);
                }
                Some(BodyEvent::End) => {
                    self.request_body.finish(|| encode::request_trailers(link.protocol));
                    // If the peer has ended its sending side, the handler may be cancelled for
                    // that. It must get the whole body first.
                    self.repoll_reader |= link.is_eof();
                }
                Some(BodyEvent::Reject(reject)) => {
                    self.request_body.fail(BodyError::Protocol(reject));
                    self.rejected = Some(reject);
                }
                Some(BodyEvent::Data { .. }) | None => {}
            }
        }
    }

    /// Passes the body to a task that continues to read it after the response is complete. If the
    /// task reads nothing for `idle_timeout`, its body fails.
    pub(super) fn receive_after_response<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        match self.forward_body(link, cx) {
            ForwardResult::Pending(true) => {
                link.io.deadlines.clear(TimeoutKind::BodyReader);
                Action::Wait(Interest { readable: true, writable: false })
            }
            ForwardResult::Pending(false) => {
                let taken = Some(self.request_body.consumed());
                let now = link.worker.driver.now();
                let until = now.saturating_add(link.listener.limits.idle_timeout);
                match &mut self.state {
                    ExchangeState::ReceivingBody { consumed } if *consumed != taken => {
                        *consumed = taken;
                        link.io.deadlines.set(TimeoutKind::BodyReader, until);
                    }
                    _ => link.io.deadlines.set_if_unset(TimeoutKind::BodyReader, until),
                }
                self.schedule_probe(false, link);
                Action::Wait(Interest { readable: false, writable: false })
            }
            ForwardResult::Disconnected => Action::close(CloseReason::PeerClosed),
            ForwardResult::Done => {
                link.io.deadlines.clear(TimeoutKind::BodyReader);
                self.finish_response(link)
            }
        }
    }

    /// Passes on received content up to the next other event, and returns that event. Returns
    /// `None` if it passed on content and now needs more input. The caller must then check for room
    /// again.
    pub(super) fn forward_available<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
        context: &Context<'_>,
    ) -> Option<BodyEvent> {
        // Small chunks are combined, because a separate piece for each would use more memory than
        // its content.
        let mut piece = Vec::new();
        let mut any = false;
        let last = loop {
            match self.next_body_event(link) {
                BodyEvent::Data { data, used } => {
                    any = true;
                    let reader = &mut link.io.input;
                    let is_all = piece.is_empty() && data == (0..reader.unread().len());
                    if is_all && let Some(kept) = reader.take_owned(D::Stream::try_into_vec) {
                        self.repoll_reader |= self.request_body.push_without_wake(kept, context);
                        continue;
                    }
                    piece.extend_from_slice(&reader.unread()[data]);
                    reader.consume(used);
                }
                last => break last,
            }
        };
        if !piece.is_empty() {
            self.repoll_reader |= self.request_body.push_without_wake(Bytes::from(piece), context);
        }
        (!any || !matches!(last, BodyEvent::NeedInput)).then_some(last)
    }

    /// The next event of a body.
    pub(super) fn next_body_event<D: Driver>(
        &mut self,
        link: &mut ConnectionContext<'_, D>,
    ) -> BodyEvent {
        let reader = &mut link.io.input;
        let (used, event) = link.protocol.receive(
            &link.listener.protocol,
            reader.unread(),
            &mut self.scratch_index,
        );
        if let Event::Data(data) = event {
            self.exchange.metrics.add_received(data.len());
            return BodyEvent::Data { data, used };
        }
        reader.consume(used);
        match event {
            Event::NeedInput => BodyEvent::NeedInput,
            Event::RequestError(reject) => BodyEvent::Reject(reject),
            Event::End | Event::Paused | Event::Closed => BodyEvent::End,
            Event::Head(_) | Event::Data(_) | Event::Upgraded => {
                unreachable!("between a head and its response, a body has only data and an end")
            }
        }
    }

    /// Discards the rest of the request's body, because the next request starts after it.
    pub(super) fn drain_body<D: Driver>(&mut self, link: &mut ConnectionContext<'_, D>) -> Action {
        while link.protocol.next_action() == NextAction::DiscardBody {
            let reader = &mut link.io.input;
            let (used, event) = link.protocol.receive(
                &link.listener.protocol,
                reader.unread(),
                &mut self.scratch_index,
            );
            reader.consume(used);
            match event {
                Event::NeedInput if link.is_eof() => return Action::close(CloseReason::PeerClosed),
                // The response is written, so nothing is in progress.
                Event::NeedInput if link.worker.lifecycle() >= Lifecycle::Draining => {
                    return Action::linger(CloseReason::Drained);
                }
                Event::NeedInput => {
                    link.start_body_timer();
                    return Action::Wait(Interest { readable: true, writable: false });
                }
                Event::RequestError(reject) => {
                    return Action::linger(CloseReason::Rejected(reject));
                }
                Event::Closed => return Action::linger(CloseReason::ConnectionClose),
                _ => {}
            }
        }
        link.io.deadlines.clear(TimeoutKind::Receive);
        self.finish_response(link)
    }
}
