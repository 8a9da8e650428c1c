//! The listening sockets that one process passes to the next.

use peregrine_driver::Socket;
use peregrine_server::SocketSharing;
#[cfg(feature = "tls")]
use peregrine_tls::TicketKeys;
use std::fmt;

/// A file's device, inode number and modification time: inode numbers alone are soon reused.
#[cfg(unix)]
pub type FileId = (u64, u64, i64, i64);

/// The secrets of the session tickets with which clients resume TLS sessions.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TicketSecrets(pub Vec<[u8; 32]>);

impl fmt::Debug for TicketSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

/// The sockets of one listen address, in the form in which a successor gets them.
#[derive(Debug)]
pub struct ListenerFds {
    /// The key by which the successor identifies the address.
    pub key: String,
    /// Each socket has its own accept queue in the kernel.
    pub sockets: Vec<Socket>,
    /// The identity of the Unix domain socket's file, if the server removes it at the end.
    #[cfg(unix)]
    pub file_id: Option<FileId>,
    /// Whether another process also has the sockets at present.
    pub sharing: SocketSharing,
    /// Whether the sockets were created outside of this server, by the application or by a service
    /// manager, which keeps them open.
    pub is_external: bool,
    /// The keys of the session tickets issued at this address.
    #[cfg(feature = "tls")]
    pub ticket_keys: Option<TicketKeys>,
}

#[cfg(all(target_os = "linux", feature = "restart"))]
impl ListenerFds {
    /// Returns the current secrets of the session tickets.
    pub(crate) fn ticket_secrets(&self) -> TicketSecrets {
        #[cfg(feature = "tls")]
        return TicketSecrets(
            self.ticket_keys.as_ref().map(TicketKeys::secrets).unwrap_or_default(),
        );
        #[cfg(not(feature = "tls"))]
        TicketSecrets::default()
    }
}

/// The sockets of one listen address, passed on by the predecessor.
#[derive(Debug)]
pub struct InheritedListener {
    /// The sockets, at least one.
    pub sockets: Vec<Socket>,
    /// The identity of the Unix domain socket's file, if the server removes it at the end.
    #[cfg(unix)]
    pub file_id: Option<FileId>,
    /// Whether the predecessor also has the sockets at present.
    pub sharing: SocketSharing,
    /// Whether the sockets were created outside of this server, by the application or by a service
    /// manager, which keeps them open.
    pub is_external: bool,
    /// The secrets with which the predecessor encrypted session tickets.
    pub ticket_secrets: TicketSecrets,
}
