//! Whether a listener's connections begin with a PROXY header, and what that tells.

use peregrine_proto::proxy::{Addresses, Header, Ssl, kind};
use peregrine_web::client::Networks;
use peregrine_web::connection::{ConnectionInfo, Peer, Proxied, ProxiedTls};
use std::sync::Arc;

/// Whether the connections of a listener begin with a PROXY header, of version 1 or 2, by which a proxy tells whose
/// connections it passes on. The client's address is the peer's then
/// ([`ConnectionInfo::peer`](peregrine_web::connection::ConnectionInfo::peer)).
///
/// The header must be whole within the time for the first request ([`Limits::first_byte_timeout`]), or with
/// TLS for the handshake ([`Limits::handshake_timeout`]), of which it takes a part. A connection whose header is
/// malformed is closed. One on which the proxy speaks for itself (`LOCAL`), as it does to see whether the server is
/// there, keeps the proxy's address.
///
/// [`Limits::first_byte_timeout`]: crate::Limits::first_byte_timeout
/// [`Limits::handshake_timeout`]: crate::Limits::handshake_timeout
///
/// ```
/// use peregrine::{Listener, ProxyProtocol, Server};
///
/// let balanced = Listener::at("0.0.0.0:8443")
///     .proxy_protocol(ProxyProtocol::required().from(["10.0.0.0/8"]));
/// let server = Server::new().listen(balanced);
/// # let _ = server;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProtocol {
    is_required: bool,
    from: Option<Networks>,
    pub(crate) header_bytes_max: usize,
}

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// The application's protocol, or TLS.
    Itself,
    /// A PROXY header, or that, where none is required.
    Header,
    /// Nothing that would be read.
    Refused,
}

impl ProxyProtocol {
    /// Every connection must begin with a header, and come from an address that is trusted: this machine, private
    /// networks ([`Networks::private`]) and Unix domain sockets, unless [`ProxyProtocol::from`] says
    /// otherwise. Others are closed.
    #[must_use]
    pub fn required() -> Self {
        Self { is_required: true, from: Some(Networks::private()), header_bytes_max: 4096 }
    }

    /// Connections from addresses that are trusted may begin with a header, and others do not. Who is trusted
    /// [`ProxyProtocol::from`] must say.
    #[must_use]
    pub fn optional() -> Self {
        Self { is_required: false, from: None, ..Self::required() }
    }

    /// Sets who is trusted: addresses (`10.0.0.7`), networks (`10.0.0.0/8`), and `unix:` for whoever connects to a
    /// Unix domain socket. A text that is none of these is an error when the server starts.
    #[must_use]
    pub fn from(mut self, networks: impl IntoIterator<Item: AsRef<str>>) -> Self {
        self.from = Some(Networks::read(networks));
        self
    }

    /// Sets the longest header of version 2 that is read, in bytes. Default 4096: certificates of clients may need
    /// more. Passing it: close.
    #[must_use]
    pub fn header_bytes_max(mut self, bytes_max: usize) -> Self {
        self.header_bytes_max = bytes_max;
        self
    }

    /// Must there be a header?
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// What is wrong with the settings.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match &self.from {
            None => Some("`ProxyProtocol::optional()` must say whom to believe: add `.from([..])`"),
            Some(networks) if networks.is_empty() && networks.fault().is_none() => {
                Some("nobody is trusted to send PROXY headers: name them in `.from([..])`")
            }
            Some(networks) => networks.fault(),
        }
    }

    /// What a connection from `peer` begins with.
    pub(crate) fn beginning(&self, peer: &Peer) -> Beginning {
        let is_trusted = self.from.as_ref().is_some_and(|networks| networks.has(peer));
        match (is_trusted, self.is_required) {
            (true, _) => Beginning::Header,
            (false, true) => Beginning::Refused,
            (false, false) => Beginning::Itself,
        }
    }
}

/// The facts about a connection that began with `header`. Who is trusted is left as it was.
pub(crate) fn told(info: &ConnectionInfo, header: &Header<'_>) -> ConnectionInfo {
    let mut info = info.clone();
    if header.addresses == Addresses::Local {
        return info;
    }
    let mut proxied = Proxied {
        by: info.peer.clone(),
        local: Arc::clone(&info.local),
        version: header.version,
        ..Proxied::default()
    };
    match header.addresses {
        Addresses::Internet { source, destination } => {
            info.peer = Peer::Tcp(source);
            info.local = Arc::new(Peer::Tcp(destination));
        }
        Addresses::Unix { source, destination } => {
            info.peer = unix(source);
            info.local = Arc::new(unix(destination));
        }
        Addresses::Local | Addresses::Unknown => {}
    }
    for (kind, value) in header.values() {
        match kind {
            kind::ALPN => proxied.alpn = Some(value.to_vec()),
            kind::AUTHORITY => proxied.authority = Some(text(value)),
            kind::UNIQUE_ID => proxied.unique_id = Some(value.to_vec()),
            kind::SSL => proxied.tls = Ssl::read(value).as_ref().map(tls),
            kind::CRC32C | kind::NOOP => {}
            _ => proxied.others.push((kind, value.to_vec())),
        }
    }
    info.proxy = Some(Arc::new(proxied));
    info
}

fn tls(ssl: &Ssl<'_>) -> ProxiedTls {
    let mut tls = ProxiedTls {
        is_tls: ssl.is_tls,
        has_certificate: ssl.has_certificate,
        is_verified: ssl.is_verified,
        ..ProxiedTls::default()
    };
    for (kind, value) in ssl.values() {
        match kind {
            kind::SSL_VERSION => tls.version = Some(text(value)),
            kind::SSL_COMMON_NAME => tls.common_name = Some(text(value)),
            kind::SSL_CIPHER => tls.cipher = Some(text(value)),
            _ => tls.others.push((kind, value.to_vec())),
        }
    }
    tls
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn unix(path: &[u8]) -> Peer {
    let path = (!path.is_empty()).then(|| text(path).into());
    Peer::Unix { path, credentials: None }
}
