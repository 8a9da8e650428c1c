//! Checks whether a connection's certificate is valid for the host of a request.

use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, ServerName};
use std::fmt;
use std::sync::Arc;

/// The hosts that a connection's certificate is valid for, if the server checks them; see
/// [`TlsConfig::with_host_check`](crate::TlsConfig::with_host_check).
pub struct CertificateNames {
    certificate: Arc<CertifiedKey>,
    /// The last authority that matched: most connections use only one.
    last_match: Box<str>,
}

impl CertificateNames {
    pub(crate) fn new(certificate: Arc<CertifiedKey>) -> Self {
        Self { certificate, last_match: Box::default() }
    }

    /// Returns whether the certificate is valid for the host of `authority`, regardless of its
    /// port.
    ///
    /// A wildcard matches one label, the leftmost. An IP address matches only an entry for that
    /// address.
    pub fn matches(&mut self, authority: &str) -> bool {
        if *self.last_match == *authority {
            return true;
        }
        let is_covered =
            self.certificate.cert.first().is_some_and(|own| names(own, strip_port(authority)));
        if is_covered {
            self.last_match = authority.into();
        }
        is_covered
    }
}

impl fmt::Debug for CertificateNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateNames").field("found", &self.last_match).finish_non_exhaustive()
    }
}

/// Removes the port of an authority, and the brackets of an IPv6 address.
fn strip_port(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(literal) => literal.split_once(']').map_or(literal, |(address, _)| address),
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    }
}

// RFC 9110 §4.3.4: a reference identity is matched against subjectAltName, as RFC 9525 says.
fn names(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Ok(host) = ServerName::try_from(host) else { return false };
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.verify_is_valid_for_subject_name(&host).is_ok())
}
