//! A body that is compressed while it is sent.

use crate::encoder::Encoder;
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame};
use peregrine_web::coop::yield_now;
use peregrine_web::memory::MemoryReservation;
use peregrine_web::{Body, BodyError};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The number of bytes compressed between yields. Compression takes CPU time, and the content may
/// be available in full from the start.
const YIELD_BYTES: usize = 16 * 1024;
/// The cost of a frame, in bytes. Even a small one is work for its producer.
const COST_PER_FRAME: usize = YIELD_BYTES / 32;
/// Output of at least this size is sent as a frame.
const FRAME_BYTES: usize = 8 * 1024;

/// A body that is compressed as it is polled.
pub(crate) struct EncodedBody {
    body: Body,
    /// `None` once the end has been written.
    encoder: Option<Encoder>,
    /// Received but not compressed yet.
    input: Bytes,
    /// The memory that `input` keeps from being freed.
    input_bytes: usize,
    /// Compressed but not sent yet.
    out: Vec<u8>,
    /// Whether the encoder has input that was not flushed.
    needs_flush: bool,
    /// Bytes compressed since the last yield.
    work_since_yield: usize,
    /// The frame to send after the content.
    trailers: Option<Frame<Bytes>>,
    reservation: MemoryReservation,
}

impl EncodedBody {
    pub(crate) fn new(body: Body, encoder: Encoder) -> Self {
        let mut encoded = Self {
            body,
            encoder: Some(encoder),
            input: Bytes::new(),
            input_bytes: 0,
            out: Vec::new(),
            needs_flush: false,
            work_since_yield: 0,
            trailers: None,
            reservation: MemoryReservation::empty(),
        };
        encoded.update_reservation();
        encoded
    }

    /// Reserves all memory that is held for the client, including the content before compression.
    fn update_reservation(&mut self) {
        let encoder = self.encoder.as_ref().map_or(0, Encoder::memory_bytes);
        let content = self.body.memory_bytes() + self.input_bytes + self.out.capacity();
        self.reservation.resize(encoder + content);
    }

    /// Takes the compressed output as a frame.
    fn take_frame(&mut self) -> Frame<Bytes> {
        Frame::data(Bytes::from(std::mem::take(&mut self.out)))
    }

    /// Compresses a slice of the available input.
    fn compress_slice(&mut self) -> io::Result<()> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let length = self.input.len().min(YIELD_BYTES);
        encoder.write(&self.input[..length], &mut self.out)?;
        self.input.advance(length);
        if self.input.is_empty() {
            (self.input, self.input_bytes) = (Bytes::new(), 0);
        }
        self.work_since_yield += length;
        self.needs_flush = true;
        Ok(())
    }

    /// Writes the end of the encoded content.
    fn finish(&mut self) -> io::Result<()> {
        let Some(encoder) = self.encoder.take() else { return Ok(()) };
        encoder.finish(&mut self.out)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if self.out.len() >= FRAME_BYTES || (self.encoder.is_none() && !self.out.is_empty()) {
                return Poll::Ready(Some(Ok(self.take_frame())));
            }
            if self.encoder.is_none() {
                return Poll::Ready(self.trailers.take().map(Ok));
            }
            if self.work_since_yield >= YIELD_BYTES {
                self.work_since_yield = 0;
                yield_now(cx);
                return Poll::Pending;
            }
            if !self.input.is_empty() {
                self.compress_slice().map_err(stream_error)?;
                continue;
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => self.finish().map_err(stream_error)?,
                Poll::Ready(Some(Err(error))) => {
                    // The output so far is useless without its end.
                    self.encoder = None;
                    self.out = Vec::new();
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.input_bytes = if data.is_unique() { data.len() } else { 0 };
                        self.input = data;
                        self.work_since_yield += COST_PER_FRAME;
                    }
                    Err(trailers) => {
                        self.trailers = Some(trailers);
                        self.finish().map_err(stream_error)?;
                    }
                },
                Poll::Pending => {
                    self.work_since_yield = 0;
                    // The producer pauses: flush, so that the client gets everything written so
                    // far.
                    if let Some(encoder) = self.encoder.as_mut().filter(|_| self.needs_flush) {
                        self.needs_flush = false;
                        encoder.flush(&mut self.out).map_err(stream_error)?;
                    }
                    if self.out.is_empty() {
                        return Poll::Pending;
                    }
                    return Poll::Ready(Some(Ok(self.take_frame())));
                }
            }
        }
    }
}

fn stream_error(error: io::Error) -> BodyError {
    BodyError::Stream(error.into())
}

impl HttpBody for EncodedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = self.poll(cx);
        self.update_reservation();
        polled
    }
}

/// An empty body of unknown length, for responses to HEAD where the GET response is compressed.
pub(crate) struct EmptyUnsizedBody;

impl HttpBody for EmptyUnsizedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }
}
