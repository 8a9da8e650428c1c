//! A bounded single-threaded channel that carries a request body, or the bytes of an upgraded
//! connection, from a connection to a handler.
//!
//! The connection holds the [`PipeWriter`], and the handler's body holds the [`PipeReader`]. The
//! connection reads from the network only while the pipe has room, so a slow handler slows down the
//! peer.

use crate::http::body::BodyError;
use crate::http::memory::MemoryReservation;
use bytes::Bytes;
use http::HeaderMap;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The default number of unread bytes at which the writer of a pipe must pause.
pub const DEFAULT_PIPE_BYTES_MAX: usize = 64 * 1024;

/// The overhead that is counted for each chunk, in bytes.
const CHUNK_OVERHEAD_BYTES: usize = 64;

/// Creates a pipe whose writer must pause once `bytes_max` bytes are unread; the last chunk may
/// exceed that number. `length` is the body's length if it is known in advance.
#[must_use]
pub fn pipe(bytes_max: usize, length: Option<u64>) -> (PipeWriter, PipeReader) {
    let state = Rc::new(RefCell::new(PipeState {
        chunks: VecDeque::new(),
        unread_bytes: 0,
        reservation: MemoryReservation::empty(),
        consumed: 0,
        bytes_max: bytes_max.max(1),
        remaining: length,
        end: PipeEnd::Open,
        is_polled: false,
        reader_closed: false,
        reader_waker: None,
        writer_waker: None,
    }));
    (PipeWriter(Rc::clone(&state)), PipeReader(state))
}

/// `repr(C)` keeps the order of the fields: those that every chunk accesses come first, so that
/// they share cache lines.
#[repr(C)]
struct PipeState {
    chunks: VecDeque<Bytes>,
    /// The size of `chunks`, including their overhead.
    unread_bytes: usize,
    bytes_max: usize,
    reader_waker: Option<Waker>,
    reservation: MemoryReservation,
    /// Bytes that the reader has taken.
    consumed: u64,
    /// Bytes that the reader has not taken yet, if known.
    remaining: Option<u64>,
    /// Set by the writer or by [`ConsumedBytes`].
    writer_waker: Option<Waker>,
    reader_closed: bool,
    /// Whether the reader has polled at least once.
    is_polled: bool,
    end: PipeEnd,
}

/// What the reader gets after the chunks.
enum PipeEnd {
    /// Nothing yet: the writer may send more.
    Open,
    Trailers(HeaderMap),
    Failed(BodyError),
    /// Nothing more: the body had no trailers, or the reader has taken the trailers or the error.
    Done,
}

/// The sending half, which the connection holds.
pub struct PipeWriter(Rc<RefCell<PipeState>>);

/// The receiving half, which the handler's body holds.
pub struct PipeReader(Rc<RefCell<PipeState>>);

/// Reports how many bytes the reader of a pipe has taken. It can outlive the [`PipeWriter`]. The
/// two share one waker slot, so the same task must poll both.
pub struct ConsumedBytes(Rc<RefCell<PipeState>>);

/// The error of a writer whose reader was dropped: the rest of the body is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderClosed;

impl PipeWriter {
    /// Ready when there is room, or with an error when the reader was dropped.
    pub fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<Result<(), ReaderClosed>> {
        let mut state = self.0.borrow_mut();
        if state.reader_closed {
            return Poll::Ready(Err(ReaderClosed));
        }
        if state.unread_bytes < state.bytes_max {
            return Poll::Ready(Ok(()));
        }
        register_waker(&mut state.writer_waker, cx);
        Poll::Pending
    }

    /// Ready when the reader has polled at least once, or with an error when it was dropped. For a
    /// server that sends 100 (Continue) only if the handler reads the body.
    pub fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Result<(), ReaderClosed>> {
        let mut state = self.0.borrow_mut();
        if state.reader_closed {
            return Poll::Ready(Err(ReaderClosed));
        }
        if state.is_polled {
            return Poll::Ready(Ok(()));
        }
        register_waker(&mut state.writer_waker, cx);
        Poll::Pending
    }

