//! How far a session has come, and what its handshake agreed on.

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
