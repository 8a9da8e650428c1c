//! Sends parts of files from the page cache to a socket.
//!
//! Uses a plain `sendfile` call for as much as the socket has room for; the ring reports when there
//! is room for more. The ring's own operation (`splice`) would always need a kernel thread and a
//! pipe.
//!
//! `sendfile` has no `MSG_NOSIGNAL`, so this module relies on `SIGPIPE` being ignored, which is the
//! default of Rust programs. A program in another language that uses the server as a library must
//! ignore the signal itself. If this module ignored it, that would override choices of the rest of
//! the process, and would be inherited by programs that handlers start.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use peregrine_driver::FileRange;

/// Used as an error number if a file was shorter than expected or could not be read.
pub(crate) const FILE_FAILED: i32 = -1;

/// Converts an error number or [`FILE_FAILED`] to an error.
pub(crate) fn to_io_error(code: i32) -> io::Error {
    match code {
        FILE_FAILED => io::ErrorKind::UnexpectedEof.into(),
        code => io::Error::from_raw_os_error(code),
    }
}

/// Sends as much of the range, without its first `start` bytes, as the socket has room for now.
/// Returns the number of bytes sent, and an error number: 0 for success, that of the socket, or
/// [`FILE_FAILED`]. If the kernel is short of memory, it sends nothing without an error; retry
/// later.
pub(crate) fn sendfile(socket: BorrowedFd<'_>, range: &FileRange, start: usize) -> (usize, i32) {
    let _mode = match NonblockingGuard::set(socket) {
        Ok(mode) => mode,
        Err(error) => return (0, error.raw_os_error().unwrap_or(libc::EPIPE)),
    };
    let remaining = range.len - start;
    let Ok(mut offset) = libc::off64_t::try_from(range.offset + start as u64) else {
        return (0, FILE_FAILED);
    };
    loop {
        match sendfile_once(socket, range, &mut offset, remaining) {
            Ok(0) => return (0, FILE_FAILED),
            Ok(sent) => return (sent, 0),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return (0, 0),
                Some(code) if FileRange::is_file_error(code) => return (0, FILE_FAILED),
                code => return (0, code.unwrap_or(libc::EPIPE)),
            },
        }
    }
}

/// Makes one system call, and advances `offset` by the bytes sent.
fn sendfile_once(
    socket: BorrowedFd<'_>,
    range: &FileRange,
    offset: &mut libc::off64_t,
    bytes: usize,
) -> io::Result<usize> {
    #[cfg(test)]
    if let Some(attempts) = tests::SHORTAGE.get() {
        tests::SHORTAGE.set(Some(attempts + 1));
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    // SAFETY: both descriptors are open, and the kernel writes only to `offset`.
    let sent =
        unsafe { libc::sendfile64(socket.as_raw_fd(), range.file.as_raw_fd(), offset, bytes) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Sets the socket to non-blocking mode until dropped.
///
/// The socket is otherwise in blocking mode, because operations of the ring wait only on blocking
/// sockets. Operations in flight are not affected: the kernel checks the mode when an operation is
/// submitted, and none is submitted while the guard exists.
struct NonblockingGuard<'a>(BorrowedFd<'a>);

impl<'a> NonblockingGuard<'a> {
    fn set(socket: BorrowedFd<'a>) -> io::Result<Self> {
        set_nonblocking(socket, 1)?;
        Ok(Self(socket))
    }
}

impl Drop for NonblockingGuard<'_> {
    fn drop(&mut self) {
        // If the mode could be set, it can be reset.
        let _ = set_nonblocking(self.0, 0);
    }
}

/// Sets the mode by one `ioctl`; `fcntl` would take two calls.
fn set_nonblocking(socket: BorrowedFd<'_>, is_non_blocking: libc::c_int) -> io::Result<()> {
    let mut mode = is_non_blocking;
    // SAFETY: the kernel reads a number from `mode`.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONBIO, &raw mut mode) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Uring;
    use peregrine_driver::{Driver, Listener, Options, Socket, Stream};
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    thread_local! {
        /// Simulates a kernel that is short of memory, and counts the attempts.
        pub(super) static SHORTAGE: Cell<Option<u32>> = const { Cell::new(None) };
    }

    #[test]
    fn sendfile_is_retried_with_pauses_while_the_kernel_is_short_of_memory() {
        let content = vec![7; 100_000];
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&content).expect("writing the file");
        let range = FileRange { file: Arc::new(file), offset: 0, len: content.len() };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a bound listener");
        let reader = std::thread::spawn(move || {
            let (mut all, mut peer) = (Vec::new(), TcpStream::connect(address)?);
            peer.read_to_end(&mut all).map(|_| all)
        });
        let serve = async |driver: Uring| {
            let listener = driver.listen(Socket::Tcp(listener))?;
            let stream = listener.accept().await?;
            SHORTAGE.set(Some(0));
            stream.send_file(&mut Vec::new(), range);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let attempts = SHORTAGE.take();
            stream.finish();
            stream.flush().await.map(|()| attempts)
        };
        let attempts = Uring::run(&Options::default(), serve).expect("a ring");
        let attempts = attempts.expect("all is sent").expect("memory was short");
        assert!((3..50).contains(&attempts), "{attempts}");
        let received = reader.join().expect("the reader").expect("a regular end");
        assert!(received == content, "received {} bytes", received.len());
    }
}
