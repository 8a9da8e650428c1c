//! How a peer can break the protocol, and the response to it.

use rustls::{
    AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved,
};
use std::fmt;

/// The response to a clear-text HTTP request on a TLS port.
///
/// [`TlsConnection::receive`](crate::TlsConnection::receive) appends it to its output together with
/// [`TlsConnectionError::PlainHttp`].
// RFC 9110 §15.5.1: 400 says that the server will not process the request because of something that
// is perceived to be a client error.
pub const PLAIN_HTTP_REPLY: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 69\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks HTTPS. Use a URL that begins with https:// instead.\n";

/// The rule that the peer broke. The TLS connection has failed: send the output and close the
/// socket.
///
/// The output contains the alert for the peer, encrypted if necessary. There is no alert if the
/// peer itself ended the connection, or for a few errors for which rustls produces none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TlsConnectionError {
    /// The peer sent HTTP in clear text. The output holds [`PLAIN_HTTP_REPLY`].
    PlainHttp,
    /// The peer's first bytes are neither TLS nor HTTP.
    // RFC 8446 §5: an unexpected record type MUST be answered with "unexpected_message".
    NotTls,
    /// The peer sent more than [`HANDSHAKE_BYTES_MAX`](crate::HANDSHAKE_BYTES_MAX) before its
    /// handshake or a handshake message was complete. No alert is sent.
    HandshakeTooLong,
    /// The peer ended the connection with a fatal alert, such as `unknown_ca` for a certificate
    /// that it does not trust. No alert is sent.
    // RFC 8446 §6.2: upon a fatal alert both parties MUST immediately close the connection.
    AlertReceived(AlertDescription),
    /// The peer and this server have no version, cipher suite, group or signature scheme in common.
    // RFC 8446 §4.1.1: the server MUST abort with "handshake_failure" or "insufficient_security".
    PeerIncompatible(PeerIncompatible),
    /// The peer offered only application protocols that the server does not support.
    // RFC 7301 §3.2: the server SHALL send a fatal "no_application_protocol" alert.
    NoApplicationProtocol,
    /// The peer sent a message that cannot be parsed.
    // RFC 8446 §6: a message which cannot be parsed MUST be answered with "decode_error".
    InvalidMessage(InvalidMessage),
    /// The peer sent a message that is not allowed in the current state.
    // RFC 8446 §6.2: a message received at the wrong time is answered with "unexpected_message".
    InappropriateMessage,
    /// The peer violated the protocol in another way.
    PeerMisbehaved(PeerMisbehaved),
    /// A record was altered in transit, or encrypted with a wrong key.
    // RFC 8446 §5.2: if the decryption fails, the receiver MUST send "bad_record_mac".
    DecryptError,
    /// A record contains more than
    /// [`RECORD_PLAINTEXT_BYTES_MAX`](crate::RECORD_PLAINTEXT_BYTES_MAX).
    // RFC 8446 §5.2: an endpoint that receives one MUST send "record_overflow".
    RecordTooLarge,
    /// A client certificate is required, and the peer sent none.
    // RFC 8446 §4.4.2.4: the server aborts with "certificate_required".
    NoClientCertificate,
    /// The peer's certificate was rejected: it has expired or is revoked, its issuer is not
    /// trusted, or it is invalid for another reason.
    ClientCertificate(CertificateError),
    /// The TLS library failed, not the peer: no random bytes, no time, or the private key cannot
    /// sign.
    Internal(Error),
}

impl TlsConnectionError {
    /// A short name for logs and metrics; constant for each variant.
    pub fn label(&self) -> &'static str {
        match self {
            Self::PlainHttp => "plain_http",
            Self::NotTls => "not_tls",
            Self::HandshakeTooLong => "handshake_too_long",
            Self::AlertReceived(_) => "alert_received",
            Self::PeerIncompatible(_) => "peer_incompatible",
            Self::NoApplicationProtocol => "no_application_protocol",
            Self::InvalidMessage(_) => "invalid_message",
            Self::InappropriateMessage => "inappropriate_message",
            Self::PeerMisbehaved(_) => "peer_misbehaved",
            Self::DecryptError => "decrypt_error",
            Self::RecordTooLarge => "record_too_large",
            Self::NoClientCertificate => "no_client_certificate",
            Self::ClientCertificate(_) => "client_certificate",
            Self::Internal(_) => "internal",
        }
    }

    /// The name of the alert with which the peer ended the connection, or `unknown` for an unnamed
    /// number; `None` if the connection ended otherwise.
    pub fn alert(&self) -> Option<&'static str> {
        let Self::AlertReceived(alert) = self else { return None };
        Some(alert.as_str().unwrap_or("unknown"))
    }
}