    /// The number of bytes that the reader has taken. A protocol with flow-control windows can open
    /// them by this number.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.0.borrow().consumed
    }

    /// Returns a handle that reports how many bytes the reader has taken, even after the writer has
    /// finished.
    #[must_use]
    pub fn consumed_bytes(&self) -> ConsumedBytes {
        ConsumedBytes(Rc::clone(&self.0))
    }

    /// Whether the reader was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.borrow().reader_closed
    }

    /// Appends a chunk of the body.
    pub fn send(&self, chunk: Bytes) {
        self.push_chunk(chunk, None);
    }

    /// As [`PipeWriter::send`], for a caller whose own task polls the reader next. If the reader's
    /// registered waker belongs to that task, returns true instead of calling the waker.
    pub fn send_without_wake(&self, chunk: Bytes, caller: &Context<'_>) -> bool {
        self.push_chunk(chunk, Some(caller))
    }

    /// Appends `chunk` and wakes the reader. If the reader's waker belongs to the task of `caller`,
    /// returns true instead of waking it.
    fn push_chunk(&self, chunk: Bytes, caller: Option<&Context<'_>>) -> bool {
        let mut state = self.0.borrow_mut();
        if state.reader_closed || chunk.is_empty() {
            // As in the reader's `Drop`, the chunk must be dropped while nothing is borrowed.
            drop(state);
            return false;
        }
        state.unread_bytes += chunk_cost(&chunk);
        state.chunks.push_back(chunk);
        let unread = state.unread_bytes;
        state.reservation.resize(unread);
        let belongs_to_caller =
            |waker: &Waker| caller.is_some_and(|context| waker.will_wake(context.waker()));
        let skips_wake = state.reader_waker.as_ref().is_some_and(belongs_to_caller);
        if !skips_wake {
            wake(&mut state.reader_waker);
        }
        skips_wake
    }

    /// Completes the body. Empty `trailers` are not passed to the reader.
    pub fn finish(self, trailers: HeaderMap) {
        let end = if trailers.is_empty() { PipeEnd::Done } else { PipeEnd::Trailers(trailers) };
        self.set_end(end);
    }

    /// Ends the body early. The reader receives the chunks sent before, then `error`.
    pub fn send_error(self, error: BodyError) {
        self.set_end(PipeEnd::Failed(error));
    }

    fn set_end(&self, end: PipeEnd) {
        let mut state = self.0.borrow_mut();
        state.end = end;
        wake(&mut state.reader_waker);
    }
}

impl ConsumedBytes {
    /// Ready with the number of bytes that the reader has taken, once it exceeds `known`, or with
    /// `u64::MAX` if the reader was dropped.
    pub fn poll_increase(&self, known: u64, cx: &mut Context<'_>) -> Poll<u64> {
        let mut state = self.0.borrow_mut();
        if state.reader_closed {
            return Poll::Ready(u64::MAX);
        }
        if state.consumed > known {
            return Poll::Ready(state.consumed);
        }
        register_waker(&mut state.writer_waker, cx);
        Poll::Pending
    }

    /// Removes the registered waker, for a caller that polls again without being woken.
    pub fn clear_waker(&self) {
        self.0.borrow_mut().writer_waker = None;
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        if matches!(state.end, PipeEnd::Open) {
            state.end = PipeEnd::Failed(BodyError::Disconnected);
            wake(&mut state.reader_waker);
        }
    }
}

/// An item that a [`PipeReader`] yields.
#[derive(Debug)]
pub enum PipeFrame {
    /// Some bytes, never empty.
    Data(Bytes),
    /// The trailer section, if there is one, as the last item.
    Trailers(HeaderMap),
}

impl PipeReader {
    /// The next frame; `None` at the end and from then on.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<PipeFrame, BodyError>>> {
        let mut state = self.0.borrow_mut();
        if !state.is_polled {
            state.is_polled = true;
            wake(&mut state.writer_waker);
        }
        if let Some(chunk) = state.chunks.pop_front() {
            if state.chunks.is_empty() {
                // Free the queue's memory, because the next chunk may not arrive for a long time,
                // for example on a WebSocket.
                state.chunks = VecDeque::new();
            }
            state.unread_bytes -= chunk_cost(&chunk);
            let unread = state.unread_bytes;
            state.reservation.resize(unread);
            state.consumed += chunk.len() as u64;
            if let Some(remaining) = &mut state.remaining {
                *remaining = remaining.saturating_sub(chunk.len() as u64);
            }
            // Most chunks wake nothing: a waker is registered only if the pipe was full, or by a
            // [`ConsumedBytes`] that follows every chunk.
            wake(&mut state.writer_waker);
            return Poll::Ready(Some(Ok(PipeFrame::Data(chunk))));
        }
        match std::mem::replace(&mut state.end, PipeEnd::Done) {
            PipeEnd::Open => {
                state.end = PipeEnd::Open;
                register_waker(&mut state.reader_waker, cx);
                Poll::Pending
            }
            PipeEnd::Trailers(trailers) => Poll::Ready(Some(Ok(PipeFrame::Trailers(trailers)))),
            PipeEnd::Failed(error) => Poll::Ready(Some(Err(error))),
            PipeEnd::Done => Poll::Ready(None),
        }
    }

    /// The number of bytes still to be read, if known.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        self.0.borrow().remaining
    }

    /// Whether the body was read completely and has no trailers or error left to report.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        let state = self.0.borrow();
        state.chunks.is_empty() && matches!(state.end, PipeEnd::Done)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.reader_closed = true;
        let chunks = std::mem::take(&mut state.chunks);
        state.unread_bytes = 0;
        state.reservation.resize(0);
        wake(&mut state.writer_waker);
        drop(state);
        // The owner of a chunk's memory may have a destructor that uses this pipe, so the state
        // must be consistent and not borrowed.
        drop(chunks);
    }
}

