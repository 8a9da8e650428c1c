//! Receives a request's body and passes it to the handler, or discards it.

use super::{Http1, Step, encode};
use crate::exchange::body_sender::{Room, Upload};
use crate::io::context::{For, Link, Turn};
use crate::io::timeouts::Wait;
use crate::io::transfer_rate::Meter;
use crate::observe::close_reason::Ended;
use crate::worker::lifecycle::Order;
use bytes::Bytes;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::{Event, Framing, Next};
use peregrine_proto::{BodyLength, Reject};
use peregrine_web::body::BodyError;
use peregrine_web::pipe::pipe;
use peregrine_web::{Body, pool};
use std::task::Context;

/// The result of receiving.
pub(super) enum Received {
    /// `data` is the range of the content in the unread bytes. After reading it, the caller must
    /// consume `used` bytes.
    Data {
        data: std::ops::Range<usize>,
        used: usize,
    },
    End,
    NeedInput,
    Reject(Reject),
}

/// How far [`Http1::feed`] has passed on a body.
pub(super) enum Fed {
    /// Must be called again when the handler reads and, if `true`, also when more bytes arrive.
    Wait(bool),
    /// The body is complete, failed or unwanted.
    Over,
    /// The peer ended its sending side before the end of the body.
    Left,
}

impl Http1 {
    /// Takes the part of the body that has arrived. A complete body needs no pipe.
    pub(super) fn receive_body<D: Driver>(
        &mut self,
        framing: Framing,
        limit: u64,
        link: &mut Link<'_, D>,
    ) -> Result<Body, Reject> {
        let length = match framing.body {
            BodyLength::None => return Ok(Body::empty()),
            BodyLength::Exact(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let mut here = pool::take();
        loop {
            match self.receive(link) {
                Received::Data { data, used } => {
                    here.extend_from_slice(&link.io.reader.unread()[data]);
                    link.io.reader.consume(used);
                }
                // Trailers are rare and are passed through a pipe.
                Received::End if link.protocol.trailers().next().is_none() => {
                    return Ok(Body::buffer(here).limited(limit));
                }
                Received::End => {
                    let (writer, reader) = pipe(link.door.limits.unread_body_bytes_max, length);
                    writer.push(Bytes::from(here));
                    writer.finish(encode::trailers(link.protocol));
                    return Ok(Body::incoming(reader, limit));
                }
                Received::NeedInput => break,
                Received::Reject(reject) => return Err(reject),
            }
        }
        let (writer, reader) = pipe(link.door.limits.unread_body_bytes_max, length);
        let is_awaited = framing.expect_continue && here.is_empty();
        if here.is_empty() {
            pool::give(here);
        } else {
            writer.push(Bytes::from(here));
        }
        let is_promised = length.is_some();
        self.upload = Upload::Flowing { pipe: writer, is_awaited, is_promised };
        link.io.receiving = Meter::new(link.io.reader.brought());
        Ok(Body::incoming(reader, limit))
    }

    /// Passes received content to the handler, as far as the pipe has room.
    pub(super) fn feed<D: Driver>(
        &mut self,
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
                // The peer sends nothing more, so pass on what has arrived without waiting for the
                // handler to read.
                Room::Unasked if link.is_ended() => {}
                // The peer sends no content before it gets `100 Continue`, but a reset may arrive.
                Room::Unasked => {
                    link.pause_content();
                    return Fed::Wait(link.reads_ahead());
                }
                Room::Awaited => {
                    link.protocol.send_interim(100, std::iter::empty(), &mut link.io.writer.plain);
                }
                Room::Free => {}
            }
            match self.feed_some(link, context) {
                Some(Received::NeedInput) if link.is_ended() => {
                    self.upload.fail(BodyError::Disconnected);
                    return Fed::Left;
                }
                Some(Received::NeedInput) => {
                    let is_answering = matches!(self.step, Step::Whole { .. } | Step::Stream(_));
                    if is_answering && self.upload.is_open_ended() {
                        link.await_word();
                    } else {
                        link.await_content();
                    }
                    return Fed::Wait(true);
                }
                Some(Received::End) => {
                    self.upload.finish(|| encode::trailers(link.protocol));
                    // If the peer has ended its sending side, the handler may be cancelled for
                    // that. It must get the whole body first.
                    self.has_fed |= link.is_ended();
                }
                Some(Received::Reject(reject)) => {
                    self.upload.fail(BodyError::Rejected(reject));
                    self.rejected = Some(reject);
                }
                Some(Received::Data { .. }) | None => {}
            }
        }
    }

