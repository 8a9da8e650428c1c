//! How far a session has come, what its handshake agreed on, and who the client is.

use std::net::IpAddr;

/// The version of the protocol that both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2, RFC 5246.
    Tls12,
    /// TLS 1.3, RFC 8446.
    Tls13,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The version of the protocol.
    pub version: Version,
    /// The cipher suite by its registered name, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: &'static str,
    /// The name that the client asked for, if any, in lower case.
    pub server_name: Option<&'a str>,
    /// The application protocol, if one was negotiated.
    pub alpn: Option<&'a [u8]>,
    /// The client resumed a session with a ticket and was spared the certificate.
    pub resumed: bool,
}

/// Where the receiving side of a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The handshake is not complete; nothing can be sent.
    Handshaking,
    /// The handshake is complete.
    ///
    /// If the peer's bytes end here, without a `close_notify`, somebody may have cut them off: what
    /// was received is authentic, but it may not be all.
    Open,
    /// The peer said that it has sent everything. Sending is still possible.
    Closed,
}

/// Who a client is, by its certificate, which was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The subject's name as RFC 4514 writes it, such as `CN=alice,O=Example`.
    pub subject: String,
    /// The subject's common name, the first if there are several.
    pub common_name: Option<String>,
    /// The DNS names among the subject's alternative names, in lower case.
    pub dns_names: Vec<String>,
    /// The URIs among them.
    pub uris: Vec<String>,
    /// The addresses of mail among them.
    pub emails: Vec<String>,
    /// The IP addresses among them.
    pub addresses: Vec<IpAddr>,
    /// The serial number, as the bytes of a big-endian integer.
    pub serial: Vec<u8>,
    /// When the certificate expires, in seconds since 1970.
    pub not_after: i64,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// All that the client sent, in DER, its own certificate first.
    pub chain: Vec<Vec<u8>>,
}
