//! Content that is wanted whole.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::account::Charge;
use peregrine_web::turn::others_first;
use peregrine_web::{Body, BodyError};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// So many frames of a body that is always ready are read before others have their turn.
const FRAMES_PER_TURN: u32 = 32;

/// What became of it.
pub(crate) enum Gathered {
    /// All of the content.
    Whole(Bytes),
    /// It was too much, took too long, had trailers, broke off, or ended before the length that it promised: the body, as it was.
    Other(Body),
}

/// Reads a body to its end, if that is at most `bytes_max` away and, where that is said, comes within `time_max`. What is
/// sent instead is the same in any case.
pub(crate) async fn gather(mut body: Body, bytes_max: u64, time_max: Option<Duration>) -> Gathered {
    if body.length().is_some_and(|length| length > bytes_max) {
        return Gathered::Other(body);
    }
    body = match body.into_shared() {
        Ok(bytes) => return Gathered::Whole(bytes),
        Err(body) => body,
    };
    let promised = body.length();
    let (mut frames, mut read, mut charge) = (VecDeque::new(), 0, Charge::new());
    // Without a runtime, in tests, there is no clock to be had.
    let time_max = time_max.filter(|_| tokio::runtime::Handle::try_current().is_ok());
    let mut alarm = pin!(time_max.map(tokio::time::sleep));
    let (mut is_over, mut unbroken) = (false, 0);
    let is_whole = loop {
        let next = poll_fn(|context| {
            // Also where the body is always ready.
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
                // The answer to HEAD may have the length of what a GET would bring, and nothing else.
                break promised.is_none_or(|length| length == read);
            }
            Some(Some(frame)) => {
                let data = frame.as_ref().ok().and_then(Frame::data_ref);
                let is_data = data.is_some();
                read += data.map_or(0, |data| data.len() as u64);
                frames.push_back(frame);
                charge.set(usize::try_from(read).unwrap_or(usize::MAX));
                if !is_data || read > bytes_max {
                    break false;
                }
            }
        }
    };
    if !is_whole {
        return Gathered::Other(Body::new(Replayed { frames, rest: body, is_over, charge }));
    }
    let mut pieces = frames.into_iter().filter_map(|frame| frame.ok()?.into_data().ok());
    let first = pieces.next().unwrap_or_default();
    let Some(second) = pieces.next() else { return Gathered::Whole(first) };
    let mut all = Vec::with_capacity(usize::try_from(read).unwrap_or_default());
    all.extend_from_slice(&first);
    all.extend_from_slice(&second);
    pieces.for_each(|piece| all.extend_from_slice(&piece));
    Gathered::Whole(all.into())
}

/// What was read already, and then the rest.
struct Replayed {
    frames: VecDeque<Result<Frame<Bytes>, BodyError>>,
    rest: Body,
    /// Has the rest ended already?
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
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => {
                self.charge.set(0);
                if self.is_over {
                    return Poll::Ready(None);
                }
                Pin::new(&mut self.rest).poll_frame(context)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.frames.iter().filter_map(|frame| frame.as_ref().ok()?.data_ref());
        let read: u64 = read.map(|data| data.len() as u64).sum();
        match self.rest.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(read + rest),
            None => SizeHint::default(),
        }
    }
}
