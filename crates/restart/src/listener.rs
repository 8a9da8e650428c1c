//! The listening sockets that one process hands to the next.

use peregrine_driver::Socket;
use peregrine_server::Shared;
#[cfg(feature = "tls")]
use peregrine_tls::TicketKeys;
use std::fmt;

/// A file's device, number and time of change: numbers alone are soon reused.
#[cfg(unix)]
pub type Identity = (u64, u64, i64, i64);

/// Secrets of the tickets by which clients resume sessions of TLS.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub Vec<[u8; 32]>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// The sockets of one place, as a successor of this process would get them.
#[derive(Debug)]
pub struct Holding {
    /// By which the successor knows it.
    pub key: String,
    /// Each socket has a queue of its own in the kernel.
    pub sockets: Vec<Socket>,
    /// Of the file of a Unix socket that is removed at the end.
    #[cfg(unix)]
    pub file: Option<Identity>,
    /// Set while another process has the sockets too.
    pub shared: Shared,
    /// Others have the sockets in any case.
    pub is_foreign: bool,
    /// The keys of tickets that clients were given there.
    #[cfg(feature = "tls")]
    pub tickets: Option<TicketKeys>,
}

#[cfg(all(target_os = "linux", feature = "restart"))]
impl Holding {
    /// By which clients resume their sessions now.
    pub(crate) fn secrets(&self) -> Secrets {
        #[cfg(feature = "tls")]
        return Secrets(self.tickets.as_ref().map(TicketKeys::secrets).unwrap_or_default());
        #[cfg(not(feature = "tls"))]
        Secrets::default()
    }
}

/// The sockets of one place, handed over by the predecessor of this process.
#[derive(Debug)]
pub struct Inherited {
    /// At least one.
    pub sockets: Vec<Socket>,
    /// Of the file of a Unix socket that is removed at the end.
    #[cfg(unix)]
    pub file: Option<Identity>,
    /// Set while the predecessor has the sockets too.
    pub shared: Shared,
    /// Others have the sockets in any case.
    pub is_foreign: bool,
    /// The secrets with which the predecessor made tickets there.
    pub secrets: Secrets,
}
