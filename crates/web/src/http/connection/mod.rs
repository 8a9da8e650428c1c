//! Facts about the connection that a request came on.

mod client_identity;
pub(crate) mod proxy_protocol;

pub use self::client_identity::ClientIdentity;
pub use self::proxy_protocol::{Proxied, ProxiedTls};

use crate::http::client::TrustedProxies;
use std::any::Any;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Facts about a connection, shared by all its requests. A copy is cheap, and may travel to another
/// thread with a task that a handler spawns or a request to a mounted service.
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// The other end. Behind a PROXY header it is the client as the proxy tells it, and
    /// [`ConnectionInfo::proxy`] has the proxy.
    pub peer: Peer,
    /// The address the peer connected to, shared by connections with the same one.
    pub local: Arc<Peer>,
    /// What the TLS handshake agreed on; `None` on a plain connection.
    pub tls: Option<Arc<TlsInfo>>,
    /// Whether a plain connection comes from a gateway that has spoken TLS with the client: what
    /// `Limits::behind_gateway` says.
    pub behind_gateway: bool,
    /// What a PROXY header told; `None` without one.
    pub proxy: Option<Arc<Proxied>>,
    /// The trusted proxies, if the peer is one of them: what its requests say about their clients counts. See
    /// [`Client`](crate::Client).
    pub proxies: Option<Arc<TrustedProxies>>,
    /// Room for a value that mounted services keep with a connection.
    #[doc(hidden)]
    pub companion: Companion,
    /// The worker that counts its requests ([`crate::in_progress`]); 0 where there is none.
    #[doc(hidden)]
    pub worker: u64,
}

impl ConnectionInfo {
    /// Did the client speak TLS, with this server or with the gateway before it? Of a request,
    /// [`Client::is_secure`](crate::Client::is_secure) knows more.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        let is_proxied_so = || self.proxy.as_ref().is_some_and(|proxy| proxy.is_secure());
        self.tls.is_some() || self.behind_gateway || is_proxied_so()
    }

    /// Who the client is, if it has shown a certificate.
    #[must_use]
    pub fn client(&self) -> Option<&Arc<ClientIdentity>> {
        self.tls.as_ref()?.client.as_ref()
    }
}

/// Room for one value that lives as long as the facts of a connection: from the request that put it
/// there to the connection's end, or to the last handler that holds the `Rc`. Copies of the facts begin
/// without one. The bridge to tower services uses this room.
#[doc(hidden)]
#[derive(Default)]
pub struct Companion(OnceLock<Box<dyn Any + Send + Sync>>);

impl Companion {
    /// The value, if there is one of this type.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get()?.downcast_ref()
    }

    /// The value, made if there is none; `None` if there is one of another type.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl Clone for Companion {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Companion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Companion").field("is_there", &self.0.get().is_some()).finish()
    }
}

/// One end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Peer {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix domain socket.
    Unix {
        /// The socket's path, if it has one. Client sockets mostly have none.
        path: Option<PathBuf>,
        /// The peer's process, where the system tells; always `None` for our own end.
        credentials: Option<Credentials>,
    },
    /// There is no network, as in a test.
    #[default]
    None,
}

/// The process that connected a Unix domain socket, as the kernel noted it at that moment.
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::web::connection::Credentials;
///
/// // Only who runs as root may ask.
/// async fn admin(request: Request) -> Response {
///     match request.parts.connection().peer.credentials() {
///         Some(Credentials { uid: 0, .. }) => "hello, root".into_response(),
///         _ => StatusCode::FORBIDDEN.into_response(),
///     }
/// }
/// let app = App::new().get("/admin", admin);
/// assert_eq!(app.test().get("/admin").send_now().status(), 403);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The user that the process ran as (the effective one).
    pub uid: u32,
    /// The group that the process ran as.
    pub gid: u32,
    /// The process id; `None` where the system does not tell it, or where the process has no id in this
    /// process's namespace.
    pub pid: Option<u32>,
}

impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pid) = self.pid {
            write!(f, "pid {pid}, ")?;
        }
        write!(f, "uid {}, gid {}", self.uid, self.gid)
    }
}

impl Peer {
    /// The address, if this end is TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            _ => None,
        }
    }

    /// The peer's process, if this is a Unix domain socket's peer and the system tells.
    #[must_use]
    pub fn credentials(&self) -> Option<Credentials> {
        match self {
            Self::Unix { credentials, .. } => *credentials,
            _ => None,
        }
    }
}

impl fmt::Display for Peer {
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

/// What a TLS handshake agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsInfo {
    /// `TLSv1.3` or `TLSv1.2`.
    pub version: &'static str,
    /// The cipher suite's name, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: &'static str,
    /// The server name that the peer asked for (SNI).
    pub server_name: Option<String>,
    /// The application protocol that was agreed on (ALPN), such as `http/1.1`.
    pub protocol: Option<Vec<u8>>,
    /// Was an earlier session resumed?
    pub resumed: bool,
    /// Who the client is, if it has shown a certificate, in this handshake or in that of the session it
    /// resumed.
    pub client: Option<Arc<ClientIdentity>>,
}
