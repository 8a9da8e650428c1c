//! A client that others wrote.

use peregrine::tls::rustls::crypto::aws_lc_rs;
use peregrine::tls::rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::Arc;

/// A client with a pool of its own, which trusts nobody but the bearer of that certificate.
///
/// # Panics
/// The certificate is none.
#[must_use]
pub fn client(certificate_pem: Option<&str>) -> reqwest::Client {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = certificate_pem {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("it is in PEM");
        roots.add(certificate).expect("it is a certificate");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has what they need")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let builder = reqwest::Client::builder().no_proxy().use_preconfigured_tls(config);
    builder.build().expect("the configuration is sound")
}
