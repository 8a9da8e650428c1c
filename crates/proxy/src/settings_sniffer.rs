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
enum FirstFrame {
    Pending,
    /// The maximum number of concurrent requests; `None` means unlimited.
    Settings(Option<u32>),
    /// The connection ended, or the first frame is not SETTINGS.
    Other,
}

/// Receives the server's settings from [`SettingsSniffer`].
pub(crate) struct SettingsWatcher {
    first_frame: Cell<FirstFrame>,
    waiter: RefCell<Option<Waker>>,
}

impl SettingsWatcher {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { first_frame: Cell::new(FirstFrame::Pending), waiter: RefCell::default() })
    }

    /// Waits for the settings, and returns the maximum number of concurrent requests, if there is
    /// one.
    ///
    /// # Errors
    /// The server does not speak HTTP/2, or closed the connection.
    pub(crate) async fn max_concurrent_streams(&self) -> io::Result<Option<u32>> {
        poll_fn(|cx| match self.first_frame.get() {
            FirstFrame::Settings(max) => Poll::Ready(Ok(max)),
            FirstFrame::Other => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server does not speak HTTP/2",
            ))),
            FirstFrame::Pending => {
                *self.waiter.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Reports that the connection has ended.
    pub(crate) fn close(&self) {
        self.set(FirstFrame::Other);
    }

    fn set(&self, frame: FirstFrame) {
        if self.first_frame.get() == FirstFrame::Pending {
            self.first_frame.set(frame);
            if let Some(waiter) = self.waiter.take() {
                waiter.wake();
            }
        }
    }
}

/// Wraps a connection's stream and parses the first frame received on it.
pub(crate) struct SettingsSniffer<T> {
    stream: T,
    watcher: Rc<SettingsWatcher>,
    /// The bytes received of the first frame; `None` once the frame was parsed.
    first_frame: Option<Vec<u8>>,
}

impl<T> SettingsSniffer<T> {
    pub(crate) fn new(stream: T, watcher: &Rc<SettingsWatcher>) -> Self {
        Self { stream, watcher: Rc::clone(watcher), first_frame: Some(Vec::new()) }
    }

    fn inspect(&mut self, bytes: &[u8]) {
        let Some(received) = &mut self.first_frame else { return };
        received.extend_from_slice(&bytes[..bytes.len().min(HEAD_BYTES + PAYLOAD_BYTES_MAX)]);
        let frame = parse_first_frame(received);
        if frame != FirstFrame::Pending {
            self.watcher.set(frame);
            self.first_frame = None;
        }
    }
}

/// Parses the first bytes that a server sends.
fn parse_first_frame(bytes: &[u8]) -> FirstFrame {
    let Some((head, rest)) = bytes.split_at_checked(HEAD_BYTES) else { return FirstFrame::Pending };
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    if head[3] != SETTINGS || length > PAYLOAD_BYTES_MAX {
        return FirstFrame::Other;
    }
    let Some(payload) = rest.get(..length) else { return FirstFrame::Pending };
    // The last of several values applies.
    let settings = payload.chunks_exact(6).rev();
    let mut limits = settings.filter_map(|setting| {
        let (name, value) = setting.split_first_chunk()?;
        let value = value.first_chunk().copied().map(u32::from_be_bytes);
        value.filter(|_| u16::from_be_bytes(*name) == MAX_CONCURRENT_STREAMS)
    });
    FirstFrame::Settings(limits.next())
}

impl<T: AsyncRead + Unpin> AsyncRead for SettingsSniffer<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.inspect(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SettingsSniffer<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_stream_limit_however_the_first_frame_is_split() {
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
            (settings(&[]), FirstFrame::Settings(None)),
            (settings(&[(1, 9)]), FirstFrame::Settings(None)),
            (settings(&[(3, 9)]), FirstFrame::Settings(Some(9))),
            (settings(&[(3, 9), (4, 65_535), (3, 0)]), FirstFrame::Settings(Some(0))),
            (b"HTTP/1.1 400 Bad".to_vec(), FirstFrame::Other),
            (vec![0xff; 9], FirstFrame::Other),
            (vec![0, 0x40, 1, SETTINGS, 0, 0, 0, 0, 0], FirstFrame::Other),
        ] {
            assert_eq!(parse_first_frame(&frame), expected, "{frame:?}");
            let followed = [&frame[..], b"\0\0\0\x04\x01"].concat();
            let bytes = if expected == FirstFrame::Other { &frame } else { &followed };
            assert_eq!(parse_first_frame(bytes), expected);
            for end in 0..frame.len() {
                let part = parse_first_frame(&frame[..end]);
                assert!(part == FirstFrame::Pending || part == expected, "{end} of {frame:?}");
            }
        }
    }
}
