//! Collects a body into one buffer.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::account::{Charge, Filling, filling};
use peregrine_web::turn::others_first;
use peregrine_web::{Body, BodyError};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// The number of frames to read from an always-ready body before yielding.
const FRAMES_PER_TURN: u32 = 32;

/// The result.
pub(crate) enum Gathered {
    /// The complete content.
    Whole(Bytes),
    /// The content was too long, took too long, had trailers, failed, did not match its announced
    /// length, or the worker's memory is full: the unchanged body.
    Other(Body),
}

/// Reads a body of at most `bytes_max` bytes within `time_max`, if set. The body that is sent is
/// the same in either case.
pub(crate) async fn gather(mut body: Body, bytes_max: u64, time_max: Option<Duration>) -> Gathered {
    if body.length().is_some_and(|length| length > bytes_max) {
        return Gathered::Other(body);
    }
    body = match body.into_shared() {
        Ok(bytes) => return Gathered::Whole(bytes),
        Err(body) => body,
    };
    let promised = body.length();
    let (mut held, mut last, mut charge) = (Held::default(), None, Charge::new());
    // Without a runtime, as in tests, timers do not work.
    let time_max = time_max.filter(|_| tokio::runtime::Handle::try_current().is_ok());
    let mut alarm = pin!(time_max.map(tokio::time::sleep));
    let (mut is_over, mut unbroken) = (false, 0);
    let is_whole = loop {
        let next = poll_fn(|context| {
            // The timer must also stop a body that is always ready.
            if alarm.as_mut().as_pin_mut().is_some_and(|alarm| alarm.poll(context).is_ready()) {
                return Poll::Ready(None);
            }
            if unbroken >= FRAMES_PER_TURN {
                unbroken = 0;
                others_first(context);
                return Poll::Pending;
            }
            let polled = Pin::new(&mut body).poll_frame(context);
            unbroken = if polled.is_pending() { 0 } else { unbroken + 1 };
            polled.map(Some)
        });
        match next.await {
            None => break false,
            Some(None) => {
                is_over = true;
                // A response to HEAD may announce the length of the GET response without having
                // content.
                break promised.is_none_or(|length| length == held.length());
            }
            Some(Some(frame)) => match frame.map(Frame::into_data) {
                Ok(Ok(data)) => {
                    held.add(data);
                    charge.set(held.memory_bytes());
                    if held.length() > bytes_max || filling() >= Filling::Full {
                        break false;
                    }
                }
                Ok(Err(trailers)) => {
                    last = Some(Ok(trailers));
                    break false;
                }
                Err(error) => {
                    last = Some(Err(error));
                    break false;
                }
            },
        }
    };
    let read = held.into_bytes();
    if is_whole {
        return Gathered::Whole(read);
    }
    Gathered::Other(Body::new(Replayed { read, last, rest: body, is_over, charge }))
}

/// The content read so far. Small pieces are copied together: each `Bytes` costs more than its
/// content.
#[derive(Default)]
struct Held {
    /// The only piece so far, not copied.
    first: Bytes,
    all: Vec<u8>,
}

impl Held {
    fn add(&mut self, piece: Bytes) {
        if self.length() == 0 {
            self.first = piece;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.all.reserve(first.len() + piece.len());
        self.all.extend_from_slice(&first);
        self.all.extend_from_slice(&piece);
    }

    fn length(&self) -> u64 {
        (self.first.len() + self.all.len()) as u64
    }

    fn memory_bytes(&self) -> usize {
        self.first.len() + self.all.capacity()
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

/// The part already read, followed by the rest.
struct Replayed {
    read: Bytes,
    /// The frame after that, unless it was data.
    last: Option<Result<Frame<Bytes>, BodyError>>,
    rest: Body,
    /// Whether the rest has ended.
    is_over: bool,
    charge: Charge,
}

impl HttpBody for Replayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let read = std::mem::take(&mut self.read);
        if !read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        self.charge.set(0);
        if let Some(last) = self.last.take() {
            return Poll::Ready(Some(last));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.rest).poll_frame(context)
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(self.read.len() as u64 + rest),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::account::{held, limit};
    use peregrine_web::test::block_on;

    /// A body of this many pieces, without a length.
    fn body(pieces: usize, piece: &'static [u8]) -> Body {
        struct Pieces(usize, &'static [u8]);
        impl HttpBody for Pieces {
            type Data = Bytes;
            type Error = BodyError;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
                let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
                self.0 = left;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(self.1)))))
            }
        }
        Body::new(Pieces(pieces, piece))
    }

    #[test]
    fn small_pieces_take_no_more_than_their_bytes_and_are_all_there() {
        let before = held();
        for (pieces, piece) in [(10_000, &b"x"[..]), (10_000, b""), (1, b"only"), (0, b"")] {
            let all = piece.repeat(pieces);
            let whole = block_on(gather(body(pieces, piece), 10_000, None));
            assert!(matches!(&whole, Gathered::Whole(read) if *read == all), "{pieces}");
            // Longer content is sent unchanged.
            let most = all.len().saturating_sub(1) as u64;
            let Gathered::Other(other) = block_on(gather(body(pieces, piece), most, None)) else {
                assert_eq!(most, all.len() as u64, "empty content is never too long");
                continue;
            };
            assert!(held() - before <= 2 * all.len(), "{} bytes are held", held() - before);
            let other = block_on(other.into_bytes(u64::MAX)).expect("the body is complete");
            assert_eq!(other, all);
        }
        assert_eq!(held(), before);
    }

    #[test]
    fn where_the_worker_holds_as_much_as_it_may_nothing_is_gathered() {
        limit(Some(held() + 5_000));
        let gathered = block_on(gather(body(10_000, b"x"), 100_000, None));
        limit(None);
        let Gathered::Other(other) = gathered else { panic!("the worker's memory is full") };
        let other = block_on(other.into_bytes(u64::MAX)).expect("the body is complete");
        assert_eq!(other.len(), 10_000);
    }
}