impl TlsConnectionError {
    /// Why the peer's certificate was rejected, as a name for logs and metrics; `None` for other
    /// errors.
    pub fn client_certificate_error(&self) -> Option<&'static str> {
        let error = match self {
            Self::NoClientCertificate => return Some("client-certificate-missing"),
            Self::ClientCertificate(error) => error,
            _ => return None,
        };
        // The alert groups the many errors.
        Some(match AlertDescription::from(error.clone()) {
            AlertDescription::CertificateExpired => "client-certificate-expired",
            AlertDescription::CertificateRevoked => "client-certificate-revoked",
            AlertDescription::UnknownCA if *error == CertificateError::UnknownIssuer => {
                "client-certificate-unknown"
            }
            // The revocation list is missing or has expired.
            AlertDescription::UnknownCA => "client-certificate-unchecked",
            _ => "client-certificate-refused",
        })
    }
}

impl From<Error> for TlsConnectionError {
    fn from(error: Error) -> Self {
        match error {
            Error::AlertReceived(alert) => Self::AlertReceived(alert),
            Error::PeerIncompatible(error) => Self::PeerIncompatible(error),
            Error::NoApplicationProtocol => Self::NoApplicationProtocol,
            Error::InvalidMessage(error) => Self::InvalidMessage(error),
            Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
                Self::InappropriateMessage
            }
            Error::PeerMisbehaved(error) => Self::PeerMisbehaved(error),
            Error::DecryptError => Self::DecryptError,
            Error::PeerSentOversizedRecord => Self::RecordTooLarge,
            Error::NoCertificatesPresented => Self::NoClientCertificate,
            Error::InvalidCertificate(error) => Self::ClientCertificate(error),
            other => Self::Internal(other),
        }
    }
}

impl fmt::Display for TlsConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlainHttp => f.write_str("the peer sent HTTP in clear text to a TLS port"),
            Self::NotTls => f.write_str("the peer's first bytes are neither TLS nor HTTP"),
            Self::HandshakeTooLong => f.write_str("the peer's handshake exceeds 64 KiB"),
            Self::AlertReceived(alert) => {
                write!(f, "the peer ended the connection with alert {alert:?}")
            }
            Self::PeerIncompatible(error) => {
                write!(f, "no common TLS parameters with the peer: {error:?}")
            }
            Self::NoApplicationProtocol => {
                f.write_str("the peer offered only unsupported application protocols")
            }
            Self::InvalidMessage(error) => {
                write!(f, "the peer sent a malformed message: {error:?}")
            }
            Self::InappropriateMessage => f.write_str("the peer sent a message at the wrong time"),
            Self::PeerMisbehaved(error) => write!(f, "the peer broke the protocol: {error:?}"),
            Self::DecryptError => f.write_str("a record failed authentication"),
            Self::RecordTooLarge => f.write_str("a record exceeds 16 KiB"),
            Self::NoClientCertificate => f.write_str("the peer sent no certificate"),
            Self::ClientCertificate(error) => {
                write!(f, "the peer's certificate is invalid: {error:?}")
            }
            Self::Internal(error) => write!(f, "the TLS engine failed: {error}"),
        }
    }
}

impl std::error::Error for TlsConnectionError {}

/// Why data cannot be sent. Except for [`TlsSendError::KeysExhausted`], the call was made in the
/// wrong state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsSendError {
    /// The handshake is not complete.
    Handshaking,
    /// The connection was closed on this side, or its peer was rejected.
    Closed,
    /// A TLS 1.2 connection has encrypted as much as its keys safely allow. The output contains a
    /// `close_notify`; the peer has to reconnect.
    KeysExhausted,
}

impl fmt::Display for TlsSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handshaking => "the TLS handshake is not complete",
            Self::Closed => "the TLS session is closed",
            Self::KeysExhausted => "the TLS connection's keys are used up",
        })
    }
}

impl std::error::Error for TlsSendError {}

#[cfg(test)]
mod tests {
    use super::PLAIN_HTTP_REPLY;

    #[test]
    fn the_plain_http_reply_has_the_right_content_length() {
        let text = std::str::from_utf8(PLAIN_HTTP_REPLY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains("https://"));
    }
}
