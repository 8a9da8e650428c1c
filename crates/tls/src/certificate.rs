//! Certificates with their keys: read from PEM, and chosen by the client's SNI.

use crate::digest::{Digest, sha256_of};
use crate::error::{Origin, TlsError, Warning};
use crate::source::{Pem, Source};
use crate::staple::{self, StapleFault};
use crate::validity::{Validity, fields};
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
/// use peregrine::tls::{Certificate, Tls};
///
/// let tls = Tls::from_pem_files("example.org.pem", "example.org.key")?;
/// let running = tls.clone(); // a clone shares everything
/// // Later, on any thread, while the server runs:
/// running.put_certificate(Certificate::from_files("shop.pem", "shop.key").labelled("shop"))?;
/// running.remove_certificate("shop")?;
/// # Ok::<(), peregrine::tls::TlsError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "has no effect until it is added to a `Tls`"]
pub struct Certificate {
    chain: Source,
    key: Source,
    staple: Option<Source>,
    label: Option<Arc<str>>,
}

impl Certificate {
    /// Uses PEM files. They are read when the certificate is added to a [`Tls`](crate::Tls), and
    /// again on each reload.
    pub fn from_files(chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        Self::new(Source::file(chain), Source::file(key))
    }

    /// Uses PEM text in memory.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Self {
        Self::new(Source::memory(chain), Source::memory(key))
    }

    fn new(chain: Source, key: Source) -> Self {
        Self { chain, key, staple: None, label: None }
    }

    /// Sets the name under which the certificate is replaced and removed. The default is the path
    /// of the chain or, without a file, the first DNS name.
    pub fn labelled(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Staples the OCSP response in this file (DER, as written by `openssl ocsp -respout`) to the
    /// certificate. A response that is missing, too old, for another certificate or not "good" is
    /// not sent; this is reported as a [`Warning`], not as an error.
    pub fn staple_file(mut self, path: impl AsRef<Path>) -> Self {
        self.staple = Some(Source::file(path));
        self
    }

    /// The files to read.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let sources = [Some(&self.chain), Some(&self.key), self.staple.as_ref()];
        sources.into_iter().flatten().filter_map(Source::path)
    }

    /// Reads the certificate. Reuses `before` if its contents are unchanged.
    pub(crate) fn load(
        &self,
        provider: &CryptoProvider,
        before: Option<&Arc<Loaded>>,
        now: i64,
    ) -> Result<Arc<Loaded>, TlsError> {
        let (mut chain, key) = (self.chain.read()?, self.key.read()?);
        let staple = self.staple.as_ref().map(read_staple);
        let staple_bytes = staple.as_ref().and_then(|staple| staple.as_ref().ok());
        let digest = sha256_of([
            &chain.digest()[..],
            &key.digest(),
            staple_bytes.map_or(&[][..], |bytes| &bytes[..]),
        ]);
        // The response may have expired even if the files are unchanged.
        if let Some(before) = before
            && before.digest == digest
            && before.staple_end().is_none_or(|end| now < end)
        {
            return Ok(Arc::clone(before));
        }
        if let (Origin::Memory, Some(label)) = (&chain.origin, &self.label) {
            chain.origin = Origin::Labelled(label.to_string());
        }
        let mut certified = certify(&chain, &key, provider)?;
        let own = &certified.cert[0];
        let (names, fields) = (names(own), fields(own));
        let validity = fields.as_ref().map(|fields| fields.validity);
        let serial = fields.map_or(&[][..], |fields| fields.serial);
        let staple = staple.map(|staple| {
            let bytes = staple?;
            staple::check(&bytes, serial, now).map(|end| (bytes, end))
        });
        let (ocsp, staple) = match staple {
            None => (None, Staple::None),
            Some(Ok((bytes, end))) => (Some(bytes), Staple::Sent(end)),
            Some(Err(fault)) => (None, Staple::Refused(fault)),
        };
        certified.ocsp = ocsp;
        let label = self.label.clone().or_else(|| match &chain.origin {
            Origin::File(path) => Some(path.display().to_string().into()),
            Origin::Memory | Origin::Labelled(_) => names.first().map(|name| name.as_str().into()),
        });
        Ok(Arc::new(Loaded {
            certified: Arc::new(certified),
            origin: chain.origin,
            label: label.unwrap_or_else(|| "(without a name)".into()),
            names,
            validity,
            staple,
            digest,
        }))
    }
}

fn read_staple(source: &Source) -> Result<Vec<u8>, StapleFault> {
    let bytes = source.path().and_then(|path| {
        let is_small = fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.len() <= STAPLE_BYTES_MAX);
        if is_small { fs::read(path).ok() } else { None }
    });
    bytes.filter(|bytes| !bytes.is_empty()).ok_or(StapleFault::Unreadable)
}

/// Responses have a few kilobytes; clients reject handshakes that are too long.
const STAPLE_BYTES_MAX: u64 = 16 * 1024;

