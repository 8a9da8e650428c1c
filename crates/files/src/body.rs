//! File bodies, either read while they are sent, or sent by the connection's driver.

use crate::blocking::BlockingTask;
use crate::disk::{TryRead, check_resident, prefetch, read, try_read};
use crate::metadata::FileContent;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::body::{BodyError, BodyPart, FileBody};
use peregrine_web::memory::MemoryReservation;
use peregrine_web::panic::catch_subscriber_panic;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The size of a read. At most two of these are in memory: one being sent and one being read.
const CHUNK_BYTES: u64 = 128 * 1024;

/// The maximum length of a file range that is passed to a driver. Before each range, the page cache
/// is checked.
const SENDFILE_BYTES: u64 = 1024 * 1024;

/// A segment of a body: bytes in memory, or a range of a file.
#[derive(Debug)]
pub(crate) enum BodySegment {
    Bytes(Bytes),
    File { offset: u64, len: u64 },
}

/// A body that consists of segments of one open file, which are read only as fast as the client
/// reads them.
///
/// Data in the page cache is read or sent immediately; other data is first read on threads that may
/// block.
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

/// How the first segment is being read.
enum FileReadState {
    Idle,
    Reading(BlockingTask<io::Result<Bytes>>),
    /// A thread is loading this many bytes into the page cache.
    Prefetching(BlockingTask<io::Result<()>>, u64),
    /// The page cache cannot be queried, so threads read the file.
    ReadOnly,
}

impl FileStream {
    fn new(file: Arc<File>, segments: VecDeque<BodySegment>) -> Self {
        let len = |segment: &BodySegment| match segment {
            BodySegment::Bytes(bytes) => bytes.len() as u64,
            BodySegment::File { len, .. } => *len,
        };
        let bytes_left = segments.iter().map(len).sum();
        let (state, reusable_buffer, reservation) =
            (FileReadState::Idle, Bytes::new(), MemoryReservation::empty());
        Self { file, segments, state, reusable_buffer, bytes_left, reservation }
    }

    /// Returns the next segment that is not empty. A segment in memory is removed; a file range
    /// stays until [`Self::advance`] has consumed it.
    fn next_segment(&mut self) -> Option<BodySegment> {
        loop {
            match self.segments.pop_front()? {
                BodySegment::File { len: 0, .. } => {}
                BodySegment::File { offset, len } => {
                    self.segments.push_front(BodySegment::File { offset, len });
                    return Some(BodySegment::File { offset, len });
                }
                BodySegment::Bytes(bytes) => {
                    self.bytes_left -= bytes.len() as u64;
                    return Some(BodySegment::Bytes(bytes));
                }
            }
        }
    }

    /// Removes `count` sent bytes from the first segment, which is a file range.
    fn advance(&mut self, count: u64) {
        if let Some(BodySegment::File { offset, len }) = self.segments.front_mut() {
            *offset += count;
            *len -= count;
        }
        self.bytes_left -= count;
    }

    /// Logs a read error and fails the body: the length was already announced, so the response must
    /// be aborted.
    fn fail<T>(&mut self, error: io::Error) -> Poll<Option<Result<T, BodyError>>> {
        catch_subscriber_panic(
            || tracing::error!(target: "peregrine", %error, "a file could not be read to its end"),
        );
        self.segments.clear();
        self.state = FileReadState::Idle;
        Poll::Ready(Some(Err(BodyError::Stream(error.into()))))
    }

