//! File bodies, either read while they are sent, or sent by the connection's driver.

use crate::blocking::BlockingTask;
use crate::disk::{TryRead, check_resident, prefetch, read, try_read};
use crate::metadata::FileContent;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::body::{BodyError, BodyPart, FileBody};
use peregrine_web::memory::MemoryReservation;
use peregrine_web::panic::catch_log_panic;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The size of a read. At most two of these are in memory: one being sent and one being read.
const CHUNK_BYTES: u64 = 128 * 1024;

/// The amount that a driver sends at once. Before each, the page cache is checked.
const SENDFILE_BYTES: u64 = 1024 * 1024;

/// A piece of a body: bytes in memory, or a range of a file.
#[derive(Debug)]
pub(crate) enum BodySegment {
    Bytes(Bytes),
    File { offset: u64, len: u64 },
}

/// Pieces of one open file, read only as fast as the client takes them.
///
/// Data in the page cache is read or sent immediately; for other data, threads that may block are
/// used.
pub(crate) struct FileStream {
    file: Arc<File>,
    segments: VecDeque<BodySegment>,
    state: FileReadState,
    /// The last chunk. Its memory is reused when the driver has released it.
    reusable_buffer: Bytes,
    /// Bytes that remain to be sent.
    bytes_left: u64,
    reservation: MemoryReservation,
}

/// The state of the first piece.
enum FileReadState {
    Idle,
    Reading(BlockingTask<io::Result<Bytes>>),
    /// This many bytes are being loaded into the page cache.
    Prefetching(BlockingTask<io::Result<()>>, u64),
    /// The page cache cannot be queried, so threads read the file.
    ReadOnly,
}

impl FileStream {
    fn new(file: Arc<File>, pieces: VecDeque<BodySegment>) -> Self {
        let length = |piece: &BodySegment| match piece {
            BodySegment::Bytes(bytes) => bytes.len() as u64,
            BodySegment::File { len: length, .. } => *length,
        };
        let left = pieces.iter().map(length).sum();
        let (state, last, charge) = (FileReadState::Idle, Bytes::new(), MemoryReservation::empty());
        Self {
            file,
            segments: pieces,
            state,
            reusable_buffer: last,
            bytes_left: left,
            reservation: charge,
        }
    }

    /// The position and length of the first piece if it is a file range; pieces in memory are
    /// returned.
    fn next_file_range(&mut self) -> Result<Option<Bytes>, (u64, u64)> {
        loop {
            match self.segments.pop_front() {
                None => return Ok(None),
                Some(BodySegment::File { len: 0, .. }) => {}
                Some(BodySegment::File { offset: at, len: length }) => {
                    self.segments.push_front(BodySegment::File { offset: at, len: length });
                    return Err((at, length));
                }
                Some(BodySegment::Bytes(bytes)) => {
                    self.bytes_left -= bytes.len() as u64;
                    return Ok(Some(bytes));
                }
            }
        }
    }

    /// Removes `count` sent bytes from the first piece.
    fn advance(&mut self, count: u64) {
        if let Some(BodySegment::File { offset: at, len: length }) = self.segments.front_mut() {
            *at += count;
            *length -= count;
        }
        self.bytes_left -= count;
    }

