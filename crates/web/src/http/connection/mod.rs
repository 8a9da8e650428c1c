//! Information about the connection on which a request was received.

mod client_identity;
pub(crate) mod proxy_protocol;

pub use self::client_identity::ClientIdentity;
pub use self::proxy_protocol::{ProxyProtocolInfo, ProxyProtocolTls};

use crate::http::client::TrustedProxies;
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Information about a connection, shared by all its requests. A copy is cheap and can move to
/// another thread, with a task that a handler spawns or a request to a mounted service.
#[doc(alias = "ConnectInfo")]
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// The remote end. If there is a PROXY header, it is the client that the header names, and
    /// [`ConnectionInfo::proxy_protocol`] describes the proxy.
    #[doc(alias = "remote_addr")]
    #[doc(alias = "peer_addr")]
    pub peer: ConnectionAddr,
    /// The address to which the peer connected. Connections to the same address share the value.
    pub local: Arc<ConnectionAddr>,
    /// The result of the TLS handshake; `None` on a plaintext connection.
    pub tls: Option<Arc<TlsInfo>>,
    /// Whether a plaintext connection comes from a gateway that terminates the client's TLS, as
    /// `Limits::behind_gateway` declares.
    #[doc(alias = "behind_proxy")]
    pub behind_gateway: bool,
    /// The content of the PROXY header; `None` without one.
    #[doc(alias = "PROXY")]
    pub proxy_protocol: Option<Arc<ProxyProtocolInfo>>,
    /// The trusted proxies, if the peer is one of them. What its requests report about the client
    /// is then used. See [`ClientInfo`](crate::ClientInfo).
    pub trusted_proxies: Option<Arc<TrustedProxies>>,
    /// Space for a value that a mounted service stores with the connection.
    #[doc(hidden)]
    pub data: ConnectionData,
    /// The ID of the worker that counts the connection's requests ([`crate::in_flight`]); 0 if
    /// there is none.
    #[doc(hidden)]
    pub worker_id: u64,
}

impl ConnectionInfo {
    /// Whether the client used TLS, with this server or with a gateway or proxy in front of it. For
    /// a request, [`ClientInfo::is_secure`](crate::ClientInfo::is_secure) also considers what
    /// trusted proxies report.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        let is_proxied_tls = || self.proxy_protocol.as_ref().is_some_and(|proxy| proxy.is_secure());
        self.tls.is_some() || self.behind_gateway || is_proxied_tls()
    }

    /// The client's identity, if it presented a certificate.
    #[must_use]
    pub fn client_identity(&self) -> Option<&Arc<ClientIdentity>> {
        self.tls.as_ref()?.client_identity.as_ref()
    }
}

/// Space for one value that lives as long as this [`ConnectionInfo`]: from the request that stores
/// the value until the connection closes, or until the last handler drops its `Rc` of the
/// [`ConnectionInfo`]. A clone starts without a value. The bridge to tower services uses this.
#[doc(hidden)]
#[derive(Default)]
pub struct ConnectionData(OnceLock<Box<dyn Any + Send + Sync>>);

impl ConnectionData {
    /// The value, if there is one of this type.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get()?.downcast_ref()
    }

    /// The value, created with `init` if there is none; `None` if there is a value of another type.
    pub fn get_or_init<T: Any + Send + Sync>(&self, init: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(init())).downcast_ref()
    }
}

impl Clone for ConnectionData {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for ConnectionData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionData").field("is_there", &self.0.get().is_some()).finish()
    }
}

/// One end of a connection.
#[doc(alias = "SocketAddr")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConnectionAddr {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix domain socket.
    Unix {
        /// The socket's path, if it has one. Client sockets usually have none.
        path: Option<PathBuf>,
        /// The peer's process, if the system reports it; always `None` for the local end.
        credentials: Option<PeerCredentials>,
    },
    /// No network, as in a test.
    #[default]
    None,
}

/// The process that connected a Unix domain socket, as the kernel recorded it at that time.
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::web::connection::PeerCredentials;
///
/// // Only processes of root are allowed.
/// async fn admin(request: Request) -> Response {
///     match request.parts.connection().peer.peer_credentials() {
///         Some(PeerCredentials { uid: 0, .. }) => "hello, root".into_response(),
///         _ => StatusCode::FORBIDDEN.into_response(),
///     }
/// }
/// let app = App::new().get("/admin", admin);
/// assert_eq!(app.test().get("/admin").send_blocking().status(), 403);
/// ```
#[doc(alias = "UCred")]
#[doc(alias = "SO_PEERCRED")]
#[doc(alias = "peer_cred")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerCredentials {
    /// The user that the process ran as (the effective one).
    pub uid: u32,
    /// The group that the process ran as.
    pub gid: u32,
    /// The process ID; `None` if the system does not report it, or if the process has no ID in this
    /// process's PID namespace.
    pub pid: Option<u32>,
}

impl fmt::Display for PeerCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pid) = self.pid {
            write!(f, "pid {pid}, ")?;
        }
        write!(f, "uid {}, gid {}", self.uid, self.gid)
    }
}

impl ConnectionAddr {
    /// The address, if this end is TCP.
    #[must_use]
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            _ => None,
        }
    }

    /// The peer's process, if this is the peer of a Unix domain socket and the system reports it.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        match self {
            Self::Unix { credentials, .. } => *credentials,
            _ => None,
        }
    }
}

impl fmt::Display for ConnectionAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { path: Some(path), credentials: None } => {
                write!(f, "unix:{}", path.display())
            }
            Self::Unix { path: Some(path), credentials: Some(credentials) } => {
                write!(f, "unix:{} ({credentials})", path.display())
            }
            Self::Unix { path: None, credentials: Some(credentials) } => {
                write!(f, "unix:({credentials})")
            }
            Self::Unix { path: None, credentials: None } => f.write_str("unix:(unnamed)"),
            Self::None => f.write_str("(none)"),
        }
    }
}

/// The result of a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite's name, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: &'static str,
    /// The server name that the client requested (SNI).
    pub server_name: Option<String>,
    /// The application protocol that was negotiated (ALPN), such as `http/1.1`.
    #[doc(alias = "alpn")]
    #[doc(alias = "negotiated_protocol")]
    pub alpn_protocol: Option<Vec<u8>>,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// The client's identity, if it presented a certificate in this handshake or in that of the
    /// resumed session.
    pub client_identity: Option<Arc<ClientIdentity>>,
}
