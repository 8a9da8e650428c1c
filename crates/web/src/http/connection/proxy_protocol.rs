//! Information from a PROXY header.

use crate::http::connection::ConnectionAddr;
use std::sync::Arc;

/// The information about a connection that a proxy reported in a PROXY header, besides the
/// addresses. Those are in [`ConnectionInfo`](crate::connection::ConnectionInfo), as if the client
/// had connected directly.
#[doc(alias = "proxy_protocol")]
#[doc(alias = "PROXY")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyProtocolInfo {
    /// The proxy: the remote end of the socket.
    pub proxy: ConnectionAddr,
    /// The local end of the socket, to which the proxy connected.
    pub local: Arc<ConnectionAddr>,
    /// The header's version, 1 or 2. Only version 2 can carry the information in the fields below.
    pub version: u8,
    /// The application protocol that client and proxy negotiated (ALPN), such as `h2`.
    pub alpn: Option<Vec<u8>>,
    /// The host that the client requested, usually by SNI.
    pub authority: Option<String>,
    /// The proxy's identifier for the connection.
    pub unique_id: Option<Vec<u8>>,
    /// The TLS between the client and the proxy, as the proxy reports it.
    pub tls: Option<ProxyProtocolTls>,
    /// Values (TLVs) of other types, in order: the type and the bytes. Cloud providers define some:
    /// 0xEA is AWS's VPC endpoint, 0xEE Azure's private link, 0xE0 Google's.
    pub tlvs: Vec<(u8, Vec<u8>)>,
}

/// The information about TLS between client and proxy in a PROXY header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyProtocolTls {
    /// Whether the client connected over TLS.
    pub is_tls: bool,
    /// The version, as the proxy writes it, such as `TLSv1.3`.
    pub version: Option<String>,
    /// The cipher, as the proxy writes it.
    pub cipher: Option<String>,
    /// Whether the client sent a certificate.
    pub has_certificate: bool,
    /// Whether the client sent a certificate that the proxy found valid.
    pub is_verified: bool,
    /// The common name of the client's certificate.
    pub common_name: Option<String>,
    /// Values of other types, in order: the type and the bytes.
    pub tlvs: Vec<(u8, Vec<u8>)>,
}

impl ProxyProtocolInfo {
    /// Whether the client used TLS with the proxy.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_tls)
    }
}

impl ProxyProtocolTls {
    /// Bytes that identify the client: whether it sent a valid certificate, and what the proxy
    /// reports about that certificate. The protocol version and the cipher are left out, because
    /// they may differ between connections of one client.
    #[doc(hidden)]
    #[must_use]
    pub fn client_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.has_certificate), u8::from(self.is_verified)];
        let name = self.common_name.as_deref().unwrap_or_default();
        for part in
            [name.as_bytes()].into_iter().chain(self.tlvs.iter().map(|(_, value)| &value[..]))
        {
            bytes.extend_from_slice(&part.len().to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_bytes_differ_between_clients_but_not_between_tls_versions() {
        let ada = ProxyProtocolTls {
            has_certificate: true,
            is_verified: true,
            common_name: Some("ada".to_owned()),
            tlvs: vec![(0x28, b"der".to_vec())],
            ..ProxyProtocolTls::default()
        };
        for other in [
            ProxyProtocolTls { has_certificate: false, ..ada.clone() },
            ProxyProtocolTls { is_verified: false, ..ada.clone() },
            ProxyProtocolTls { common_name: Some("bob".to_owned()), ..ada.clone() },
            ProxyProtocolTls { tlvs: vec![(0x28, b"other".to_vec())], ..ada.clone() },
            ProxyProtocolTls {
                common_name: Some("adader".to_owned()),
                tlvs: vec![],
                ..ada.clone()
            },
        ] {
            assert_ne!(other.client_bytes(), ada.client_bytes(), "{other:?}");
        }
        let reconnected = ProxyProtocolTls { version: Some("TLSv1.2".to_owned()), ..ada.clone() };
        assert_eq!(reconnected.client_bytes(), ada.client_bytes());
    }
}
