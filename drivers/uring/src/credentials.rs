//! The credentials of the process at the other end of a Unix domain socket.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use peregrine_driver::UnixCredentials;

/// Returns the credentials that the kernel recorded when the peer connected.
///
/// Does not use `rustix`, whose process IDs cannot be zero, because the kernel reports zero for a
/// process in another namespace.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<UnixCredentials> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `ucred` has room for `length` bytes, and any bytes are a valid `ucred`; both live
    // until the call returns, and the kernel retains neither.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(credentials.pid).ok().filter(|pid| *pid > 0);
    Ok(UnixCredentials { uid: credentials.uid, gid: credentials.gid, pid })
}
