//! The identity of a client, from its certificate.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

/// The identity of a client, from a certificate that the server has verified. `ClientAuth` in the
/// server's TLS settings makes the server request one.
///
/// As a handler's argument it requires a certificate, even if the handshake does not: a client
/// without one gets a 403, and `Option<ClientIdentity>` is `None`. The middleware
/// `RequireClientIdentity` does the same for a scope. A certificate can only be requested in the
/// handshake, because HTTP/2 forbids it later (RFC 9113, section 9.2.3).
///
/// ```
/// use peregrine::App;
/// use peregrine::web::connection::{ConnectionInfo, TlsInfo};
/// use peregrine::web::extract::ClientIdentity;
/// use std::sync::Arc;
///
/// async fn whoami(client: ClientIdentity) -> String {
///     client.spiffe_id().unwrap_or(&client.subject).to_owned()
/// }
///
/// let client = ClientIdentity { subject: "CN=alice".to_owned(), ..ClientIdentity::default() };
/// let tls = TlsInfo { client_identity: Some(Arc::new(client)), ..TlsInfo::default() };
/// let connection = ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() };
/// let app = App::new().get("/whoami", whoami).test();
/// assert_eq!(app.get("/whoami").send_blocking().status(), 403);
/// assert_eq!(app.with_connection(connection).get("/whoami").send_blocking().text(), "CN=alice");
/// ```
#[doc(alias = "client_certificate")]
#[doc(alias = "peer_certificates")]
#[doc(alias = "mtls")]
#[derive(Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The subject's name as RFC 4514 writes it, such as `CN=alice,O=Example`.
    pub subject: String,
    /// The subject's common name; the first if there are several.
    pub common_name: Option<String>,
    /// The DNS names among the subject's alternative names, in lower case.
    pub dns_names: Vec<String>,
    /// The URIs among the subject's alternative names.
    pub uris: Vec<String>,
    /// The email addresses among the subject's alternative names.
    pub emails: Vec<String>,
    /// The IP addresses among the subject's alternative names.
    pub ip_addresses: Vec<IpAddr>,
    /// The serial number, as the bytes of a big-endian integer.
    pub serial_number: Vec<u8>,
    /// When the certificate expires. A connection may last longer.
    pub not_after: SystemTime,
    /// The SHA-256 hash of the certificate.
    pub fingerprint: [u8; 32],
    /// All certificates that the client sent, in DER, starting with the client's own.
    pub certificate_chain: Vec<Vec<u8>>,
}

impl ClientIdentity {
    /// The SPIFFE ID, such as `spiffe://example.org/web`: the certificate's only URI, if it is a
    /// SPIFFE ID.
    // X509-SVID, section 2: an SVID has exactly one URI among its alternative names.
    #[must_use]
    pub fn spiffe_id(&self) -> Option<&str> {
        let [uri] = &self.uris[..] else { return None };
        let (trust_domain, _) =
            uri.strip_prefix("spiffe://").map(|rest| rest.split_once('/').unwrap_or((rest, "")))?;
        (!trust_domain.is_empty()).then_some(uri)
    }

    /// The fingerprint in hexadecimal, in lower case and without colons.
    #[must_use]
    pub fn fingerprint_hex(&self) -> String {
        hex(&self.fingerprint)
    }

    /// The serial number in hexadecimal.
    #[must_use]
    pub fn serial_hex(&self) -> String {
        hex(&self.serial_number)
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// An empty identity, for tests to fill in.
impl Default for ClientIdentity {
    fn default() -> Self {
        Self {
            subject: String::new(),
            common_name: None,
            dns_names: Vec::new(),
            uris: Vec::new(),
            emails: Vec::new(),
            ip_addresses: Vec::new(),
            serial_number: Vec::new(),
            not_after: UNIX_EPOCH,
            fingerprint: [0; 32],
            certificate_chain: Vec::new(),
        }
    }
}

/// Leaves out the chain, which is long: the fingerprint identifies the certificate.
impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity")
            .field("subject", &self.subject)
            .field("dns_names", &self.dns_names)
            .field("uris", &self.uris)
            .field("serial", &self.serial_hex())
            .field("fingerprint", &self.fingerprint_hex())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::ClientIdentity;

    #[test]
    fn returns_a_spiffe_id_only_if_it_is_the_only_uri() {
        let id = "spiffe://example.org/web";
        for (uris, expected) in [
            (&[id][..], Some(id)),
            (&["spiffe://example.org"], Some("spiffe://example.org")),
            (&[], None),
            (&[id, "https://example.org"], None),
            (&["https://example.org"], None),
            (&["spiffe:///web"], None),
            (&["spiffe://"], None),
        ] {
            let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
            let identity = ClientIdentity { uris, ..ClientIdentity::default() };
            assert_eq!(identity.spiffe_id(), expected, "{identity:?}");
        }
    }

    #[test]
    fn formats_the_serial_number_and_the_fingerprint_in_hexadecimal() {
        let mut identity =
            ClientIdentity { serial_number: vec![0, 0xab], ..ClientIdentity::default() };
        identity.fingerprint[31] = 7;
        assert_eq!(identity.serial_hex(), "00ab");
        assert_eq!(identity.fingerprint_hex(), format!("{}07", "00".repeat(31)));
        assert!(format!("{identity:?}").contains("00ab"));
    }
}
