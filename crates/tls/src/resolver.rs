//! Reports which name a client requested and which certificate it got.
//!
//! The unbuffered API of rustls reports neither, but the certificate resolver knows both and runs
//! inside a call made by the connection. The resolver therefore stores them in a thread-local, and
//! the connection takes them right after the call.

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static LAST_RESOLVED: Cell<Option<ResolvedCertificate>> = const { Cell::new(None) };
}

/// The result of choosing a certificate.
pub(crate) struct ResolvedCertificate {
    /// The name in the client's SNI.
    pub(crate) server_name: Option<Box<str>>,
    /// The chosen certificate, if the resolver is configured to record it.
    pub(crate) certificate: Option<Arc<CertifiedKey>>,
}

/// Takes the result of the last choice on this thread.
pub(crate) fn take_last() -> Option<ResolvedCertificate> {
    LAST_RESOLVED.take()
}

/// Wraps another resolver and stores its choice for the connection.
#[derive(Debug)]
pub(crate) struct RecordingResolver {
    pub(crate) resolver: Arc<dyn ResolvesServerCert>,
    pub(crate) record_certificate: bool,
}

impl ResolvesServerCert for RecordingResolver {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let server_name = client_hello.server_name().map(Box::from);
        let certified_key = self.resolver.resolve(client_hello);
        // A raw public key contains no names.
        let records_certificate = self.record_certificate && !self.only_raw_public_keys();
        let certificate = if records_certificate { certified_key.clone() } else { None };
        LAST_RESOLVED.set(Some(ResolvedCertificate { server_name, certificate }));
        certified_key
    }

    fn only_raw_public_keys(&self) -> bool {
        self.resolver.only_raw_public_keys()
    }
}