    /// The length was announced, so a read error must abort the response.
    fn fail<T>(&mut self, error: io::Error) -> Poll<Option<Result<T, BodyError>>> {
        catch_log_panic(
            || tracing::error!(target: "peregrine", %error, "a file could not be read to its end"),
        );
        self.segments.clear();
        self.state = FileReadState::Idle;
        Poll::Ready(Some(Err(BodyError::Stream(error.into()))))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, at: u64, length: u64) -> Poll<io::Result<Bytes>> {
        let wanted = usize::try_from(CHUNK_BYTES.min(length)).unwrap_or(usize::MAX);
        self.reservation.resize(2 * wanted);
        if matches!(self.state, FileReadState::Idle) {
            // Reuse the memory of the last chunk, unless it is still in use.
            let mut chunk =
                std::mem::take(&mut self.reusable_buffer).try_into_mut().unwrap_or_default();
            chunk.resize(wanted, 0);
            if let TryRead::Done(count) = try_read(&self.file, &mut chunk, at) {
                chunk.truncate(count?);
                self.reusable_buffer = chunk.freeze();
                return Poll::Ready(Ok(self.reusable_buffer.clone()));
            }
        }
        let reading = match &mut self.state {
            FileReadState::Reading(reading) => reading,
            state => {
                let file = Arc::clone(&self.file);
                let read = move || read(&file, at, wanted).map(Bytes::from);
                *state = FileReadState::Reading(BlockingTask::spawn(read));
                let FileReadState::Reading(reading) = state else {
                    unreachable!("the state was just set")
                };
                reading
            }
        };
        let read = ready!(reading.poll(cx));
        self.state = FileReadState::Idle;
        Poll::Ready(read)
    }

    /// Ready with how many bytes from `at` on can be sent without blocking; `None` if they must be
    /// read.
    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        at: u64,
        length: u64,
    ) -> Poll<io::Result<Option<u64>>> {
        let wanted = SENDFILE_BYTES.min(length);
        loop {
            match &mut self.state {
                FileReadState::Reading(_) | FileReadState::ReadOnly => {
                    return Poll::Ready(Ok(None));
                }
                FileReadState::Prefetching(work, warmed) => {
                    let (result, warmed) = (ready!(work.poll(cx)), *warmed);
                    self.state = FileReadState::Idle;
                    return Poll::Ready(result.map(|()| Some(warmed.min(length))));
                }
                FileReadState::Idle => match check_resident(&self.file, at, wanted) {
                    TryRead::Done(Ok(())) => return Poll::Ready(Ok(Some(wanted))),
                    TryRead::Done(Err(error)) => return Poll::Ready(Err(error)),
                    TryRead::WouldBlock => {
                        let file = Arc::clone(&self.file);
                        let work = BlockingTask::spawn(move || prefetch(&file, at, wanted));
                        self.state = FileReadState::Prefetching(work, wanted);
                    }
                    TryRead::Unknown => self.state = FileReadState::ReadOnly,
                },
            }
        }
    }
}

impl HttpBody for FileStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (at, length) = match self.next_file_range() {
            Ok(bytes) => return Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Err(first) => first,
        };
        match ready!(self.poll_read(cx, at, length)) {
            Ok(bytes) if bytes.is_empty() => self.fail(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.advance(bytes.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Err(error) => self.fail(error),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.bytes_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left)
    }
}

impl FileBody for FileStream {
    fn poll_part(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyPart, BodyError>>> {
        let (at, length) = match self.next_file_range() {
            Ok(bytes) => return Poll::Ready(bytes.map(|it| Ok(BodyPart::Frame(Frame::data(it))))),
            Err(first) => first,
        };
        match ready!(self.poll_prefetch(cx, at, length)) {
            Ok(Some(length)) => {
                self.advance(length);
                let file = Arc::clone(&self.file);
                Poll::Ready(Some(Ok(BodyPart::File { file, offset: at, len: length })))
            }
            Ok(None) => self.poll_frame(cx).map(|it| it.map(|it| it.map(BodyPart::Frame))),
            Err(error) => self.fail(error),
        }
    }
}

/// Creates the body of these pieces.
pub(crate) fn body(content: &FileContent, pieces: VecDeque<BodySegment>) -> peregrine_web::Body {
    match content {
        FileContent::Open(file) => {
            peregrine_web::Body::from_file_body(FileStream::new(Arc::clone(file), pieces))
        }
        FileContent::Memory(whole) => {
            let cut = |piece| match piece {
                BodySegment::Bytes(bytes) => bytes,
                BodySegment::File { offset: at, len: length } => {
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
