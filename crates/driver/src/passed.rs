//! Connections on their way from one worker to another, for drivers that use the kernel.

use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;

/// An accepted connection of this machine that belongs to no worker: see [`Driver::pass`](crate::Driver::pass).
///
/// Workers of one driver pass it to each other, and whether its calls block is as that driver wants it.
#[derive(Debug)]
pub enum Passed {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(UnixStream),
}
