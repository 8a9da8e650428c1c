//! Client certificates: trusted issuers, revocation lists, and whether a certificate is required.

use crate::client_not_after;
use crate::error::{PemOrigin, TlsSetupError, TlsWarning};
use crate::pem::{Pem, PemSource};
use crate::sha256::{Digest, sha256_parts};
use crate::x509::{crl_next_update, validity};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use std::path::Path;
use std::sync::Arc;

/// Requests certificates from clients, issued by one of these issuers.
///
/// ```no_run
/// use peregrine::tls::{ClientAuth, TlsConfig};
///
/// let clients = ClientAuth::required().roots_file("clients-ca.pem").crl_file("revoked.crl");
/// let tls = TlsConfig::from_pem_files("server.pem", "server.key")?.with_client_auth(clients)?;
/// # Ok::<(), peregrine::tls::TlsSetupError>(())
/// ```
///
/// - *Required*: a client without a certificate is rejected in the handshake. *Optional*: it is
///   served, and a route can require a certificate (`ClientIdentity` as an argument, or the
///   middleware `RequireClientIdentity`). A certificate that is sent must be valid in both cases.
/// - With revocation lists, each certificate of a client's chain must be covered by one, as with
///   nginx; [`ClientAuth::only_check_end_entity_revocation`] requires that only for the client's
///   own certificate. After a list's `nextUpdate` its clients are rejected until there is a newer
///   list: install it in time, and reload.
/// - Files are read again when [`TlsConfig`](crate::TlsConfig) is reloaded. A session is resumed
///   only while the same roots and lists are in use and the certificate is valid, so clients whose
///   certificate was revoked are rejected from then on. Open connections stay open.
#[derive(Clone, Debug)]
#[must_use = "has no effect until passed to `TlsConfig::with_client_auth`"]
pub struct ClientAuth {
    roots: Vec<PemSource>,
    crls: Vec<PemSource>,
    is_required: bool,
    end_entity_only: bool,
}

impl ClientAuth {
    /// Rejects clients without a certificate.
    pub fn required() -> Self {
        Self::new(true)
    }

    /// Accepts clients without a certificate.
    pub fn optional() -> Self {
        Self::new(false)
    }

    fn new(is_required: bool) -> Self {
        Self { roots: Vec::new(), crls: Vec::new(), is_required, end_entity_only: false }
    }

    /// Trusts the issuers whose certificates are in this PEM file.
    pub fn roots_file(mut self, path: impl AsRef<Path>) -> Self {
        self.roots.push(PemSource::file(path));
        self
    }

    /// Like [`ClientAuth::roots_file`], with PEM text in memory.
    pub fn roots_pem(mut self, text: &[u8]) -> Self {
        self.roots.push(PemSource::memory(text));
        self
    }

    /// Rejects the certificates on the revocation lists in this file: PEM, or a single list in DER.
    pub fn crl_file(mut self, path: impl AsRef<Path>) -> Self {
        self.crls.push(PemSource::file(path));
        self
    }

    /// Like [`ClientAuth::crl_file`], with a list in memory.
    pub fn crl(mut self, list: &[u8]) -> Self {
        self.crls.push(PemSource::memory(list));
        self
    }

    /// Checks only the client's own certificate for revocation, not the intermediate issuers.
    pub fn only_check_end_entity_revocation(mut self) -> Self {
        self.end_entity_only = true;
        self
    }

    /// The files to read.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().chain(&self.crls).filter_map(PemSource::path)
    }

    pub(crate) fn load(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<LoadedClientAuth, TlsSetupError> {
        let roots: Vec<Pem> = read_all(&self.roots)?;
        let crl_files: Vec<Pem> = read_all(&self.crls)?;
        let mut store = RootCertStore::empty();
        for pem in &roots {
            for root in pem.certificates()? {
                store.add(root).map_err(|error| TlsSetupError::BadRoot {
                    origin: pem.origin.clone(),
                    error,
                })?;
            }
        }
        if store.is_empty() {
            return Err(TlsSetupError::NoRoots);
        }
        let mut crl_next_updates = Vec::new();
        let mut crls = Vec::new();
        for pem in &crl_files {
            let file_crls = pem.crls()?;
            let next_update = file_crls.iter().filter_map(|crl| crl_next_update(crl)).min();
            crl_next_updates
                .extend(next_update.map(|next_update| (pem.origin.clone(), next_update)));
            crls.extend(file_crls);
        }
        let verifier = self.build_verifier(store, crls, provider)?;
        let settings = [u8::from(self.is_required), u8::from(self.end_entity_only)];
        let texts = roots.iter().chain(&crl_files).map(|pem| &pem.text[..]);
        let digest = sha256_parts(std::iter::once(&settings[..]).chain(texts));
        Ok(LoadedClientAuth { verifier, digest, crl_next_updates })
    }

    fn build_verifier(
        &self,
        roots: RootCertStore,
        crls: Vec<CertificateRevocationListDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsSetupError> {
        let provider = Arc::clone(provider);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
            .with_crls(crls)
            .enforce_revocation_expiration();
        if self.end_entity_only {
            builder = builder.only_check_end_entity_revocation();
        }
        if !self.is_required {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build().map_err(|error| TlsSetupError::BadRevocationList {
            origins: self.crls.iter().map(|source| format!("{source:?}")).collect(),
            error: error.to_string(),
        })?;
        Ok(Arc::new(RecordingVerifier(verifier)))
    }
}

fn read_all(sources: &[PemSource]) -> Result<Vec<Pem>, TlsSetupError> {
    sources.iter().map(PemSource::read).collect()
}

/// A verifier built from the contents of the files.
#[derive(Clone, Debug)]
pub(crate) struct LoadedClientAuth {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// Digest of everything that decides whether a client's certificate is accepted.
    pub(crate) digest: Digest,
    /// The earliest `nextUpdate` of the lists in each file, in seconds since 1970.
    crl_next_updates: Vec<(PemOrigin, i64)>,
}

impl LoadedClientAuth {
    pub(crate) fn warnings(&self, now: i64) -> impl Iterator<Item = TlsWarning> {
        let expired =
            self.crl_next_updates.iter().filter(move |(_, next_update)| *next_update <= now);
        expired.map(|(origin, _)| TlsWarning::RevocationListExpired { origin: origin.clone() })
    }
}

/// Wraps another verifier and records when a verified certificate expires.
#[derive(Debug)]
struct RecordingVerifier(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for RecordingVerifier {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        let not_after =
            validity(end_entity).and_then(|validity| u64::try_from(validity.not_after).ok());
        // If the dates cannot be read, the ticket expires immediately.
        client_not_after::set(Some(not_after.unwrap_or(0)));
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.0.requires_raw_public_keys()
    }
}
