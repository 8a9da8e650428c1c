//! Certificates for clients and servers, generated as tests need them.

use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A certificate and its private key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Identity {
    /// Writes both to files.
    ///
    /// # Panics
    /// If the files cannot be written.
    pub fn write(&self, certificate: &Path, key: &Path) {
        std::fs::write(certificate, &self.certificate).expect("the folder exists");
        std::fs::write(key, &self.key).expect("the folder exists");
    }
}

/// A certificate authority.
pub struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    /// The authority's own certificate, in PEM.
    pub certificate: String,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// If the system provides no randomness.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut parameters =
            rcgen::CertificateParams::new(Vec::new()).expect("an empty list of names is valid");
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        let key = rcgen::KeyPair::generate().expect("the system provides randomness");
        let certificate = parameters.self_signed(&key).expect("signing succeeds");
        let certificate = certificate.pem();
        Self { issuer: rcgen::Issuer::new(parameters, key), certificate }
    }

    /// A certificate with a common name and this DNS name, valid from 1975 for this long.
    ///
    /// # Panics
    /// If the DNS name is invalid.
    #[must_use]
    pub fn issue(&self, common_name: &str, dns_name: &str, end: Duration) -> Identity {
        let names = vec![dns_name.to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).expect("the name is valid");
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
        let key = rcgen::KeyPair::generate().expect("the system provides randomness");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("signing succeeds");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A client configuration that trusts this authority and the given certificates, supports only
    /// this version, and presents a certificate if it is given one.
    ///
    /// # Panics
    /// If the certificate does not match its key.
    #[must_use]
    pub fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        trusted: &[&str],
        client_identity: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for pem in trusted.iter().copied().chain([self.certificate.as_str()]) {
            let certificate =
                CertificateDer::from_pem_slice(pem.as_bytes()).expect("the text is PEM");
            roots.add(certificate).expect("the certificate is valid");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[version])
            .expect("the provider supports the version")
            .with_root_certificates(roots);
        Arc::new(match client_identity {
            None => builder.with_no_client_auth(),
            Some(client_identity) => {
                let chain = CertificateDer::from_pem_slice(client_identity.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(client_identity.key.as_bytes())
                    .expect("the text is PEM");
                let chain = vec![chain.expect("the text is PEM")];
                builder.with_client_auth_cert(chain, key).expect("the key matches the certificate")
            }
        })
    }
}

/// Longer than any test.
pub const LONG_AFTER: Duration = Duration::from_secs(4_000_000_000);
