//! One accepted socket of either family, with a common set of poll functions.

use std::future::Future;
use std::io::{self, IoSlice, Read};
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use peregrine_driver::{Address, FileRange, Handoff, UnixCredentials};
use socket2::SockRef;
#[cfg(target_os = "linux")]
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::{UnixStream, unix};

/// An accepted socket, registered with the runtime.
pub(crate) enum AsyncSocket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl AsyncSocket {
    /// Registers a connection passed by another worker, which is already non-blocking.
    pub(crate) fn from_handoff(handoff: Handoff) -> io::Result<Self> {
        match handoff {
            Handoff::Tcp(socket) => TcpStream::from_std(socket).map(Self::Tcp),
            #[cfg(unix)]
            Handoff::Unix(socket) => UnixStream::from_std(socket).map(Self::Unix),
        }
    }

    /// Deregisters the socket and returns it.
    pub(crate) fn into_handoff(self) -> io::Result<Handoff> {
        match self {
            Self::Tcp(socket) => socket.into_std().map(Handoff::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => socket.into_std().map(Handoff::Unix),
        }
    }

    /// Reads once, or arranges a wake-up. Uses `AsyncRead`, not `try_read`, because only
    /// `AsyncRead` treats a read that does not fill the buffer as proof that the socket is empty.
    /// This saves a second read per message.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = match self {
            Self::Tcp(socket) => Pin::new(socket).poll_read(cx, &mut buffer),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_read(cx, &mut buffer),
        };
        ready!(read)?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Like `poll_read`, into the spare capacity of `bytes`.
    pub(crate) fn poll_read_buf(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        // Dropping the future after one poll loses no data, and the waker stays registered.
        match self {
            Self::Tcp(socket) => pin!(socket.read_buf(bytes)).poll(cx),
            #[cfg(unix)]
            Self::Unix(socket) => pin!(socket.read_buf(bytes)).poll(cx),
        }
    }

    /// Reads without waiting and without checking readiness first.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.sock_ref()).read(buffer)
    }

    /// Waits until the socket may be readable.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.poll_read_ready(cx),
            #[cfg(unix)]
            Self::Unix(socket) => socket.poll_read_ready(cx),
        }
    }

    /// Writes once, or arranges a wake-up.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_write(cx, bytes),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write(cx, bytes),
        }
    }

    /// Like `poll_write`, with two buffers in one call.
    pub(crate) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>; 2],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(cx, bufs),
        }
    }

    /// Like `poll_write`, for bytes that precede those of a file. The kernel holds them back
    /// briefly, so that both share a packet.
    #[cfg(target_os = "linux")]
    pub(crate) fn poll_write_more(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let flags = nix::libc::MSG_MORE | nix::libc::MSG_NOSIGNAL;
        self.poll_when_writable(cx, |socket| SockRef::from(&socket).send_with_flags(bytes, flags))
    }

    /// Writes once from a file, starting after the first `start` bytes of `range`, or arranges a
    /// wake-up. If the kernel is short of memory, the connection fails, as for any other write: the
    /// driver could only retry immediately.
    ///
    /// `sendfile` has no `MSG_NOSIGNAL`, so this relies on `SIGPIPE` being ignored, which is the
    /// default of Rust programs. A program in another language that uses the server as a library
    /// must ignore the signal itself.
    #[cfg(target_os = "linux")]
    pub(crate) fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        range: &FileRange,
        start: usize,
    ) -> Poll<io::Result<usize>> {
        let too_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let offset = i64::try_from(range.offset + start as u64).map_err(|_| too_short())?;
        self.poll_when_writable(cx, |socket| {
            let mut offset = offset;
            let remaining = range.len - start;
            match nix::sys::sendfile::sendfile64(socket, &range.file, Some(&mut offset), remaining)
            {
                Ok(0) => Err(too_short()),
                Ok(sent) => Ok(sent),
                Err(code) if FileRange::is_file_error(code as i32) => Err(too_short()),
                Err(code) => Err(code.into()),
            }
        })
    }

    /// Calls `write`, which does not wait, and retries if the socket seemed writable but was not.
    #[cfg(target_os = "linux")]
    fn poll_when_writable(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(match self {
                Self::Tcp(socket) => socket.poll_write_ready(cx),
                Self::Unix(socket) => socket.poll_write_ready(cx),
            })?;
            let result = match self {
                Self::Tcp(socket) => socket.try_io(Interest::WRITABLE, || write(socket.as_fd())),
                Self::Unix(socket) => socket.try_io(Interest::WRITABLE, || write(socket.as_fd())),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn poll_write_more(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write(cx, bytes)
    }

    /// Never called: without such a system call, `supports_sendfile` returns false.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn poll_sendfile(
        &mut self,
        _: &mut Context<'_>,
        _: &FileRange,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Shuts down sending. Never waits.
    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(cx),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(cx),
        }
    }

    /// Makes closing the socket reset the connection. If the option cannot be set, the connection
    /// is closed normally.
    pub(crate) fn reset_on_drop(&self) {
        let _ = self.sock_ref().set_linger(Some(Duration::ZERO));
    }

    /// Returns whether the kernel has a pending error, and clears it.
    pub(crate) fn is_broken(&self) -> bool {
        self.sock_ref().take_error().is_ok_and(|error| error.is_some())
    }

    /// The socket, for calls that the runtime does not offer.
    fn sock_ref(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(socket) => SockRef::from(socket),
            #[cfg(unix)]
            Self::Unix(socket) => SockRef::from(socket),
        }
    }

    /// The peer's address, from the kernel: an idle connection does not store it.
    pub(crate) fn peer_addr(&self) -> Address {
        match self {
            Self::Tcp(socket) => socket.peer_addr().map_or(Address::Unknown, Address::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => {
                socket.peer_addr().map_or(Address::Unknown, |address| unix_address(&address))
            }
        }
    }

    /// The credentials of the peer's process, from the kernel.
    pub(crate) fn peer_credentials(&self) -> Option<UnixCredentials> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(unix)]
            Self::Unix(socket) => {
                let credentials = socket.peer_cred().ok()?;
                // Zero means a process in another namespace.
                let pid = credentials
                    .pid()
                    .and_then(|pid| u32::try_from(pid).ok())
                    .filter(|pid| *pid > 0);
                Some(UnixCredentials { uid: credentials.uid(), gid: credentials.gid(), pid })
            }
        }
    }

    /// The local address, from the kernel.
    pub(crate) fn local_addr(&self) -> Address {
        match self {
            Self::Tcp(socket) => socket.local_addr().map_or(Address::Unknown, Address::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => {
                socket.local_addr().map_or(Address::Unknown, |address| unix_address(&address))
            }
        }
    }
}

/// Converts a Unix socket address.
#[cfg(unix)]
pub(crate) fn unix_address(address: &unix::SocketAddr) -> Address {
    Address::Unix(address.as_pathname().map(Into::into))
}
