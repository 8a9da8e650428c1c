//! Parts of files, from the kernel's memory to a socket.
//!
//! It is a plain call for what the socket has room for, and the ring says when there is room for more. The ring's
//! own operation (`splice`) always takes a thread of the kernel's and a pipe.
//!
//! The call knows no `MSG_NOSIGNAL`: it counts on `SIGPIPE` being ignored, with which programs in Rust begin.

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
/// and the error number that ended it, if one did: that of the socket, or [`FILE_FAILED`].
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
        // SAFETY: both descriptors are open, and the kernel writes `at` only.
        let sent = unsafe {
            libc::sendfile64(socket.as_raw_fd(), part.file.as_raw_fd(), &raw mut at, left)
        };
        match usize::try_from(sent) {
            Ok(0) => return (0, FILE_FAILED),
            Ok(sent) => return (sent, 0),
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => return (0, 0),
                Some(code) if FilePart::is_at_fault(code) => return (0, FILE_FAILED),
                code => return (0, code.unwrap_or(libc::EPIPE)),
            },
        }
    }
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