/// The cost of an unread chunk: its bytes and its entry in the queue. Without the latter, a pipe
/// full of one-byte chunks would use many times its limit.
fn chunk_cost(chunk: &Bytes) -> usize {
    chunk.len() + CHUNK_OVERHEAD_BYTES
}

/// Registers the caller's waker, unless it is already registered.
pub(crate) fn register_waker(slot: &mut Option<Waker>, cx: &mut Context<'_>) {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *slot = Some(cx.waker().clone()),
    }
}

fn wake(slot: &mut Option<Waker>) {
    if let Some(waker) = slot.take() {
        waker.wake();
    }
}

impl fmt::Debug for PipeWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipeWriter")
    }
}

impl fmt::Debug for ConsumedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConsumedBytes").field(&self.0.borrow().consumed).finish()
    }
}

impl fmt::Debug for PipeReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeReader").field("left", &self.remaining()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    fn data(polled: Poll<Option<Result<PipeFrame, BodyError>>>) -> Bytes {
        match polled {
            Poll::Ready(Some(Ok(PipeFrame::Data(bytes)))) => bytes,
            other => panic!("expected data, got {other:?}"),
        }
    }

    #[test]
    fn yields_the_chunks_in_order_then_the_trailers_then_none() {
        let (writer, mut reader) = pipe(100, Some(5));
        writer.send(Bytes::from_static(b"abc"));
        writer.send(Bytes::from_static(b"de"));
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", http::HeaderValue::from_static("1"));
        writer.finish(trailers);
        assert_eq!(data(reader.poll_frame(&mut context())), "abc");
        assert_eq!(reader.remaining(), Some(2));
        assert_eq!(data(reader.poll_frame(&mut context())), "de");
        let Poll::Ready(Some(Ok(PipeFrame::Trailers(received)))) =
            reader.poll_frame(&mut context())
        else {
            panic!("the trailers come after the data");
        };
        assert_eq!(received["x-sum"], "1");
        assert!(matches!(reader.poll_frame(&mut context()), Poll::Ready(None)));
        assert!(reader.is_end_stream());
    }

    #[test]
    fn a_full_pipe_has_no_capacity_until_the_reader_takes_a_chunk() {
        let (writer, mut reader) = pipe(3, None);
        assert!(writer.poll_capacity(&mut context()).is_ready());
        writer.send(Bytes::from_static(b"abcd"));
        assert!(writer.poll_capacity(&mut context()).is_pending());
        data(reader.poll_frame(&mut context()));
        assert!(writer.poll_capacity(&mut context()).is_ready());
    }

    #[test]
    fn the_overhead_of_small_chunks_counts_towards_the_limit() {
        let (writer, mut reader) = pipe(1000, None);
        let mut chunks = 0;
        while writer.poll_capacity(&mut context()).is_ready() {
            writer.send(Bytes::from_static(b"x"));
            chunks += 1;
        }
        assert!(chunks < 100, "{chunks} chunks wait in a pipe of 1,000 bytes");
        data(reader.poll_frame(&mut context()));
        assert!(writer.poll_capacity(&mut context()).is_ready());
    }

    #[test]
    fn dropping_the_writer_is_an_error_for_the_reader() {
        let (writer, mut reader) = pipe(3, None);
        writer.send(Bytes::from_static(b"ab"));
        drop(writer);
        data(reader.poll_frame(&mut context()));
        let next = reader.poll_frame(&mut context());
        assert!(matches!(next, Poll::Ready(Some(Err(BodyError::Disconnected)))));
    }

    #[test]
    fn dropping_the_reader_is_an_error_for_the_writer() {
        let (writer, reader) = pipe(3, None);
        assert!(writer.poll_demand(&mut context()).is_pending());
        drop(reader);
        assert_eq!(writer.poll_demand(&mut context()), Poll::Ready(Err(ReaderClosed)));
        assert_eq!(writer.poll_capacity(&mut context()), Poll::Ready(Err(ReaderClosed)));
        writer.send(Bytes::from_static(b"lost"));
    }

    #[test]
    fn the_first_poll_of_the_reader_signals_demand() {
        let (writer, mut reader) = pipe(3, None);
        assert!(writer.poll_demand(&mut context()).is_pending());
        assert!(reader.poll_frame(&mut context()).is_pending());
        assert_eq!(writer.poll_demand(&mut context()), Poll::Ready(Ok(())));
    }
}
