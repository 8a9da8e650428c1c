//! What a PROXY header told about a connection.

use crate::http::connection::Peer;
use std::sync::Arc;

/// What a proxy told of a connection by a PROXY header, beside the addresses: those are in
/// [`ConnectionInfo`](crate::connection::ConnectionInfo), as if the client had connected itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxied {
    /// The proxy: the other end of the socket.
    pub by: Peer,
    /// The socket's own end, which the proxy connected to.
    pub local: Arc<Peer>,
    /// The header's version, 1 or 2. What follows is in version 2 only.
    pub version: u8,
    /// The application protocol that client and proxy agreed on (ALPN), such as `h2`.
    pub alpn: Option<Vec<u8>>,
    /// The host that the client named, mostly by SNI.
    pub authority: Option<String>,
    /// What the proxy calls the connection.
    pub unique_id: Option<Vec<u8>>,
    /// What the proxy tells of TLS between it and the client.
    pub tls: Option<ProxiedTls>,
    /// Values of other types, in order: the type and the bytes. Clouds have some: 0xEA is AWS's VPC endpoint,
    /// 0xEE Azure's private link, 0xE0 Google's.
    pub others: Vec<(u8, Vec<u8>)>,
}

/// What a PROXY header told of TLS between client and proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxiedTls {
    /// The client connected over TLS.
    pub is_tls: bool,
    /// The version, as the proxy writes it, such as `TLSv1.3`.
    pub version: Option<String>,
    /// The cipher, as the proxy writes it.
    pub cipher: Option<String>,
    /// The client sent a certificate.
    pub has_certificate: bool,
    /// The client sent a certificate, and the proxy found it valid.
    pub is_verified: bool,
    /// The common name of the client's certificate.
    pub common_name: Option<String>,
    /// Values of other types, in order: the type and the bytes.
    pub others: Vec<(u8, Vec<u8>)>,
}

impl Proxied {
    /// Did the client speak TLS with the proxy?
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_tls)
    }
}
