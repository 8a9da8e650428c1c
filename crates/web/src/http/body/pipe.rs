//! A bounded single-threaded channel that carries a request body from a connection to a handler.
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

/// The overhead that is counted for each piece, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Creates a pipe that holds up to `bytes_max` unread bytes, plus one piece at most. `length` is
/// the body's length if it is known in advance.
#[must_use]
pub fn pipe(bytes_max: usize, length: Option<u64>) -> (PipeWriter, PipeReader) {
    let state = Rc::new(RefCell::new(PipeState {
        frames: VecDeque::new(),
        unread_bytes: 0,
        reservation: MemoryReservation::empty(),
        consumed: 0,
        bytes_max: bytes_max.max(1),
        remaining: length,
        end: PipeEnd::Open,
        is_polled: false,
        reader_closed: false,
        reader: None,
        writer: None,
    }));
    (PipeWriter(Rc::clone(&state)), PipeReader(state))
}

/// `repr(C)` keeps the order of the fields; those that every piece accesses are first.
#[repr(C)]
struct PipeState {
    frames: VecDeque<Bytes>,
    unread_bytes: usize,
    bytes_max: usize,
    reader: Option<Waker>,
    reservation: MemoryReservation,
    /// Bytes that the reader has taken.
    consumed: u64,
    /// Bytes that the reader has not taken yet, if known.
    remaining: Option<u64>,
    writer: Option<Waker>,
    reader_closed: bool,
    /// Whether the reader has polled at least once.
    is_polled: bool,
    end: PipeEnd,
}

enum PipeEnd {
    Open,
    Trailers(HeaderMap),
    Failed(BodyError),
    Done,
}

/// The sending half, which the connection holds.
pub struct PipeWriter(Rc<RefCell<PipeState>>);

/// The receiving half, which the handler's body holds.
pub struct PipeReader(Rc<RefCell<PipeState>>);

/// Reports how many bytes the reader of a pipe has taken. It can outlive the [`PipeWriter`], with
/// which it shares a waker.
pub struct ConsumedBytes(Rc<RefCell<PipeState>>);

/// The reader was dropped, so the rest of the body is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderClosed;

impl PipeWriter {
    /// Ready when there is room, or when the reader was dropped.
    pub fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<Result<(), ReaderClosed>> {
        let mut state = self.0.borrow_mut();
        if state.reader_closed {
            return Poll::Ready(Err(ReaderClosed));
        }
        if state.unread_bytes < state.bytes_max {
            return Poll::Ready(Ok(()));
        }
        register_waker(&mut state.writer, cx);
        Poll::Pending
    }

    /// Ready when the reader has polled for the body at least once, or was dropped.
    pub fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Result<(), ReaderClosed>> {
        let mut state = self.0.borrow_mut();
        if state.reader_closed {
            return Poll::Ready(Err(ReaderClosed));
        }
        if state.is_polled {
            return Poll::Ready(Ok(()));
        }
        register_waker(&mut state.writer, cx);
        Poll::Pending
    }

