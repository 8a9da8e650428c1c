//! File bodies, either read while they are sent, or sent by the connection's driver.

use crate::disk::{Now, has, read, read_now, warm};
use crate::facts::Content;
use crate::work::Work;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::account::Charge;
use peregrine_web::body::{BodyError, FileBody, Part};
use peregrine_web::panics::contained;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The size of a read. At most two of these are in memory: one being sent and one being read.
const CHUNK_BYTES: u64 = 128 * 1024;

/// The amount that a driver sends at once. Before each, the page cache is checked.
const PART_BYTES: u64 = 1024 * 1024;

/// A piece of a body: bytes in memory, or a range of a file.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    File { at: u64, length: u64 },
}

/// Pieces of one open file, read only as fast as the client takes them.
///
/// Data in the page cache is read or sent immediately; for other data, threads that may block are
/// used.
pub(crate) struct OpenBody {
    file: Arc<File>,
    pieces: VecDeque<Piece>,
    state: State,
    /// The last chunk. Its memory is reused when the driver has released it.
    last: Bytes,
    /// Bytes that remain to be sent.
    left: u64,
    charge: Charge,
}

/// The state of the first piece.
enum State {
    Nothing,
    Reading(Work<io::Result<Bytes>>),
    /// This many bytes are being loaded into the page cache.
    Warming(Work<io::Result<()>>, u64),
    /// The page cache cannot be queried, so threads read the file.
    Reads,
}

impl OpenBody {
    fn new(file: Arc<File>, pieces: VecDeque<Piece>) -> Self {
        let length = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { length, .. } => *length,
        };
        let left = pieces.iter().map(length).sum();
        let (state, last, charge) = (State::Nothing, Bytes::new(), Charge::new());
        Self { file, pieces, state, last, left, charge }
    }

    /// The position and length of the first piece if it is a file range; pieces in memory are
    /// returned.
    fn first(&mut self) -> Result<Option<Bytes>, (u64, u64)> {
        loop {
            match self.pieces.pop_front() {
                None => return Ok(None),
                Some(Piece::File { length: 0, .. }) => {}
                Some(Piece::File { at, length }) => {
                    self.pieces.push_front(Piece::File { at, length });
                    return Err((at, length));
                }
                Some(Piece::Bytes(bytes)) => {
                    self.left -= bytes.len() as u64;
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Removes `count` sent bytes from the first piece.
    fn advance(&mut self, count: u64) {
        if let Some(Piece::File { at, length }) = self.pieces.front_mut() {
            *at += count;
            *length -= count;
        }
        self.left -= count;
    }

    /// The length was announced, so a read error must abort the response.
    fn fail<T>(&mut self, error: io::Error) -> Poll<Option<Result<T, BodyError>>> {
        contained(
            || tracing::error!(target: "peregrine", %error, "a file could not be read to its end"),
        );
        self.pieces.clear();
        self.state = State::Nothing;
        Poll::Ready(Some(Err(BodyError::Failed(error.into()))))
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        at: u64,
        length: u64,
    ) -> Poll<io::Result<Bytes>> {
        let wanted = usize::try_from(CHUNK_BYTES.min(length)).unwrap_or(usize::MAX);
        self.charge.set(2 * wanted);
        if matches!(self.state, State::Nothing) {
            // Reuse the memory of the last chunk, unless it is still in use.
            let mut chunk = std::mem::take(&mut self.last).try_into_mut().unwrap_or_default();
            chunk.resize(wanted, 0);
            if let Now::Done(count) = read_now(&self.file, &mut chunk, at) {
                chunk.truncate(count?);
                self.last = chunk.freeze();
                return Poll::Ready(Ok(self.last.clone()));
            }
        }
        let reading = match &mut self.state {
            State::Reading(reading) => reading,
            state => {
                let file = Arc::clone(&self.file);
                let read = move || read(&file, at, wanted).map(Bytes::from);
                *state = State::Reading(Work::begin(read));
                let State::Reading(reading) = state else { unreachable!("the state was just set") };
                reading
            }
        };
        let read = ready!(reading.poll(context));
        self.state = State::Nothing;
        Poll::Ready(read)
    }

    /// Ready with how many bytes from `at` on can be sent without blocking; `None` if they must be
    /// read.
    fn poll_warm(
        &mut self,
        context: &mut Context<'_>,
        at: u64,
        length: u64,
    ) -> Poll<io::Result<Option<u64>>> {
        let wanted = PART_BYTES.min(length);
        loop {
            match &mut self.state {
                State::Reading(_) | State::Reads => return Poll::Ready(Ok(None)),
                State::Warming(work, warmed) => {
                    let (result, warmed) = (ready!(work.poll(context)), *warmed);
                    self.state = State::Nothing;
                    return Poll::Ready(result.map(|()| Some(warmed.min(length))));
                }
                State::Nothing => match has(&self.file, at, wanted) {
                    Now::Done(Ok(())) => return Poll::Ready(Ok(Some(wanted))),
                    Now::Done(Err(error)) => return Poll::Ready(Err(error)),
                    Now::WouldBlock => {
                        let file = Arc::clone(&self.file);
                        let work = Work::begin(move || warm(&file, at, wanted));
                        self.state = State::Warming(work, wanted);
                    }
                    Now::Unknown => self.state = State::Reads,
                },
            }
        }
    }
}

impl HttpBody for OpenBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (at, length) = match self.first() {
            Ok(bytes) => return Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Err(first) => first,
        };
        match ready!(self.poll_read(context, at, length)) {
            Ok(bytes) if bytes.is_empty() => self.fail(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.advance(bytes.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Err(error) => self.fail(error),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl FileBody for OpenBody {
    fn poll_part(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Part, BodyError>>> {
        let (at, length) = match self.first() {
            Ok(bytes) => return Poll::Ready(bytes.map(|it| Ok(Part::Frame(Frame::data(it))))),
            Err(first) => first,
        };
        match ready!(self.poll_warm(context, at, length)) {
            Ok(Some(length)) => {
                self.advance(length);
                let file = Arc::clone(&self.file);
                Poll::Ready(Some(Ok(Part::File { file, at, length })))
            }
            Ok(None) => self.poll_frame(context).map(|it| it.map(|it| it.map(Part::Frame))),
            Err(error) => self.fail(error),
        }
    }
}

/// Creates the body of these pieces.
pub(crate) fn body(content: &Content, pieces: VecDeque<Piece>) -> peregrine_web::Body {
    match content {
        Content::Open(file) => {
            peregrine_web::Body::of_files(OpenBody::new(Arc::clone(file), pieces))
        }
        Content::Memory(whole) => {
            let cut = |piece| match piece {
                Piece::Bytes(bytes) => bytes,
                Piece::File { at, length } => {
                    let [at, end] = [at, at + length]
                        .map(|at| usize::try_from(at).unwrap_or(usize::MAX).min(whole.len()));
                    whole.slice(at..end)
                }
            };
            let mut pieces: Vec<Bytes> = pieces.into_iter().map(cut).collect();
            match &mut *pieces {
                [one] => std::mem::take(one).into(),
                pieces => Bytes::from(pieces.concat()).into(),
            }
        }
    }
}
