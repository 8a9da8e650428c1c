//! A request's body on its way from the peer to the handler.

use crate::connection::Talk;
use crate::ended::Ended;
use crate::link::Filled;
use crate::worker::Until;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::{Event, Framing};
use peregrine_proto::{BodyLength, Reject};
use peregrine_web::body::{Body, BodyError};
use peregrine_web::pipe::{PIPE_BYTES_MAX, Writer, pipe};
use peregrine_web::pool;
use std::future::poll_fn;
use std::time::Duration;

/// The connection's side of a request's body.
pub(crate) struct Upload(Stage);

enum Stage {
    /// There is nothing to do: no body, or all of it was there at once, or nobody wants the rest.
    Done,
    /// The body is being received into a pipe.
    Flowing(Flow),
    /// The body broke a rule of the protocol.
    Rejected(Reject),
}

struct Flow {
    writer: Writer,
    /// The peer waits for an interim 100 response before it sends.
    is_awaited: bool,
    /// When waiting for the body began, moved on by the time in which the handler did not want any.
    since: Option<Duration>,
    received: u64,
}

/// A body as the handler gets it, and what the connection has to do for it.
pub(crate) struct Begun {
    pub(crate) body: Body,
    pub(crate) upload: Upload,
}

/// How receiving a body went.
pub(crate) enum Uploaded {
    /// Nothing more is to come.
    Whole,
    /// The handler does not want the rest.
    Unwanted,
    /// The peer ended its sending side in the middle.
    Left,
}

impl Upload {
    /// Takes as much of the body as is here already. A whole body needs no pipe.
    pub(crate) fn begin<D: Driver>(
        talk: &mut Talk<'_, D>,
        framing: Framing,
        limit: u64,
    ) -> Result<Begun, Reject> {
        let length = match framing.body {
            BodyLength::None => {
                return Ok(Begun { body: Body::empty(), upload: Self(Stage::Done) });
            }
            BodyLength::Exact(length) => Some(length),
            BodyLength::Chunked => None,
        };
        let mut here = pool::take();
        loop {
            match receive(talk) {
                Step::Data(bytes) => {
                    here.extend_from_slice(&talk.link.inbox.unread()[bytes.data]);
                    talk.link.inbox.consume(bytes.used);
                }
                // Trailers are rare enough to take the longer way, where they have a place.
                Step::End if talk.protocol.trailers().next().is_none() => {
                    let body = Body::buffer(here).limited(limit);
                    return Ok(Begun { body, upload: Self(Stage::Done) });
                }
                Step::End => {
                    let (writer, reader) = pipe(PIPE_BYTES_MAX, length);
                    writer.push(Bytes::from(here));
                    writer.finish(trailers(talk));
                    let body = Body::incoming(reader, limit);
                    return Ok(Begun { body, upload: Self(Stage::Done) });
                }
                Step::NeedInput => break,
                Step::Reject(reject) => return Err(reject),
            }
        }
        let (writer, reader) = pipe(PIPE_BYTES_MAX, length);
        let received = here.len() as u64;
        let is_awaited = framing.expect_continue && here.is_empty();
        if here.is_empty() {
            pool::give(here);
        } else {
            writer.push(Bytes::from(here));
        }
        let flow = Flow { writer, is_awaited, since: None, received };
        Ok(Begun { body: Body::incoming(reader, limit), upload: Self(Stage::Flowing(flow)) })
    }

    /// The rule that the body broke, if it did.
    pub(crate) fn rejected(&self) -> Option<Reject> {
        match self.0 {
            Stage::Rejected(reject) => Some(reject),
            _ => None,
        }
    }

    /// Receives the body for as long as the handler wants it. Dropping the future loses nothing.
    pub(crate) async fn run<D: Driver>(
        &mut self,
        talk: &mut Talk<'_, D>,
    ) -> Result<Uploaded, Ended> {
        while let Stage::Flowing(flow) = &mut self.0 {
            if flow.is_awaited {
                if poll_fn(|context| flow.writer.poll_wanted(context)).await.is_err() {
                    self.0 = Stage::Done;
                    return Ok(Uploaded::Unwanted);
                }
                flow.is_awaited = false;
                talk.protocol.send_interim(100, std::iter::empty(), talk.link.outbox);
                talk.link.flush().await?;
            }
            let asked = talk.link.worker.driver.now();
            if poll_fn(|context| flow.writer.poll_room(context)).await.is_err() {
                self.0 = Stage::Done;
                return Ok(Uploaded::Unwanted);
            }
            if let Some(since) = &mut flow.since {
                *since += talk.link.worker.driver.now() - asked;
            }
            if let Some(uploaded) = self.step(talk).await? {
                return Ok(uploaded);
            }
        }
        Ok(Uploaded::Whole)
    }