    /// Reads the next chunk of a file range.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        offset: u64,
        len: u64,
    ) -> Poll<io::Result<Bytes>> {
        let wanted = usize::try_from(CHUNK_BYTES.min(len)).unwrap_or(usize::MAX);
        self.reservation.resize(2 * wanted);
        if matches!(self.state, FileReadState::Idle) {
            // Reuse the memory of the last chunk, unless it is still in use.
            let mut chunk =
                std::mem::take(&mut self.reusable_buffer).try_into_mut().unwrap_or_default();
            chunk.resize(wanted, 0);
            if let TryRead::Done(count) = try_read(&self.file, &mut chunk, offset) {
                chunk.truncate(count?);
                self.reusable_buffer = chunk.freeze();
                return Poll::Ready(Ok(self.reusable_buffer.clone()));
            }
        }
        let task = match &mut self.state {
            FileReadState::Reading(task) => task,
            state => {
                let file = Arc::clone(&self.file);
                let work = move || read(&file, offset, wanted).map(Bytes::from);
                *state = FileReadState::Reading(BlockingTask::spawn(work));
                let FileReadState::Reading(task) = state else {
                    unreachable!("the state was just set")
                };
                task
            }
        };
        let result = ready!(task.poll(cx));
        self.state = FileReadState::Idle;
        Poll::Ready(result)
    }

    /// Returns how many bytes from `offset` on a driver can send without blocking, or `None` if
    /// they must be read on a thread.
    fn poll_prefetch(
        &mut self,
        cx: &mut Context<'_>,
        offset: u64,
        len: u64,
    ) -> Poll<io::Result<Option<u64>>> {
        let wanted = SENDFILE_BYTES.min(len);
        loop {
            match &mut self.state {
                FileReadState::Reading(_) | FileReadState::ReadOnly => {
                    return Poll::Ready(Ok(None));
                }
                FileReadState::Prefetching(task, prefetched) => {
                    let (result, prefetched) = (ready!(task.poll(cx)), *prefetched);
                    self.state = FileReadState::Idle;
                    return Poll::Ready(result.map(|()| Some(prefetched.min(len))));
                }
                FileReadState::Idle => match check_resident(&self.file, offset, wanted) {
                    TryRead::Done(Ok(())) => return Poll::Ready(Ok(Some(wanted))),
                    TryRead::Done(Err(error)) => return Poll::Ready(Err(error)),
                    TryRead::WouldBlock => {
                        let file = Arc::clone(&self.file);
                        let task = BlockingTask::spawn(move || prefetch(&file, offset, wanted));
                        self.state = FileReadState::Prefetching(task, wanted);
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
        let (offset, len) = match self.next_segment() {
            None => return Poll::Ready(None),
            Some(BodySegment::Bytes(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(BodySegment::File { offset, len }) => (offset, len),
        };
        match ready!(self.poll_read(cx, offset, len)) {
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
        let (offset, len) = match self.next_segment() {
            None => return Poll::Ready(None),
            Some(BodySegment::Bytes(bytes)) => {
                return Poll::Ready(Some(Ok(BodyPart::Frame(Frame::data(bytes)))));
            }
            Some(BodySegment::File { offset, len }) => (offset, len),
        };
        match ready!(self.poll_prefetch(cx, offset, len)) {
            Ok(Some(len)) => {
                self.advance(len);
                let file = Arc::clone(&self.file);
                Poll::Ready(Some(Ok(BodyPart::File { file, offset, len })))
            }
            Ok(None) => {
                self.poll_frame(cx).map(|frame| frame.map(|frame| frame.map(BodyPart::Frame)))
            }
            Err(error) => self.fail(error),
        }
    }
}

/// Builds a body from segments of a file's content.
pub(crate) fn build_body(
    content: &FileContent,
    segments: VecDeque<BodySegment>,
) -> peregrine_web::Body {
    match content {
        FileContent::Open(file) => {
            peregrine_web::Body::from_file_body(FileStream::new(Arc::clone(file), segments))
        }
        FileContent::Memory(memory) => {
            let to_bytes = |segment| match segment {
                BodySegment::Bytes(bytes) => bytes,
                BodySegment::File { offset, len } => {
                    let [offset, end] = [offset, offset + len].map(|offset| {
                        usize::try_from(offset).unwrap_or(usize::MAX).min(memory.len())
                    });
                    memory.slice(offset..end)
                }
            };
            let mut chunks: Vec<Bytes> = segments.into_iter().map(to_bytes).collect();
            match &mut *chunks {
                [chunk] => std::mem::take(chunk).into(),
                chunks => Bytes::from(chunks.concat()).into(),
            }
        }
    }
}
