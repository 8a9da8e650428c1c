//! A body that is compressed while it is sent.

use crate::encode::Encoder;
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame};
use peregrine_web::account::Charge;
use peregrine_web::turn::others_first;
use peregrine_web::{Body, BodyError};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// So much is compressed at a time; then others have their turn: compressing is work, and the content may be here already.
const TURN_BYTES: usize = 16 * 1024;
/// A frame is as much work as so many bytes, if not for the encoder, then for who makes it.
const WORK_OF_FRAME: usize = TURN_BYTES / 32;
/// A frame that has so much is sent.
const FRAME_BYTES: usize = 8 * 1024;

/// A body in a content coding.
pub(crate) struct Encoded {
    body: Body,
    /// `None`: its end is written.
    encoder: Option<Encoder>,
    /// Taken from the body, and not compressed yet.
    input: Bytes,
    /// Compressed, and not sent yet.
    out: Vec<u8>,
    /// What the encoder took since it was flushed may still be in there.
    is_unflushed: bool,
    /// Compressed since others had their turn.
    unbroken: usize,
    /// What comes after the content.
    trailers: Option<Frame<Bytes>>,
    charge: Charge,
}

impl Encoded {
    pub(crate) fn new(body: Body, encoder: Encoder) -> Self {
        let charge = Charge::of(encoder.held_bytes());
        Self {
            body,
            encoder: Some(encoder),
            input: Bytes::new(),
            out: Vec::new(),
            is_unflushed: false,
            unbroken: 0,
            trailers: None,
            charge,
        }
    }

    /// A frame of what is compressed.
    fn frame(&mut self) -> Frame<Bytes> {
        Frame::data(Bytes::from(std::mem::take(&mut self.out)))
    }

    /// Compresses a slice of what is here.
    fn advance(&mut self) -> io::Result<()> {
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let length = self.input.len().min(TURN_BYTES);
        encoder.write(&self.input[..length], &mut self.out)?;
        self.input.advance(length);
        self.unbroken += length;
        self.is_unflushed = true;
        Ok(())
    }

    /// Writes the end.
    fn end(&mut self) -> io::Result<()> {
        let Some(encoder) = self.encoder.take() else { return Ok(()) };
        let ended = encoder.finish(&mut self.out);
        self.charge.set(0);
        ended
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if self.out.len() >= FRAME_BYTES || (self.encoder.is_none() && !self.out.is_empty()) {
                return Poll::Ready(Some(Ok(self.frame())));
            }
            if self.encoder.is_none() {
                return Poll::Ready(self.trailers.take().map(Ok));
            }
            if self.unbroken >= TURN_BYTES {
                self.unbroken = 0;
                others_first(context);
                return Poll::Pending;
            }
            if !self.input.is_empty() {
                self.advance().map_err(failed)?;
                continue;
            }
            match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(None) => self.end().map_err(failed)?,
                Poll::Ready(Some(Err(error))) => {
                    // What was compressed so far is of no use without its end.
                    self.encoder = None;
                    self.out = Vec::new();
                    self.charge.set(0);
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        self.input = data;
                        self.unbroken += WORK_OF_FRAME;
                    }
                    Err(trailers) => {
                        self.trailers = Some(trailers);
                        self.end().map_err(failed)?;
                    }
                },
                Poll::Pending => {
                    self.unbroken = 0;
                    // The producer pauses: its reader gets all that there is.
                    if let Some(encoder) = self.encoder.as_mut().filter(|_| self.is_unflushed) {
                        self.is_unflushed = false;
                        encoder.flush(&mut self.out).map_err(failed)?;
                    }
                    if self.out.is_empty() {
                        return Poll::Pending;
                    }
                    return Poll::Ready(Some(Ok(self.frame())));
                }
            }
        }
    }
}

fn failed(error: io::Error) -> BodyError {
    BodyError::Failed(error.into())
}

impl HttpBody for Encoded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.poll(context)
    }
}

/// A body of no content and unknown length: the answer to HEAD where that to GET is compressed.
pub(crate) struct Untold;

impl HttpBody for Untold {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }
}
