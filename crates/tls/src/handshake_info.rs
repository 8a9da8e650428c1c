//! The state of a connection, the result of its handshake, and the client's identity.

use std::net::IpAddr;

/// The negotiated protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2, RFC 5246.
    Tls12,
    /// TLS 1.3, RFC 8446.
    Tls13,
}

/// The negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeInfo<'a> {
    /// The version of the protocol.
    pub version: TlsVersion,
    /// The cipher suite by its registered name, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: &'static str,
    /// The name in the client's SNI, if any, in lower case.
    pub server_name: Option<&'a str>,
    /// The application protocol, if one was negotiated.
    pub alpn: Option<&'a [u8]>,
    /// The client resumed a session with a ticket, so no certificates were exchanged.
    pub resumed: bool,
}

/// The state of the receiving side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsReadState {
    /// The handshake is not complete; nothing can be sent.
    Handshaking,
    /// The handshake is complete.
    ///
    /// If the peer's bytes end here, without a `close_notify`, the connection may have been
    /// truncated by an attacker: the received data is authentic, but possibly incomplete.
    Established,
    /// The peer sent `close_notify`. Sending is still possible.
    PeerClosed,
}

/// A client's identity, from its verified certificate.
#[doc(alias = "ClientIdentity")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The subject's name in the form of RFC 4514, such as `CN=alice,O=Example`.
    pub subject: String,
    /// The subject's common name, the first if there are several.
    pub common_name: Option<String>,
    /// The DNS names among the subject alternative names, in lower case.
    pub dns_names: Vec<String>,
    /// The URIs among the subject alternative names.
    pub uris: Vec<String>,
    /// The email addresses among the subject alternative names.
    pub emails: Vec<String>,
    /// The IP addresses among the subject alternative names.
    pub addresses: Vec<IpAddr>,
    /// The serial number, as the bytes of a big-endian integer.
    pub serial: Vec<u8>,
    /// When the certificate expires, in seconds since 1970.
    pub not_after: i64,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// The client's chain in DER, its own certificate first.
    pub chain: Vec<Vec<u8>>,
}