    /// The number of bytes that the reader has taken. A protocol with flow-control windows may open
    /// them by this much.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.0.borrow().consumed
    }

    /// Returns a handle that reports how many bytes the reader takes, even after the writer has
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

    /// Adds a piece of the body.
    pub fn send(&self, piece: Bytes) {
        self.push_frame(piece, None);
    }

    /// As [`PipeWriter::send`], for a task that polls the reader next. If the reader's registered
    /// waker is that of this task, it is not woken, and the result is true.
    pub fn send_without_wake(&self, piece: Bytes, context: &Context<'_>) -> bool {
        self.push_frame(piece, Some(context))
    }

    fn push_frame(&self, piece: Bytes, next_reader: Option<&Context<'_>>) -> bool {
        let mut state = self.0.borrow_mut();
        if state.reader_closed || piece.is_empty() {
            // As in the reader's `Drop`, the piece must be dropped while nothing is borrowed.
            drop(state);
            return false;
        }
        state.unread_bytes += frame_cost(&piece);
        state.frames.push_back(piece);
        let unread = state.unread_bytes;
        state.reservation.resize(unread);
        let wakes_next_reader =
            |waker: &Waker| next_reader.is_some_and(|context| waker.will_wake(context.waker()));
        let polls_next = state.reader.as_ref().is_some_and(wakes_next_reader);
        if !polls_next {
            wake(&mut state.reader);
        }
        polls_next
    }

    /// Completes the body. Empty `trailers` are not passed to the reader.
    pub fn finish(self, trailers: HeaderMap) {
        let end = if trailers.is_empty() { PipeEnd::Done } else { PipeEnd::Trailers(trailers) };
        self.set_end(end);
    }

    /// Ends the body early. The reader gets the pieces written before, then `error`.
    pub fn send_error(self, error: BodyError) {
        self.set_end(PipeEnd::Failed(error));
    }

    fn set_end(&self, end: PipeEnd) {
        let mut state = self.0.borrow_mut();
        state.end = end;
        wake(&mut state.reader);
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
        register_waker(&mut state.writer, cx);
        Poll::Pending
    }

    /// Clears the waker of the writing half, for a caller that polls again without being woken.
    pub fn clear_waker(&self) {
        self.0.borrow_mut().writer = None;
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        if matches!(state.end, PipeEnd::Open) {
            state.end = PipeEnd::Failed(BodyError::Disconnected);
            wake(&mut state.reader);
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
    /// The next piece; `None` at the end and from then on.
    pub fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<PipeFrame, BodyError>>> {
        let mut state = self.0.borrow_mut();
        if !state.is_polled {
            state.is_polled = true;
            wake(&mut state.writer);
        }
        if let Some(piece) = state.frames.pop_front() {
            if state.frames.is_empty() {
                // Free the queue's memory, because the next piece may not arrive for a long time,
                // for example on a WebSocket.
                state.frames = VecDeque::new();
            }
            state.unread_bytes -= frame_cost(&piece);
            let unread = state.unread_bytes;
            state.reservation.resize(unread);
            state.consumed += piece.len() as u64;
            if let Some(remaining) = &mut state.remaining {
                *remaining = remaining.saturating_sub(piece.len() as u64);
            }
            // A writer is registered only if the pipe was full, or if it counts every piece.
            wake(&mut state.writer);
            return Poll::Ready(Some(Ok(PipeFrame::Data(piece))));
        }
        match std::mem::replace(&mut state.end, PipeEnd::Done) {
            PipeEnd::Open => {
                state.end = PipeEnd::Open;
                register_waker(&mut state.reader, cx);
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

    /// Whether it is certain that nothing follows.
    #[must_use]
    pub fn is_end_stream(&self) -> bool {
        let state = self.0.borrow();
        state.frames.is_empty() && matches!(state.end, PipeEnd::Done)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.0.borrow_mut();
        state.reader_closed = true;
        let pieces = std::mem::take(&mut state.frames);
        state.unread_bytes = 0;
        state.reservation.resize(0);
        wake(&mut state.writer);
        drop(state);
        // The owner of a piece's memory may have a destructor, which must find the state consistent
        // and not borrowed.
        drop(pieces);
    }
}

/// The cost of a waiting piece: its bytes and its entry in the queue. Without the latter, a pipe
/// full of one-byte pieces would use many times its limit.
fn frame_cost(piece: &Bytes) -> usize {
    piece.len() + FRAME_OVERHEAD_BYTES
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
    fn yields_the_pieces_in_order_then_the_trailers_then_none() {
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
    fn a_full_pipe_has_no_capacity_until_the_reader_takes_a_piece() {
        let (writer, mut reader) = pipe(3, None);
        assert!(writer.poll_capacity(&mut context()).is_ready());
        writer.send(Bytes::from_static(b"abcd"));
        assert!(writer.poll_capacity(&mut context()).is_pending());
        data(reader.poll_frame(&mut context()));
        assert!(writer.poll_capacity(&mut context()).is_ready());
    }

    #[test]
    fn the_overhead_of_small_pieces_counts_towards_the_limit() {
        let (writer, mut reader) = pipe(1000, None);
        let mut pieces = 0;
        while writer.poll_capacity(&mut context()).is_ready() {
            writer.send(Bytes::from_static(b"x"));
            pieces += 1;
        }
        assert!(pieces < 100, "{pieces} pieces wait in a pipe of 1,000 bytes");
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
