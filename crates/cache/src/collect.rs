//! Collects a body into one buffer.

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::coop::yield_now;
use peregrine_web::memory::{MemoryPressure, MemoryReservation, pressure};
use peregrine_web::{Body, BodyError};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// The number of frames to read from an always-ready body before yielding.
const FRAMES_PER_POLL: u32 = 32;

/// The result of [`collect_body`].
pub(crate) enum Collected {
    /// The complete content.
    Complete(Bytes),
    /// A body with the content, and the trailers or error, of the original one. That one was too
    /// long or too slow, had trailers, failed, or did not have its declared length; or the worker
    /// was low on memory.
    Incomplete(Body),
}

/// Collects a body of at most `bytes_max` bytes, within `timeout` if it is set. Either result has
/// the content of the original body.
pub(crate) async fn collect_body(
    mut body: Body,
    bytes_max: u64,
    timeout: Option<Duration>,
) -> Collected {
    if body.length().is_some_and(|length| length > bytes_max) {
        return Collected::Incomplete(body);
    }
    body = match body.try_into_bytes() {
        Ok(bytes) => return Collected::Complete(bytes),
        Err(body) => body,
    };
    let declared_length = body.length();
    let (mut buffer, mut last_frame, mut reservation) =
        (BodyBuffer::default(), None, MemoryReservation::empty());
    // Without a runtime, as in tests, timers do not work.
    let timeout = timeout.filter(|_| tokio::runtime::Handle::try_current().is_ok());
    let mut timer = pin!(timeout.map(tokio::time::sleep));
    let (mut is_ended, mut ready_frames) = (false, 0);
    let is_complete = loop {
        let next = poll_fn(|cx| {
            // The timer must also stop a body that is always ready.
            if timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(cx).is_ready()) {
                return Poll::Ready(None);
            }
            if ready_frames >= FRAMES_PER_POLL {
                ready_frames = 0;
                yield_now(cx);
                return Poll::Pending;
            }
            let polled = Pin::new(&mut body).poll_frame(cx);
            ready_frames = if polled.is_pending() { 0 } else { ready_frames + 1 };
            polled.map(Some)
        });
        match next.await {
            // The time limit has passed.
            None => break false,
            Some(None) => {
                is_ended = true;
                // A response to HEAD may declare the length of the GET response without having
                // content.
                break declared_length.is_none_or(|length| length == buffer.length());
            }
            Some(Some(frame)) => match frame.map(Frame::into_data) {
                Ok(Ok(data)) => {
                    buffer.add(data);
                    reservation.resize(buffer.memory_bytes());
                    if buffer.length() > bytes_max || pressure() >= MemoryPressure::Critical {
                        break false;
                    }
                }
                Ok(Err(trailers)) => {
                    last_frame = Some(Ok(trailers));
                    break false;
                }
                Err(error) => {
                    last_frame = Some(Err(error));
                    break false;
                }
            },
        }
    };
    let buffered = buffer.into_bytes();
    if is_complete {
        return Collected::Complete(buffered);
    }
    Collected::Incomplete(Body::new(ReplayBody {
        buffered,
        last_frame,
        rest: body,
        is_ended,
        reservation,
    }))
}

/// The content read so far. From the second chunk on, all chunks are copied into one buffer,
/// because many small `Bytes` would need more memory than their content.
#[derive(Default)]
struct BodyBuffer {
    /// The only chunk so far, not copied.
    first: Bytes,
    /// All chunks, once there are several.
    merged: Vec<u8>,
}

impl BodyBuffer {
    fn add(&mut self, chunk: Bytes) {
        if self.length() == 0 {
            self.first = chunk;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.merged.reserve(first.len() + chunk.len());
        self.merged.extend_from_slice(&first);
        self.merged.extend_from_slice(&chunk);
    }

    fn length(&self) -> u64 {
        (self.first.len() + self.merged.len()) as u64
    }

    fn memory_bytes(&self) -> usize {
        self.first.len() + self.merged.capacity()
    }

    fn into_bytes(self) -> Bytes {
        if self.merged.is_empty() { self.first } else { self.merged.into() }
    }
}

/// Yields the content that was already read, then the rest of the original body.
struct ReplayBody {
    buffered: Bytes,
    /// The trailers or the error read after `buffered`, if any.
    last_frame: Option<Result<Frame<Bytes>, BodyError>>,
    rest: Body,
    /// Whether `rest` has ended and must not be polled again.
    is_ended: bool,
    reservation: MemoryReservation,
}

impl HttpBody for ReplayBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let buffered = std::mem::take(&mut self.buffered);
        if !buffered.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(buffered))));
        }
        self.reservation.resize(0);
        if let Some(frame) = self.last_frame.take() {
            return Poll::Ready(Some(frame));
        }
        if self.is_ended {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.rest).poll_frame(cx)
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(self.buffered.len() as u64 + rest),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::memory::{reserved, set_limit};
    use peregrine_web::testing::block_on;

    /// A body of this many chunks, without a length.
    fn body(chunk_count: usize, chunk: &'static [u8]) -> Body {
        struct Chunks(usize, &'static [u8]);
        impl HttpBody for Chunks {
            type Data = Bytes;
            type Error = BodyError;

            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
                let Some(remaining) = self.0.checked_sub(1) else { return Poll::Ready(None) };
                self.0 = remaining;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(self.1)))))
            }
        }
        Body::new(Chunks(chunk_count, chunk))
    }

    #[test]
    fn small_frames_are_merged_without_excess_memory() {
        let before = reserved();
        for (chunk_count, chunk) in [(10_000, &b"x"[..]), (10_000, b""), (1, b"only"), (0, b"")] {
            let content = chunk.repeat(chunk_count);
            let collected = block_on(collect_body(body(chunk_count, chunk), 10_000, None));
            assert!(
                matches!(&collected, Collected::Complete(read) if *read == content),
                "{chunk_count}"
            );
            // Longer content is sent unchanged.
            let bytes_max = content.len().saturating_sub(1) as u64;
            let Collected::Incomplete(unchanged) =
                block_on(collect_body(body(chunk_count, chunk), bytes_max, None))
            else {
                assert_eq!(bytes_max, content.len() as u64, "empty content is never too long");
                continue;
            };
            assert!(
                reserved() - before <= 2 * content.len(),
                "{} bytes are held",
                reserved() - before
            );
            let unchanged = block_on(unchanged.into_bytes(u64::MAX)).expect("the body is complete");
            assert_eq!(unchanged, content);
        }
        assert_eq!(reserved(), before);
    }

    #[test]
    fn does_not_collect_under_memory_pressure() {
        set_limit(Some(reserved() + 5_000));
        let collected = block_on(collect_body(body(10_000, b"x"), 100_000, None));
        set_limit(None);
        let Collected::Incomplete(unchanged) = collected else {
            panic!("the worker's memory is full")
        };
        let unchanged = block_on(unchanged.into_bytes(u64::MAX)).expect("the body is complete");
        assert_eq!(unchanged.len(), 10_000);
    }
}
