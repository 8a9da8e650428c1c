//! Certificates with their keys: read from PEM, and chosen by the client's SNI.

use crate::error::{PemOrigin, TlsSetupError, TlsWarning};
use crate::ocsp::{self, OcspError};
use crate::pem::{Pem, PemSource};
use crate::sha256::{Digest, sha256_parts};
use crate::x509::{Validity, parse_tbs_certificate};
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::CertificateDer;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// A certificate chain with its private key, and where to read them from.
///
/// The chain contains the server's own certificate first, then its issuers. The key is ECDSA,
/// Ed25519 or RSA, as PKCS #8, SEC 1 or PKCS #1, without a passphrase.
///
/// ```no_run
/// use peregrine::tls::{Certificate, TlsConfig};
///
/// let tls = TlsConfig::from_pem_files("example.org.pem", "example.org.key")?;
/// let running = tls.clone(); // a clone is a handle to the same configuration
/// // Later, on any thread, while the server runs:
/// running.upsert_certificate(Certificate::from_files("shop.pem", "shop.key").label("shop"))?;
/// running.remove_certificate("shop")?;
/// # Ok::<(), peregrine::tls::TlsSetupError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "has no effect until it is added to a `TlsConfig`"]
pub struct Certificate {
    chain: PemSource,
    key: PemSource,
    ocsp_response: Option<PemSource>,
    label: Option<Arc<str>>,
}

impl Certificate {
    /// Uses PEM files. They are read when the certificate is added to a
    /// [`TlsConfig`](crate::TlsConfig), and again on each reload.
    pub fn from_files(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        Self::new(PemSource::file(chain), PemSource::file(key))
    }

    /// Uses PEM text in memory.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Self {
        Self::new(PemSource::memory(chain), PemSource::memory(key))
    }

    fn new(chain: PemSource, key: PemSource) -> Self {
        Self { chain, key, ocsp_response: None, label: None }
    }

    /// Sets the name under which the certificate is replaced and removed. The default is the path
    /// of the chain or, without a file, the first DNS name.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Staples the OCSP response in this file (DER, as written by `openssl ocsp -respout`) to the
    /// certificate. A response that is missing, too old, for another certificate or not "good" is
    /// not sent; this is reported as a [`TlsWarning`], not as an error.
    pub fn ocsp_response_file(mut self, path: impl AsRef<Path>) -> Self {
        self.ocsp_response = Some(PemSource::file(path));
        self
    }

    /// The files to read.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let sources = [Some(&self.chain), Some(&self.key), self.ocsp_response.as_ref()];
        sources.into_iter().flatten().filter_map(PemSource::path)
    }

    /// Reads the certificate. Reuses `previous` if its contents are unchanged.
    pub(crate) fn load(
        &self,
        provider: &CryptoProvider,
        previous: Option<&Arc<LoadedCertificate>>,
        now: i64,
    ) -> Result<Arc<LoadedCertificate>, TlsSetupError> {
        let (mut chain, key) = (self.chain.read()?, self.key.read()?);
        let staple = self.ocsp_response.as_ref().map(read_ocsp_response);
        let staple_bytes = staple.as_ref().and_then(|staple| staple.as_ref().ok());
        let digest = sha256_parts([
            &chain.digest()[..],
            &key.digest(),
            staple_bytes.map_or(&[][..], |bytes| &bytes[..]),
        ]);
        // The response may have expired even if the files are unchanged.
        if let Some(previous) = previous
            && previous.digest == digest
            && previous.ocsp_next_update().is_none_or(|next_update| now < next_update)
        {
            return Ok(Arc::clone(previous));
        }
        if let (PemOrigin::Memory, Some(label)) = (&chain.origin, &self.label) {
            chain.origin = PemOrigin::Label(label.to_string());
        }
        let mut certified_key = build_certified_key(&chain, &key, provider)?;
        let end_entity = &certified_key.cert[0];
        let (names, fields) = (dns_names(end_entity), parse_tbs_certificate(end_entity));
        let validity = fields.as_ref().map(|fields| fields.validity);
        let serial = fields.map_or(&[][..], |fields| fields.serial);
        let staple = staple.map(|staple| {
            let bytes = staple?;
            ocsp::check_ocsp_response(&bytes, serial, now).map(|next_update| (bytes, next_update))
        });
        let (ocsp_response, ocsp_status) = match staple {
            None => (None, OcspStatus::NotConfigured),
            Some(Ok((bytes, next_update))) => (Some(bytes), OcspStatus::Stapled(next_update)),
            Some(Err(error)) => (None, OcspStatus::Unusable(error)),
        };
        certified_key.ocsp = ocsp_response;
        let label = self.label.clone().or_else(|| match &chain.origin {
            PemOrigin::File(path) => Some(path.display().to_string().into()),
            PemOrigin::Memory | PemOrigin::Label(_) => {
                names.first().map(|name| name.as_str().into())
            }
        });
        Ok(Arc::new(LoadedCertificate {
            certified_key: Arc::new(certified_key),
            origin: chain.origin,
            label: label.unwrap_or_else(|| "(without a name)".into()),
            names,
            validity,
            ocsp: ocsp_status,
            digest,
        }))
    }
}

