//! The PROXY protocol: whether connections of a listener start with a PROXY header, and what a
//! header changes.

use peregrine_proto::proxy_protocol::{Addresses, ProxyProtocolHeader, Ssl, tlv_type};
use peregrine_web::client::Networks;
use peregrine_web::connection::{
    ConnectionAddr, ConnectionInfo, ProxyProtocolInfo, ProxyProtocolTls,
};
use std::sync::Arc;

/// Whether the connections of a listener start with a PROXY header, version 1 or 2. In this header,
/// a proxy reports the address of the client. That client is then the peer of the connection
/// ([`ConnectionInfo::peer`](peregrine_web::connection::ConnectionInfo::peer)).
///
/// The header must be complete within [`Limits::first_byte_timeout`]. With TLS, the header and the
/// handshake together must be complete within [`Limits::handshake_timeout`]. A connection with a
/// malformed header is closed. If the proxy connects for itself (`LOCAL`), for example for a health
/// check, the peer remains the proxy.
///
/// [`Limits::first_byte_timeout`]: crate::Limits::first_byte_timeout
/// [`Limits::handshake_timeout`]: crate::Limits::handshake_timeout
///
/// ```
/// use peregrine::{Listener, ProxyProtocol, Server};
///
/// let balanced = Listener::bind("0.0.0.0:8443")
///     .proxy_protocol(ProxyProtocol::required().trust(["10.0.0.0/8"]));
/// let server = Server::new().listen(balanced);
/// # let _ = server;
/// ```
#[doc(alias = "real_ip")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyProtocol {
    is_required: bool,
    /// `None` until trusted peers are set, which [`ProxyProtocol::optional`] requires.
    trusted: Option<Networks>,
    pub(crate) header_bytes_max: usize,
}

/// How a connection starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preamble {
    /// It starts with the application protocol or TLS.
    None,
    /// It starts with a PROXY header, which may be absent if it is optional.
    ProxyHeader,
    /// A header is required, but the peer is not trusted to send one. The connection is closed
    /// without reading anything.
    Untrusted,
}

impl ProxyProtocol {
    /// Requires every connection to come from a trusted peer and to start with a header. All other
    /// connections are closed. Unless [`ProxyProtocol::trust`] sets others, the trusted peers are
    /// this machine, private networks ([`Networks::private`]) and Unix domain sockets.
    #[must_use]
    pub fn required() -> Self {
        Self { is_required: true, trusted: Some(Networks::private()), header_bytes_max: 4096 }
    }

    /// Accepts an optional header on connections from trusted peers, which must be set with
    /// [`ProxyProtocol::trust`]. On all other connections, a header is not recognised.
    #[must_use]
    pub fn optional() -> Self {
        Self { is_required: false, trusted: None, ..Self::required() }
    }

    /// Sets the trusted peers: addresses (`10.0.0.7`), networks (`10.0.0.0/8`), and `unix:` for any
    /// process that connects to a Unix domain socket. Any other text is an error when the server
    /// starts.
    #[doc(alias = "set_real_ip_from")]
    #[must_use]
    pub fn trust(mut self, networks: impl IntoIterator<Item: AsRef<str>>) -> Self {
        self.trusted = Some(Networks::parse(networks));
        self
    }

    /// Sets the maximum size of a version 2 header, in bytes. Default: 4096. A header that contains
    /// a client certificate may be larger. Over the limit: close.
    #[must_use]
    pub fn header_bytes_max(mut self, bytes_max: usize) -> Self {
        self.header_bytes_max = bytes_max;
        self
    }

    /// Returns whether every connection must start with a header.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.is_required
    }

    /// Describes the mistake in the settings; `None` if there is none.
    #[must_use]
    pub fn config_error(&self) -> Option<&str> {
        match &self.trusted {
            None => Some("`ProxyProtocol::optional()` must name trusted peers: add `.trust([..])`"),
            Some(networks) if networks.is_empty() && networks.config_error().is_none() => {
                Some("no peer is trusted to send PROXY headers: list the proxies in `.trust([..])`")
            }
            Some(networks) => networks.config_error(),
        }
    }

    /// How a connection from `peer` starts.
    pub(crate) fn preamble_for(&self, peer: &ConnectionAddr) -> Preamble {
        let is_trusted = self.trusted.as_ref().is_some_and(|networks| networks.contains(peer));
        match (is_trusted, self.is_required) {
            (true, _) => Preamble::ProxyHeader,
            (false, true) => Preamble::Untrusted,
            (false, false) => Preamble::None,
        }
    }
}

/// Adds the information of a PROXY header to that of its connection. The header may change the
/// peer, so the caller must determine `trusted_proxies` again.
pub(crate) fn apply_header(
    info: &ConnectionInfo,
    header: &ProxyProtocolHeader<'_>,
) -> ConnectionInfo {
    let mut info = info.clone();
    if header.addresses == Addresses::Local {
        return info;
    }
    let mut proxy_info = ProxyProtocolInfo {
        proxy: info.peer.clone(),
        local: Arc::clone(&info.local),
        version: header.version,
        ..ProxyProtocolInfo::default()
    };
    match header.addresses {
        Addresses::Inet { source, destination } => {
            info.peer = ConnectionAddr::Tcp(source);
            info.local = Arc::new(ConnectionAddr::Tcp(destination));
        }
        Addresses::Unix { source, destination } => {
            info.peer = to_unix_addr(source);
            info.local = Arc::new(to_unix_addr(destination));
        }
        Addresses::Local | Addresses::Unknown => {}
    }
    for (kind, value) in header.tlvs() {
        match kind {
            tlv_type::ALPN => proxy_info.alpn = Some(value.to_vec()),
            tlv_type::AUTHORITY => proxy_info.authority = Some(to_text(value)),
            tlv_type::UNIQUE_ID => proxy_info.unique_id = Some(value.to_vec()),
            tlv_type::SSL => proxy_info.tls = Ssl::parse(value).as_ref().map(to_tls_info),
            tlv_type::CRC32C | tlv_type::NOOP => {}
            _ => proxy_info.tlvs.push((kind, value.to_vec())),
        }
    }
    info.proxy_protocol = Some(Arc::new(proxy_info));
    info
}

fn to_tls_info(ssl: &Ssl<'_>) -> ProxyProtocolTls {
    let mut info = ProxyProtocolTls {
        is_tls: ssl.is_tls,
        has_certificate: ssl.has_certificate,
        is_verified: ssl.is_verified,
        ..ProxyProtocolTls::default()
    };
    for (kind, value) in ssl.tlvs() {
        match kind {
            tlv_type::SSL_VERSION => info.version = Some(to_text(value)),
            tlv_type::SSL_COMMON_NAME => info.common_name = Some(to_text(value)),
            tlv_type::SSL_CIPHER => info.cipher = Some(to_text(value)),
            _ => info.tlvs.push((kind, value.to_vec())),
        }
    }
    info
}

fn to_text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

fn to_unix_addr(path: &[u8]) -> ConnectionAddr {
    let path = (!path.is_empty()).then(|| to_text(path).into());
    ConnectionAddr::Unix { path, credentials: None }
}
