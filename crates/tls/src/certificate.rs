//! Certificates with their keys: read from PEM, and chosen by the name a client asks for.

use crate::error::{Origin, TlsError, Warning};
use crate::limits::PEM_BYTES_MAX;
use crate::validity::validity;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// PEM text and where it came from.
pub(crate) struct Pem {
    text: Vec<u8>,
    origin: Origin,
}

impl Pem {
    pub(crate) fn memory(text: &[u8]) -> Self {
        Self { text: text.to_vec(), origin: Origin::Memory }
    }

    pub(crate) fn file(path: &Path) -> Result<Self, TlsError> {
        let mut text = Vec::new();
        File::open(path)
            .and_then(|file| file.take(PEM_BYTES_MAX as u64 + 1).read_to_end(&mut text))
            .map_err(|error| TlsError::Unreadable { path: path.to_owned(), error })?;
        if text.len() > PEM_BYTES_MAX {
            return Err(TlsError::TooLarge { path: path.to_owned() });
        }
        Ok(Self { text, origin: Origin::File(path.to_owned()) })
    }

    /// All certificates, the server's own first.
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain = CertificateDer::pem_slice_iter(&self.text)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| self.broken(error))?;
        if chain.is_empty() {
            let holds_key = PrivateKeyDer::from_pem_slice(&self.text).is_ok();
            return Err(TlsError::NoCertificate { origin: self.origin.clone(), holds_key });
        }
        Ok(chain)
    }

    /// The first private key.
    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        // RFC 7468 §11 and RFC 1421 §4.6.1.1: the two ways in which PEM says that a key is
        // encrypted.
        for mark in ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "Proc-Type: 4,ENCRYPTED"] {
            if self.text.windows(mark.len()).any(|window| window == mark.as_bytes()) {
                return Err(TlsError::EncryptedKey { origin: self.origin.clone() });
            }
        }
        PrivateKeyDer::from_pem_slice(&self.text).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey {
                origin: self.origin.clone(),
                holds_certificate: CertificateDer::from_pem_slice(&self.text).is_ok(),
            },
            error => self.broken(error),
        })
    }

    fn broken(&self, error: pem::Error) -> TlsError {
        TlsError::BrokenPem { origin: self.origin.clone(), error }
    }
}

/// All certificates of a server. The first is the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    default: Option<Arc<CertifiedKey>>,
    /// By name in lower case.
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By what follows `*.`, in lower case.
    wildcard: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl Certificates {
    /// Adds a certificate for the names it holds, except those an earlier one has.
    pub(crate) fn add(
        &mut self,
        certificate: &Pem,
        key: &Pem,
        provider: &CryptoProvider,
        warnings: &mut Vec<Warning>,
    ) -> Result<(), TlsError> {
        let certified = Arc::new(certify(certificate, key, provider)?);
        let own = &certified.cert[0];
        warnings.extend(warn_of_dates(own, &certificate.origin, UnixTime::now()));

        let mut is_chosen = self.default.is_none();
        for name in names(own) {
            let (map, name) = match name.strip_prefix("*.") {
                Some(rest) => (&mut self.wildcard, rest),
                None => (&mut self.exact, name.as_str()),
            };
            if let Entry::Vacant(vacant) = map.entry(name.into()) {
                vacant.insert(certified.clone());
                is_chosen = true;
            }
        }
        if !is_chosen {
            warnings.push(Warning::NeverChosen { origin: certificate.origin.clone() });
        }
        self.default.get_or_insert(certified);
        Ok(())
    }

    /// The certificate for a name: exact before wildcard, and the default for all others.
    fn choose(&self, server_name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        // RFC 6066 §3: DNS names are compared without regard to case.
        let name = server_name.map(str::to_ascii_lowercase);
        name.as_deref()
            .and_then(|name| {
                // RFC 6125 §6.4.3: a wildcard stands for the left-most label only.
                let covered_by_wildcard = || self.wildcard.get(name.split_once('.')?.1);
                self.exact.get(name).or_else(covered_by_wildcard)
            })
            // RFC 6066 §3: a server that does not know the name may go on; most clients then show
            // which certificate they got, which helps more than an alert.
            .or(self.default.as_ref())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(client_hello.server_name()).cloned()
    }
}

/// The chain with its key, after a check that they belong together.
fn certify(
    certificate: &Pem,
    key: &Pem,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificate.chain()?;
    let key_origin = key.origin.clone();
    let key = provider
        .key_provider
        .load_private_key(key.key()?)
        .map_err(|error| TlsError::UnsupportedKey { origin: key_origin.clone(), error })?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // A key that cannot tell its public half cannot be compared; a mismatch shows at the first
        // handshake.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => {
            Err(TlsError::KeyMismatch { certificate: certificate.origin.clone(), key: key_origin })
        }
        Err(error) => Err(TlsError::BadCertificate { origin: certificate.origin.clone(), error }),
    }
}

/// The DNS names of a certificate in lower case.
// RFC 9110 §4.3.4: a reference identity is matched against subjectAltName; the common name is not
// used.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    webpki::EndEntityCert::try_from(certificate)
        .map(|parsed| parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
        .unwrap_or_default()
}

fn warn_of_dates(
    certificate: &CertificateDer<'_>,
    origin: &Origin,
    now: UnixTime,
) -> Option<Warning> {
    let valid = validity(certificate)?;
    let now = i64::try_from(now.as_secs()).ok()?;
    let whole_days = |seconds: i64| seconds.unsigned_abs() / 86_400;
    if now > valid.not_after {
        let days = whole_days(now - valid.not_after);
        Some(Warning::Expired { origin: origin.clone(), days })
    } else if now < valid.not_before {
        let days = whole_days(valid.not_before - now);
        Some(Warning::NotYetValid { origin: origin.clone(), days })
    } else {
        None
    }
}
