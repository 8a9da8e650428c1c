//! Reads the first SETTINGS frame of an HTTP/2 server, for the maximum number of concurrent
//! requests. hyper obeys that limit by delaying further requests, but does not report it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// RFC 9113 §4.1: length, type, flags, stream.
const HEAD_BYTES: usize = 9;
/// RFC 9113 §4.2: the maximum length of a frame until this side allows longer ones.
const PAYLOAD_BYTES_MAX: usize = 16 * 1024;
const SETTINGS: u8 = 4;
/// RFC 9113 §6.5.2: SETTINGS_MAX_CONCURRENT_STREAMS.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// The state of the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    /// The maximum number of concurrent requests; `None` means unlimited.
    Settings(Option<u32>),
    /// The connection ended, or the first frame is not SETTINGS.
    Else,
}

/// Receives the server's settings from [`Listened`].
pub(crate) struct Greeting {
    heard: Cell<Heard>,
    waiter: RefCell<Option<Waker>>,
}

impl Greeting {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { heard: Cell::new(Heard::Nothing), waiter: RefCell::default() })
    }

    /// Waits for the settings, and returns the maximum number of concurrent requests, if there is
    /// one.
    ///
    /// # Errors
    /// The server does not speak HTTP/2, or closed the connection.
    pub(crate) async fn streams_max(&self) -> io::Result<Option<u32>> {
        poll_fn(|context| match self.heard.get() {
            Heard::Settings(most) => Poll::Ready(Ok(most)),
            Heard::Else => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server does not speak HTTP/2",
            ))),
            Heard::Nothing => {
                *self.waiter.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Reports that the connection has ended.
    pub(crate) fn end(&self) {
        self.hear(Heard::Else);
    }

    fn hear(&self, what: Heard) {
        if self.heard.get() == Heard::Nothing {
            self.heard.set(what);
            if let Some(waiter) = self.waiter.take() {
                waiter.wake();
            }
        }
    }
}

/// A stream that parses its first frame.
pub(crate) struct Listened<T> {
    stream: T,
    greeting: Rc<Greeting>,
    /// The bytes received of the first frame; `None` once it was parsed.
    first: Option<Vec<u8>>,
}

impl<T> Listened<T> {
    pub(crate) fn new(stream: T, greeting: &Rc<Greeting>) -> Self {
        Self { stream, greeting: Rc::clone(greeting), first: Some(Vec::new()) }
    }

    fn listen(&mut self, bytes: &[u8]) {
        let Some(first) = &mut self.first else { return };
        first.extend_from_slice(&bytes[..bytes.len().min(HEAD_BYTES + PAYLOAD_BYTES_MAX)]);
        let heard = heard(first);
        if heard != Heard::Nothing {
            self.greeting.hear(heard);
            self.first = None;
        }
    }
}

/// Parses the beginning of a connection.
fn heard(bytes: &[u8]) -> Heard {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return Heard::Nothing };
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    if head[3] != SETTINGS || length > PAYLOAD_BYTES_MAX {
        return Heard::Else;
    }
    let Some(payload) = rest.get(..length) else { return Heard::Nothing };
    // The last of several values applies.
    let settings = payload.chunks_exact(6).rev();
    let mut most = settings.filter_map(|setting| {
        let (name, value) = setting.split_first_chunk()?;
        let value = value.first_chunk().copied().map(u32::from_be_bytes);
        value.filter(|_| u16::from_be_bytes(*name) == MAX_CONCURRENT_STREAMS)
    });
    Heard::Settings(most.next())
}

impl<T: AsyncRead + Unpin> AsyncRead for Listened<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.listen(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Listened<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_says_how_many_requests_there_may_be_however_it_comes() {
        let settings = |settings: &[(u16, u32)]| {
            let length = u8::try_from(settings.len() * 6).expect("short settings");
            let mut frame = vec![0, 0, length, SETTINGS, 0, 0, 0, 0, 0];
            for (name, value) in settings {
                frame.extend(name.to_be_bytes());
                frame.extend(value.to_be_bytes());
            }
            frame
        };
        for (frame, expected) in [
            (settings(&[]), Heard::Settings(None)),
            (settings(&[(1, 9)]), Heard::Settings(None)),
            (settings(&[(3, 9)]), Heard::Settings(Some(9))),
            (settings(&[(3, 9), (4, 65_535), (3, 0)]), Heard::Settings(Some(0))),
            (b"HTTP/1.1 400 Bad".to_vec(), Heard::Else),
            (vec![0xff; 9], Heard::Else),
            (vec![0, 0x40, 1, SETTINGS, 0, 0, 0, 0, 0], Heard::Else),
        ] {
            assert_eq!(heard(&frame), expected, "{frame:?}");
            let followed = [&frame[..], b"\0\0\0\x04\x01"].concat();
            let whole = if expected == Heard::Else { &frame } else { &followed };
            assert_eq!(heard(whole), expected);
            for end in 0..frame.len() {
                let part = heard(&frame[..end]);
                assert!(part == Heard::Nothing || part == expected, "{end} of {frame:?}");
            }
        }
    }
}