    /// Moves what is here into the pipe, or waits for more.
    async fn step<D: Driver>(&mut self, talk: &mut Talk<'_, D>) -> Result<Option<Uploaded>, Ended> {
        let Stage::Flowing(flow) = &mut self.0 else { return Ok(Some(Uploaded::Whole)) };
        // Small chunks go together: each piece costs more memory than a chunk of one byte.
        let mut piece = Vec::new();
        let mut any = false;
        let step = loop {
            match receive(talk) {
                Step::Data(bytes) => {
                    any = true;
                    if piece.is_empty()
                        && let Some(kept) = keep(talk, &bytes)
                    {
                        flow.received += kept.len() as u64;
                        flow.writer.push(kept);
                        continue;
                    }
                    piece.extend_from_slice(&talk.link.inbox.unread()[bytes.data]);
                    talk.link.inbox.consume(bytes.used);
                }
                step => break step,
            }
        };
        if !piece.is_empty() {
            flow.received += piece.len() as u64;
            flow.writer.push(Bytes::from(piece));
        }
        match step {
            Step::Data(_) => unreachable!("data goes into the piece"),
            // There may be no room for more.
            Step::NeedInput if any => {}
            Step::End => {
                let trailers = trailers(talk);
                if let Stage::Flowing(flow) = std::mem::replace(&mut self.0, Stage::Done) {
                    flow.writer.finish(trailers);
                }
                return Ok(Some(Uploaded::Whole));
            }
            Step::Reject(reject) => {
                self.fail(Stage::Rejected(reject), BodyError::Rejected(reject));
                return Ok(Some(Uploaded::Whole));
            }
            Step::NeedInput => {
                let until = flow.patience(talk);
                match talk.link.fill(until).await? {
                    Filled::Bytes => {}
                    Filled::End => {
                        self.fail(Stage::Done, BodyError::Disconnected);
                        return Ok(Some(Uploaded::Left));
                    }
                    Filled::Late => {
                        self.fail(Stage::Done, BodyError::TooSlow);
                        talk.protocol.drain();
                        return Ok(Some(Uploaded::Unwanted));
                    }
                }
            }
        }
        Ok(None)
    }

    fn fail(&mut self, stage: Stage, error: BodyError) {
        if let Stage::Flowing(flow) = std::mem::replace(&mut self.0, stage) {
            flow.writer.fail(error);
        }
    }
}

impl Flow {
    /// Until when the next bytes must be here: the grace, and the time that what came so far may
    /// take at the least rate.
    fn patience<D: Driver>(&mut self, talk: &Talk<'_, D>) -> Until {
        let limits = &talk.link.worker.limits;
        let since = *self.since.get_or_insert_with(|| talk.link.worker.driver.now());
        match limits.body_rate_min {
            0 => Until::Never,
            rate => {
                let earned = Duration::from_secs_f64(self.received as f64 / rate as f64);
                // A burst earns no right to be silent for longer than an idle connection.
                let earned = earned.min(limits.idle_timeout);
                let now = talk.link.worker.driver.now();
                let slow = since.saturating_add(limits.body_grace).saturating_add(earned);
                Until::At(slow.min(now.saturating_add(limits.idle_timeout)))
            }
        }
    }
}

enum Step {
    Data(Piece),
    End,
    NeedInput,
    Reject(Reject),
}

/// Where the data is in the unread bytes, and how many of those are done with.
struct Piece {
    data: std::ops::Range<usize>,
    used: usize,
}

fn receive<D: Driver>(talk: &mut Talk<'_, D>) -> Step {
    let limits = &talk.link.worker.protocol;
    let (used, event) = talk.protocol.receive(limits, talk.link.inbox.unread(), talk.spare);
    if let Event::Data(data) = event {
        return Step::Data(Piece { data, used });
    }
    talk.link.inbox.consume(used);
    match event {
        Event::NeedInput => Step::NeedInput,
        Event::Reject(reject) => Step::Reject(reject),
        Event::End | Event::NeedRespond | Event::Closed => Step::End,
        Event::Head(_) | Event::Data(_) | Event::Upgraded => {
            unreachable!("only data and an end come between a head and its response")
        }
    }
}

/// The data without a copy, if that can be: it is all there is, in a chunk whose memory may be kept.
fn keep<D: Driver>(talk: &mut Talk<'_, D>, bytes: &Piece) -> Option<Bytes> {
    let inbox = &mut *talk.link.inbox;
    let is_all = bytes.data == (0..inbox.unread().len());
    if is_all { inbox.take_kept(D::Stream::keep) } else { None }
}

fn trailers<D: Driver>(talk: &Talk<'_, D>) -> HeaderMap {
    let pairs = talk.protocol.trailers().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
    });
    pairs.collect()
}