fn read_ocsp_response(source: &PemSource) -> Result<Vec<u8>, OcspError> {
    let bytes = source.path().and_then(|path| {
        let is_small = fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() <= OCSP_RESPONSE_BYTES_MAX);
        if is_small { fs::read(path).ok() } else { None }
    });
    bytes.filter(|bytes| !bytes.is_empty()).ok_or(OcspError::Unreadable)
}

/// The maximum size of an OCSP response. Usual ones have a few kilobytes, and clients reject
/// handshakes that are too long.
const OCSP_RESPONSE_BYTES_MAX: u64 = 16 * 1024;

/// A certificate with its key, read from its sources.
#[derive(Debug)]
pub(crate) struct LoadedCertificate {
    certified_key: Arc<CertifiedKey>,
    pub(crate) origin: PemOrigin,
    pub(crate) label: Arc<str>,
    /// The DNS names, in lower case.
    pub(crate) names: Vec<String>,
    pub(crate) validity: Option<Validity>,
    pub(crate) ocsp: OcspStatus,
    /// Digest of the files or texts it was read from.
    pub(crate) digest: Digest,
}

/// Whether an OCSP response is stapled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OcspStatus {
    /// None is configured.
    NotConfigured,
    /// It is stapled until this time, in seconds since 1970, if it has a `nextUpdate`.
    Stapled(Option<i64>),
    Unusable(OcspError),
}

impl LoadedCertificate {
    /// The server's own certificate.
    pub(crate) fn end_entity(&self) -> &CertificateDer<'static> {
        &self.certified_key.cert[0]
    }

    /// Returns whether the certificates are equal, regardless of their staples.
    pub(crate) fn is_same_certificate(&self, other: &Self) -> bool {
        self.certified_key.cert.first() == other.certified_key.cert.first()
    }

    pub(crate) fn ocsp_next_update(&self) -> Option<i64> {
        match self.ocsp {
            OcspStatus::Stapled(next_update) => next_update,
            OcspStatus::NotConfigured | OcspStatus::Unusable(_) => None,
        }
    }

    /// The warning to report if the certificate has expired or is not valid yet.
    pub(crate) fn expiry_warning(&self, now: i64) -> Option<TlsWarning> {
        let validity = self.validity?;
        let whole_days = |seconds: i64| seconds.unsigned_abs() / DAY;
        let origin = self.origin.clone();
        if now > validity.not_after {
            let days = whole_days(now - validity.not_after);
            Some(TlsWarning::Expired { origin, days })
        } else if now < validity.not_before {
            let days = whole_days(validity.not_before - now);
            Some(TlsWarning::NotYetValid { origin, days })
        } else {
            None
        }
    }

    /// All warnings to report. `warn_before` is how many seconds before expiry to warn.
    pub(crate) fn warnings(&self, now: i64, warn_before: i64) -> impl Iterator<Item = TlsWarning> {
        let remaining = self.validity.map(|validity| validity.not_after - now);
        let seconds = remaining.filter(|seconds| (0..=warn_before).contains(seconds));
        let expiry_soon = seconds.map(|seconds| TlsWarning::ExpiresSoon {
            origin: self.origin.clone(),
            days: seconds.unsigned_abs() / DAY,
        });
        let ocsp_error = match self.ocsp {
            OcspStatus::Unusable(ocsp_error) => Some(ocsp_error),
            OcspStatus::Stapled(Some(next_update)) if next_update <= now => {
                Some(OcspError::Expired)
            }
            OcspStatus::Stapled(_) | OcspStatus::NotConfigured => None,
        };
        let staple = ocsp_error.map(|ocsp_error| TlsWarning::OcspNotStapled {
            origin: self.origin.clone(),
            reason: ocsp_error,
        });
        self.expiry_warning(now).into_iter().chain(expiry_soon).chain(staple)
    }
}