/// A certificate that was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    certified: Arc<CertifiedKey>,
    pub(crate) origin: Origin,
    pub(crate) label: Arc<str>,
    /// The DNS names, in lower case.
    pub(crate) names: Vec<String>,
    pub(crate) validity: Option<Validity>,
    pub(crate) staple: Staple,
    /// Digest of the files or texts it was read from.
    pub(crate) digest: Digest,
}

/// Whether an OCSP response is stapled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staple {
    /// None is configured.
    None,
    /// It is stapled until this time, in seconds since 1970, if it has a `nextUpdate`.
    Sent(Option<i64>),
    Refused(StapleFault),
}

impl Loaded {
    /// The server's own certificate.
    pub(crate) fn own(&self) -> &CertificateDer<'static> {
        &self.certified.cert[0]
    }

    /// Returns whether the certificates are equal, regardless of their staples.
    pub(crate) fn is_certificate_of(&self, other: &Self) -> bool {
        self.certified.cert.first() == other.certified.cert.first()
    }

    pub(crate) fn staple_end(&self) -> Option<i64> {
        match self.staple {
            Staple::Sent(end) => end,
            Staple::None | Staple::Refused(_) => None,
        }
    }

    /// The warning to report if the certificate has expired or is not valid yet.
    pub(crate) fn date_warning(&self, now: i64) -> Option<Warning> {
        let valid = self.validity?;
        let whole_days = |seconds: i64| seconds.unsigned_abs() / DAY;
        let origin = self.origin.clone();
        if now > valid.not_after {
            let days = whole_days(now - valid.not_after);
            Some(Warning::Expired { origin, days })
        } else if now < valid.not_before {
            let days = whole_days(valid.not_before - now);
            Some(Warning::NotYetValid { origin, days })
        } else {
            None
        }
    }

    /// All warnings to report. `soon` is how many seconds before expiry to warn.
    pub(crate) fn warnings(&self, now: i64, soon: i64) -> impl Iterator<Item = Warning> {
        let end = self.validity.map(|valid| valid.not_after - now);
        let left = end.filter(|left| (0..=soon).contains(left));
        let expires = left.map(|left| Warning::ExpiresSoon {
            origin: self.origin.clone(),
            days: left.unsigned_abs() / DAY,
        });
        let fault = match self.staple {
            Staple::Refused(fault) => Some(fault),
            Staple::Sent(Some(end)) if end <= now => Some(StapleFault::Expired),
            Staple::Sent(_) | Staple::None => None,
        };
        let staple =
            fault.map(|fault| Warning::StapleNotSent { origin: self.origin.clone(), fault });
        self.date_warning(now).into_iter().chain(expires).chain(staple)
    }
}

const DAY: u64 = 86_400;

/// All certificates of a server. The first is the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Certificates {
    default: Option<Arc<CertifiedKey>>,
    /// By DNS name, in lower case.
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By what follows `*.`, in lower case.
    wildcard: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl Certificates {
    /// Adds a certificate for its names, except names of earlier certificates. Returns false if it
    /// can never be chosen.
    pub(crate) fn add(&mut self, loaded: &Loaded) -> bool {
        let certified = &loaded.certified;
        let mut is_chosen = self.default.is_none();
        for name in &loaded.names {
            let (map, name) = match name.strip_prefix("*.") {
                Some(rest) => (&mut self.wildcard, rest),
                None => (&mut self.exact, name.as_str()),
            };
            if let Entry::Vacant(vacant) = map.entry(name.into()) {
                vacant.insert(Arc::clone(certified));
                is_chosen = true;
            }
        }
        self.default.get_or_insert_with(|| Arc::clone(certified));
        is_chosen
    }

    /// Chooses the certificate for a name: exact before wildcard, and the default for other names.
    fn choose(&self, server_name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        // RFC 6066 §3: DNS names are compared without regard to case.
        let name = server_name.map(str::to_ascii_lowercase);
        name.as_deref()
            .and_then(|name| {
                // RFC 6125 §6.4.3: a wildcard stands for the left-most label only.
                let covered_by_wildcard = || self.wildcard.get(name.split_once('.')?.1);
                self.exact.get(name).or_else(covered_by_wildcard)
            })
            // RFC 6066 §3: a server that does not recognise the name may continue. Most clients
            // then show the certificate they got, which helps the user more than an alert.
            .or(self.default.as_ref())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(client_hello.server_name()).cloned()
    }
}

/// Combines chain and key, and checks that they match.
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
        // Some keys cannot provide their public half for comparison. A mismatch then shows in the
        // first handshake.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => {
            Err(TlsError::KeyMismatch { certificate: certificate.origin.clone(), key: key_origin })
        }
        Err(error) => Err(TlsError::BadCertificate { origin: certificate.origin.clone(), error }),
    }
}

/// The DNS names of a certificate, in lower case.
// RFC 9110 §4.3.4: a reference identity is matched against subjectAltName; the common name is not
// used.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    webpki::EndEntityCert::try_from(certificate)
        .map(|parsed| parsed.valid_dns_names().map(str::to_ascii_lowercase).collect())
        .unwrap_or_default()
}
