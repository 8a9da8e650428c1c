//! Connections being passed from one worker to another, for drivers that use the kernel.

use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

/// An accepted connection that is not attached to any worker: see
/// [`Driver::hand_off`](crate::Driver::hand_off).
///
/// Workers of the same driver pass it to each other. Whether it is non-blocking depends on the
/// driver.
#[derive(Debug)]
pub enum Handoff {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(UnixStream),
}
