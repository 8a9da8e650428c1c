//! Parts of files, from the kernel's memory to a socket.
//!
//! It is a plain call for what the socket has room for, and the ring says when there is room for more. The ring's
//! own operation (`splice`) always takes a thread of the kernel's and a pipe.
//!
//! The call knows no `MSG_NOSIGNAL`: it counts on `SIGPIPE` being ignored, with which programs in Rust begin. A program
//! in another language that has a server as a library sees to it itself. Done here, it would change what others of the
//! process chose, or what programs inherit that handlers start.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use peregrine_driver::FilePart;

/// In place of an error number: a file did not have what it was to have.
pub(crate) const FILE_FAILED: i32 = -1;

/// What the number of a failure means, this one among them.
pub(crate) fn error_of(failed: i32) -> io::Error {
    match failed {
        FILE_FAILED => io::ErrorKind::UnexpectedEof.into(),
        code => io::Error::from_raw_os_error(code),
    }
}

/// Gives the socket what it takes now of the part beyond its first `from` bytes. Returns how many bytes that was,
/// and the error number that ended it, if one did: that of the socket, or [`FILE_FAILED`]. A kernel that is short of
/// memory takes nothing, and may do better soon.
pub(crate) fn send(socket: BorrowedFd<'_>, part: &FilePart, from: usize) -> (usize, i32) {
    let _mode = match NonBlocking::set(socket) {
        Ok(mode) => mode,
        Err(error) => return (0, error.raw_os_error().unwrap_or(libc::EPIPE)),
    };
    let left = part.length - from;
    let Ok(mut at) = libc::off64_t::try_from(part.at + from as u64) else {
        return (0, FILE_FAILED);
    };
    loop {
        match send_now(socket, part, &mut at, left) {
            Ok(0) => return (0, FILE_FAILED),
            Ok(sent) => return (sent, 0),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return (0, 0),
                Some(code) if FilePart::is_at_fault(code) => return (0, FILE_FAILED),
                code => return (0, code.unwrap_or(libc::EPIPE)),
            },
        }
    }
}

/// One call.
fn send_now(
    socket: BorrowedFd<'_>,
    part: &FilePart,
    at: &mut libc::off64_t,
    bytes: usize,
) -> io::Result<usize> {
    #[cfg(test)]
    if let Some(tries) = tests::SHORTAGE.get() {
        tests::SHORTAGE.set(Some(tries + 1));
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    // SAFETY: both descriptors are open, and the kernel writes `at` only.
    let sent = unsafe { libc::sendfile64(socket.as_raw_fd(), part.file.as_raw_fd(), at, bytes) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A socket that does not let calls wait, for as long as this lives.
///
/// At other times it does: operations of the ring wait only on such sockets. Those under way are not
/// concerned: the kernel looks at the mode when an operation is submitted, and none is while this lives.
struct NonBlocking<'a>(BorrowedFd<'a>);

impl<'a> NonBlocking<'a> {
    fn set(socket: BorrowedFd<'a>) -> io::Result<Self> {
        set_mode(socket, 1)?;
        Ok(Self(socket))
    }
}

impl Drop for NonBlocking<'_> {
    fn drop(&mut self) {
        // What could be set can be set back.
        let _ = set_mode(self.0, 0);
    }
}

/// One call, where `fcntl` would take two.
fn set_mode(socket: BorrowedFd<'_>, is_non_blocking: libc::c_int) -> io::Result<()> {
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
        /// The kernel is short of memory, and was asked so often.
        pub(super) static SHORTAGE: Cell<Option<u32>> = const { Cell::new(None) };
    }

    #[test]
    fn a_kernel_short_of_memory_is_asked_again_but_not_without_a_pause() {
        let content = vec![7; 100_000];
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&content).expect("there is room");
        let part = FilePart { file: Arc::new(file), at: 0, length: content.len() };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let reader = std::thread::spawn(move || {
            let (mut all, mut peer) = (Vec::new(), TcpStream::connect(address)?);
            peer.read_to_end(&mut all).map(|_| all)
        });
        let serve = async |driver: Uring| {
            let listener = driver.listen(Socket::Tcp(listener))?;
            let stream = listener.accept().await?;
            SHORTAGE.set(Some(0));
            stream.send_file(&mut Vec::new(), part);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let tries = SHORTAGE.take();
            stream.finish();
            stream.sent().await.map(|()| tries)
        };
        let tries = Uring::run(&Options::default(), serve).expect("a ring");
        let tries = tries.expect("all is sent").expect("memory was short");
        assert!((3..50).contains(&tries), "{tries}");
        let received = reader.join().expect("it reads").expect("an orderly end");
        assert!(received == content, "{} bytes came", received.len());
    }
}