const DAY: u64 = 86_400;

/// All certificates of a server. The first is the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct CertificateResolver {
    default: Option<Arc<CertifiedKey>>,
    /// By DNS name, in lower case.
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By the part of the DNS name after `*.`, in lower case.
    wildcard: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl CertificateResolver {
    /// Adds a certificate for its names, except names of earlier certificates. Returns false if it
    /// can never be chosen.
    pub(crate) fn add(&mut self, loaded: &LoadedCertificate) -> bool {
        let certified_key = &loaded.certified_key;
        let mut is_chosen = self.default.is_none();
        for name in &loaded.names {
            let (map, name) = match name.strip_prefix("*.") {
                Some(suffix) => (&mut self.wildcard, suffix),
                None => (&mut self.exact, name.as_str()),
            };
            if let Entry::Vacant(vacant) = map.entry(name.into()) {
                vacant.insert(Arc::clone(certified_key));
                is_chosen = true;
            }
        }
        self.default.get_or_insert_with(|| Arc::clone(certified_key));
        is_chosen
    }

    /// Chooses the certificate for a name: exact before wildcard, and the default for other names.
    fn find(&self, server_name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        // RFC 6066 §3: DNS names are compared without regard to case.
        let name = server_name.map(str::to_ascii_lowercase);
        name.as_deref()
            .and_then(|name| {
                // RFC 6125 §6.4.3: a wildcard stands for the left-most label only.
                let find_wildcard = || self.wildcard.get(name.split_once('.')?.1);
                self.exact.get(name).or_else(find_wildcard)
            })
            // RFC 6066 §3: a server that does not recognise the name may continue. Most clients
            // then show the certificate they got, which helps the user more than an alert.
            .or(self.default.as_ref())
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(client_hello.server_name()).cloned()
    }
}

/// Combines chain and key, and checks that they match.
fn build_certified_key(
    certificate: &Pem,
    key: &Pem,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsSetupError> {
    let chain = certificate.certificates()?;
    let key_origin = key.origin.clone();
    let key = provider
        .key_provider
        .load_private_key(key.key()?)
        .map_err(|error| TlsSetupError::UnsupportedKey { origin: key_origin.clone(), error })?;
    let certified_key = CertifiedKey::new(chain, key);
    match certified_key.keys_match() {
        // Some keys cannot provide their public half for comparison. A mismatch is then detected in
        // the first handshake.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified_key),
        Err(Error::InconsistentKeys(_)) => Err(TlsSetupError::KeyMismatch {
            certificate: certificate.origin.clone(),
            key: key_origin,
        }),
        Err(error) => {
            Err(TlsSetupError::BadCertificate { origin: certificate.origin.clone(), error })
        }
    }
}

// RFC 9110 §4.3.4: a reference identity is matched against subjectAltName; the common name is not
// used.
fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    webpki::EndEntityCert::try_from(certificate)
        .map(|parsed| parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
        .unwrap_or_default()
}
