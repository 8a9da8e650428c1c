//! One accepted socket of either family, behind one set of polls.

use std::future::Future;
use std::io::{self, IoSlice, Read};
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use peregrine_driver::{Address, Credentials, FilePart, Passed};
use socket2::SockRef;
#[cfg(target_os = "linux")]
use tokio::io::Interest;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::{UnixStream, unix};

/// An accepted socket, registered with the runtime.
pub(crate) enum Connection {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Connection {
    /// Registers what was passed by another worker, whose runtime had it before: it does not block.
    pub(crate) fn adopt(passed: Passed) -> io::Result<Self> {
        match passed {
            Passed::Tcp(socket) => TcpStream::from_std(socket).map(Self::Tcp),
            #[cfg(unix)]
            Passed::Unix(socket) => UnixStream::from_std(socket).map(Self::Unix),
        }
    }

    /// The socket, without the runtime.
    pub(crate) fn pass(self) -> io::Result<Passed> {
        match self {
            Self::Tcp(socket) => socket.into_std().map(Passed::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => socket.into_std().map(Passed::Unix),
        }
    }

    /// Reads once, or arranges a wake-up. `AsyncRead` is used, not `try_read`, because it alone
    /// takes a read that leaves room in the buffer as proof that the socket is empty, which saves
    /// a second read per message that would only say so.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let read = match self {
            Self::Tcp(socket) => Pin::new(socket).poll_read(context, &mut buffer),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_read(context, &mut buffer),
        };
        ready!(read)?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// As `poll_read`, into the room that `bytes` has.
    pub(crate) fn poll_read_more(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        // Dropping the future after one poll loses nothing, and the wake-up stays arranged.
        match self {
            Self::Tcp(socket) => pin!(socket.read_buf(bytes)).poll(context),
            #[cfg(unix)]
            Self::Unix(socket) => pin!(socket.read_buf(bytes)).poll(context),
        }
    }

    /// Reads what the kernel has, without waiting and without asking the runtime first.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.socket()).read(buffer)
    }

    /// Waits until a read is worth trying.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => socket.poll_read_ready(context),
            #[cfg(unix)]
            Self::Unix(socket) => socket.poll_read_ready(context),
        }
    }

    /// Writes once, or arranges a wake-up.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        }
    }

    /// The same with two pieces in one call.
    pub(crate) fn poll_write_both(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>; 2],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, pieces),
        }
    }

    /// The same with bytes before those of a file, which wait a moment for them in order to share a packet.
    #[cfg(target_os = "linux")]
    pub(crate) fn poll_write_before_file(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let flags = nix::libc::MSG_MORE | nix::libc::MSG_NOSIGNAL;
        self.poll_when_writable(context, |socket| {
            SockRef::from(&socket).send_with_flags(bytes, flags)
        })
    }

    /// Writes once from a file, beyond the first `from` bytes of its part, or arranges a wake-up. A kernel that is short
    /// of memory is an error of the connection, as of any other write: the runtime could only ask again at once.
    ///
    /// The call knows no `MSG_NOSIGNAL`: it counts on `SIGPIPE` being ignored, with which programs in Rust begin. A
    /// program in another language that has a server as a library sees to it itself.
    #[cfg(target_os = "linux")]
    pub(crate) fn poll_write_file(
        &mut self,
        context: &mut Context<'_>,
        part: &FilePart,
        from: usize,
    ) -> Poll<io::Result<usize>> {
        let too_short = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let at = i64::try_from(part.at + from as u64).map_err(|_| too_short())?;
        self.poll_when_writable(context, |socket| {
            let mut at = at;
            let left = part.length - from;
            match nix::sys::sendfile::sendfile64(socket, &part.file, Some(&mut at), left) {
                Ok(0) => Err(too_short()),
                Ok(sent) => Ok(sent),
                Err(code) if FilePart::is_at_fault(code as i32) => Err(too_short()),
                Err(code) => Err(code.into()),
            }
        })
    }

    /// Does something that does not wait, as often as the socket seems to have room and has none.
    #[cfg(target_os = "linux")]
    fn poll_when_writable(
        &self,
        context: &mut Context<'_>,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(match self {
                Self::Tcp(socket) => socket.poll_write_ready(context),
                Self::Unix(socket) => socket.poll_write_ready(context),
            })?;
            let wrote = match self {
                Self::Tcp(socket) => socket.try_io(Interest::WRITABLE, || write(socket.as_fd())),
                Self::Unix(socket) => socket.try_io(Interest::WRITABLE, || write(socket.as_fd())),
            };
            match wrote {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                wrote => return Poll::Ready(wrote),
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn poll_write_before_file(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write(context, bytes)
    }

    /// There is no call for it here, and so nobody asks for it.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn poll_write_file(
        &mut self,
        _: &mut Context<'_>,
        _: &FilePart,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Ends the sending side. It never waits.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            #[cfg(unix)]
            Self::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }

    /// Lets closing reset the connection. Where that cannot be set, it is closed in order.
    pub(crate) fn reset_on_drop(&self) {
        let _ = self.socket().set_linger(Some(Duration::ZERO));
    }

    /// Is there an error that the kernel keeps for the next call? It is gone with this.
    pub(crate) fn is_broken(&self) -> bool {
        self.socket().take_error().is_ok_and(|error| error.is_some())
    }

    /// The socket, for what the runtime has no call for.
    fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(socket) => SockRef::from(socket),
            #[cfg(unix)]
            Self::Unix(socket) => SockRef::from(socket),
        }
    }

    /// The peer's end, asked from the kernel: an idle connection does not keep it.
    pub(crate) fn peer(&self) -> Address {
        match self {
            Self::Tcp(socket) => socket.peer_addr().map_or(Address::Unknown, Address::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => socket.peer_addr().map_or(Address::Unknown, |a| unix_address(&a)),
        }
    }

    /// Whose process the peer is, asked from the kernel.
    pub(crate) fn credentials(&self) -> Option<Credentials> {
        match self {
            Self::Tcp(_) => None,
            #[cfg(unix)]
            Self::Unix(socket) => {
                let told = socket.peer_cred().ok()?;
                // Zero is a process of another namespace.
                let pid = told.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
                Some(Credentials { uid: told.uid(), gid: told.gid(), pid })
            }
        }
    }

    /// Our end, asked from the kernel.
    pub(crate) fn local(&self) -> Address {
        match self {
            Self::Tcp(socket) => socket.local_addr().map_or(Address::Unknown, Address::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => {
                socket.local_addr().map_or(Address::Unknown, |a| unix_address(&a))
            }
        }
    }
}

/// A Unix address in the contract's words.
#[cfg(unix)]
pub(crate) fn unix_address(address: &unix::SocketAddr) -> Address {
    Address::Unix(address.as_pathname().map(Into::into))
}
