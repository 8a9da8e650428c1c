//! Listening sockets, the addresses of connections, and the processes at the other end.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A bound, listening socket of this machine, for drivers that use the kernel.
///
/// Several workers, and other processes, may listen on duplicates of one socket. Duplicates share
/// its options and flags: drivers may set `O_NONBLOCK` for all duplicates, and none clears it. The
/// owner of another duplicate must expect that accepting does not block.
#[derive(Debug)]
pub enum Socket {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl From<std::net::TcpListener> for Socket {
    fn from(listener: std::net::TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(unix)]
impl From<std::os::unix::net::UnixListener> for Socket {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// The address of one end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Address {
    /// TCP over IPv4 or IPv6.
    Tcp(SocketAddr),
    /// A Unix domain socket, with its path if it has one.
    Unix(Option<PathBuf>),
    /// The kernel did not report the address, or the driver does not use the kernel.
    #[default]
    Unknown,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Self::Unix(None) => f.write_str("unix:(unnamed)"),
            Self::Unknown => f.write_str("(unknown)"),
        }
    }
}

/// The process at the other end of a Unix domain socket, as recorded by the kernel when it
/// connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnixCredentials {
    /// The effective user ID of the process.
    pub uid: u32,
    /// The group ID of the process.
    pub gid: u32,
    /// The process ID; `None` if the system does not report it, or if the process has no ID in this
    /// process's namespace.
    pub pid: Option<u32>,
}
