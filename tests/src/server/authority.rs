//! Certificates for clients and servers, made as tests need them.

use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

impl Identity {
    /// Writes both into files.
    ///
    /// # Panics
    /// The files cannot be written.
    pub fn write(&self, certificate: &Path, key: &Path) {
        std::fs::write(certificate, &self.certificate).expect("the folder is there");
        std::fs::write(key, &self.key).expect("the folder is there");
    }
}

/// Somebody who issues certificates.
pub struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    /// Its own certificate, in PEM.
    pub certificate: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// There is no randomness.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        let key = rcgen::KeyPair::generate().expect("there is randomness");
        let certificate = parameters.self_signed(&key).expect("it signs");
        let certificate = certificate.pem();
        Self { issuer: rcgen::Issuer::new(parameters, key), certificate }
    }

    /// A certificate with a common name and this DNS name, valid for so long from 1975 on.
    ///
    /// # Panics
    /// That is no DNS name.
    #[must_use]
    pub fn issue(&self, common_name: &str, dns_name: &str, end: Duration) -> Identity {
        let names = vec![dns_name.to_owned()];
        let mut parameters = rcgen::CertificateParams::new(names).expect("it is a name");
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        parameters.not_after = rcgen::date_time_ymd(1970, 1, 1) + end;
        let key = rcgen::KeyPair::generate().expect("there is randomness");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("it signs");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A client that trusts whom this authority and those with these certificates trust, speaks this
    /// version only, and shows a certificate if it is given one.
    ///
    /// # Panics
    /// The certificate does not fit its key.
    #[must_use]
    pub fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        trusted: &[&str],
        own: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for pem in trusted.iter().copied().chain([self.certificate.as_str()]) {
            let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).expect("it is PEM");
            roots.add(certificate).expect("it is a certificate");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[version])
            .expect("the version is known")
            .with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::from_pem_slice(own.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("it is PEM");
                let chain = vec![chain.expect("it is PEM")];
                builder.with_client_auth_cert(chain, key).expect("they fit")
            }
        })
    }
}

/// Longer than any test.
pub const LONG_AFTER: Duration = Duration::from_secs(4_000_000_000);