    /// Passes the body to a task that continues to read it after the response is complete. If the
    /// task reads nothing for `idle_timeout`, its body fails.
    pub(super) fn read_on<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        match self.feed(link, context) {
            Fed::Wait(true) => {
                link.io.deadlines.clear(Wait::Reading);
                Turn::Wait(For { bytes: true, room: false })
            }
            Fed::Wait(false) => {
                let taken = Some(self.upload.consumed());
                let now = link.worker.driver.now();
                let until = now.saturating_add(link.door.limits.idle_timeout);
                match &mut self.step {
                    Step::ReadOn { consumed } if *consumed != taken => {
                        *consumed = taken;
                        link.io.deadlines.set(Wait::Reading, until);
                    }
                    _ => link.io.deadlines.begin(Wait::Reading, until),
                }
                self.watch_peer(false, link);
                Turn::Wait(For { bytes: false, room: false })
            }
            Fed::Left => Turn::close(Ended::PeerClosed),
            Fed::Over => {
                link.io.deadlines.clear(Wait::Reading);
                self.after(link)
            }
        }
    }

    /// Passes on received content up to the next other event, and returns that event. Returns
    /// `None` if it passed on content and now needs more input. The caller must then check for room
    /// again.
    pub(super) fn feed_some<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &Context<'_>,
    ) -> Option<Received> {
        // Small chunks are combined, because a separate piece for each would use more memory than
        // its content.
        let mut piece = Vec::new();
        let mut any = false;
        let last = loop {
            match self.receive(link) {
                Received::Data { data, used } => {
                    any = true;
                    let reader = &mut link.io.reader;
                    let is_all = piece.is_empty() && data == (0..reader.unread().len());
                    if is_all && let Some(kept) = reader.take_kept(D::Stream::keep) {
                        self.has_fed |= self.upload.push_before_poll(kept, context);
                        continue;
                    }
                    piece.extend_from_slice(&reader.unread()[data]);
                    reader.consume(used);
                }
                last => break last,
            }
        };
        if !piece.is_empty() {
            self.has_fed |= self.upload.push_before_poll(Bytes::from(piece), context);
        }
        (!any || !matches!(last, Received::NeedInput)).then_some(last)
    }

    /// The next event of a body.
    pub(super) fn receive<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Received {
        let reader = &mut link.io.reader;
        let (used, event) =
            link.protocol.receive(&link.door.protocol, reader.unread(), &mut self.spare);
        if let Event::Data(data) = event {
            self.exchange.tally.receive(data.len());
            return Received::Data { data, used };
        }
        reader.consume(used);
        match event {
            Event::NeedInput => Received::NeedInput,
            Event::Reject(reject) => Received::Reject(reject),
            Event::End | Event::NeedRespond | Event::Closed => Received::End,
            Event::Head(_) | Event::Data(_) | Event::Upgraded => {
                unreachable!("between a head and its response, a body has only data and an end")
            }
        }
    }

    /// Discards the rest of the request's body, because the next request starts after it.
    pub(super) fn throw_away<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Turn {
        while link.protocol.next() == Next::FinishBody {
            let reader = &mut link.io.reader;
            let (used, event) =
                link.protocol.receive(&link.door.protocol, reader.unread(), &mut self.spare);
            reader.consume(used);
            match event {
                Event::NeedInput if link.is_ended() => return Turn::close(Ended::PeerClosed),
                // The response is written, so nothing is in progress.
                Event::NeedInput if link.worker.order() >= Order::Drain => {
                    return Turn::linger(Ended::Drained);
                }
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
        self.after(link)
    }
}
