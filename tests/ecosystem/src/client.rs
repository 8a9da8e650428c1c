//! A third-party client.

use peregrine::tls::rustls::crypto::aws_lc_rs;
use peregrine::tls::rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::Arc;

/// A client with its own connection pool, which trusts only this certificate.
///
/// # Panics
/// If the certificate is invalid.
#[must_use]
pub fn client(certificate_pem: Option<&str>) -> reqwest::Client {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = certificate_pem {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("the text is PEM");
        roots.add(certificate).expect("the certificate is valid");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let builder = reqwest::Client::builder().no_proxy().use_preconfigured_tls(config);
    builder.build().expect("the configuration is valid")
}
