//! The configuration of a server's TLS.

use crate::certificate::{Certificates, Pem};
use crate::choice::NotesChoice;
use crate::error::{TlsError, Warning};
use crate::limits::TICKETS_PER_HANDSHAKE;
use crate::session::Session;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, UnbufferedServerConnection};
use rustls_pki_types::UnixTime;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The TLS of a server: its certificates and what it offers. Cheap to clone; all workers share one,
/// and with it the keys of the tickets, so that a client may resume its session at any of them.
///
/// - TLS 1.3 and 1.2; the server's order of cipher suites counts, AES-128-GCM first.
/// - Sessions are resumed with tickets, one for each handshake, whose keys change every six hours.
///   Nothing is stored on the server.
/// - No early data: it can be replayed.
/// - ALPN offers `h2`, `http/1.1` and `http/1.0`; see [`Tls::with_alpn`].
/// - The certificate is chosen by the name a client asks for; see [`Tls::with_certificate`].
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    /// `None` if the configuration was made elsewhere.
    certificates: Option<Arc<Certificates>>,
    warnings: Arc<[Warning]>,
    checks_hosts: bool,
}

/// A certificate made by [`Tls::self_signed`], for development.
#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// The configuration that presents it.
    pub tls: Tls,
    /// The certificate in PEM, for clients that should trust it.
    pub certificate_pem: String,
}

impl Tls {
    /// Reads a certificate chain and its private key from PEM files.
    ///
    /// The chain holds the server's own certificate first, then its issuers. The key is ECDSA,
    /// Ed25519 or RSA, as PKCS #8, SEC 1 or PKCS #1, without a passphrase.
    ///
    /// # Errors
    ///
    /// A [`TlsError`] names the file, the cause and the remedy.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Self::from_parts(&Pem::file(certificate.as_ref())?, &Pem::file(key.as_ref())?)
    }

    /// As [`Tls::from_pem_files`], from text that the program has already.
    ///
    /// # Errors
    ///
    /// A [`TlsError`] names the cause and the remedy.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::from_parts(&Pem::memory(certificate), &Pem::memory(key))
    }

    /// Makes a certificate for these DNS names and IP addresses, with a new ECDSA P-256 key. It is
    /// for development: it is valid for one year, is lost when the program ends, and no client
    /// trusts it unless told to.
    ///
    /// # Errors
    ///
    /// [`TlsError::NotMade`] if a name is neither a DNS name nor an IP address.
    pub fn self_signed(names: &[&str]) -> Result<SelfSigned, TlsError> {
        let (certificate_pem, key_pem) =
            make_self_signed(names).map_err(|error| TlsError::NotMade {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                error,
            })?;
        let tls = Self::from_pem(certificate_pem.as_bytes(), key_pem.as_bytes())?;
        Ok(SelfSigned { tls, certificate_pem })
    }

    /// Uses a rustls configuration made elsewhere, for what this type does not offer, such as
    /// client certificates. Its certificate resolver is wrapped to learn the names that clients ask
    /// for.
    ///
    /// # Errors
    ///
    /// [`TlsError::EarlyData`] if it accepts early data, and [`TlsError::BadConfig`] if rustls
    /// cannot make a connection from it.
    pub fn from_config(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        if config.max_early_data_size > 0 {
            return Err(TlsError::EarlyData);
        }
        // Whether connections can be made depends on the configuration alone: it is tried once,
        // here.
        UnbufferedServerConnection::new(config.clone()).map_err(TlsError::BadConfig)?;
        let mut config = Arc::unwrap_or_clone(config);
        let resolver = config.cert_resolver.clone();
        config.cert_resolver = Arc::new(NotesChoice { resolver, keeps_certificate: false });
        Ok(Self {
            config: Arc::new(config),
            certificates: None,
            warnings: Arc::from([]),
            checks_hosts: false,
        })
    }

    /// Adds a certificate, chosen when a client asks for one of the DNS names it holds.
    ///
    /// An exact name goes before a wildcard, an earlier certificate before a later one with the
    /// same name. The first certificate is for clients that ask for no name or for an unknown one.
    ///
    /// # Errors
    ///
    /// As [`Tls::from_pem`], and [`TlsError::ForeignConfig`] after [`Tls::from_config`].
    pub fn with_certificate(self, certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        self.with_parts(&Pem::memory(certificate), &Pem::memory(key))
    }

    /// As [`Tls::with_certificate`], from files.
    ///
    /// # Errors
    ///
    /// As [`Tls::from_pem_files`], and [`TlsError::ForeignConfig`] after [`Tls::from_config`].
    pub fn with_certificate_files(
        self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        self.with_parts(&Pem::file(certificate.as_ref())?, &Pem::file(key.as_ref())?)
    }

    /// Sets the application protocols to agree on, the preferred one first. The default is `h2`
    /// (HTTP/2), then `http/1.1` and `http/1.0`; without `h2`, no client gets HTTP/2. With an empty
    /// list, the server takes no part in the negotiation.
    ///
    /// A client that offers protocols but none of these is refused.
    #[must_use]
    pub fn with_alpn(mut self, protocols: &[&[u8]]) -> Self {
        Arc::make_mut(&mut self.config).alpn_protocols =
            protocols.iter().map(|protocol| protocol.to_vec()).collect();
        self
    }

    /// Answers requests for a host that the connection's certificate does not name with 421
    /// (Misdirected Request). By default hosts are not checked, since people test with clients that
    /// trust any certificate.
    ///
    /// The host is that of the `Host` field, or of a target in absolute form; its port does not
    /// count. Wildcards stand for one label, and addresses are named as addresses. An HTTP/1.0
    /// request that names no host passes. A client that asks for a name that no certificate has
    /// gets the first certificate, so its requests are refused.
    // RFC 9110 §7.4: a request for an https resource must be rejected unless it was received over a
    // connection that was secured for that origin.
    #[must_use]
    pub fn with_host_check(mut self) -> Self {
        self.checks_hosts = true;
        let resolver = self.config.cert_resolver.clone();
        self.set_resolver(resolver);
        self
    }

    fn set_resolver(&mut self, resolver: Arc<dyn ResolvesServerCert>) {
        let keeps_certificate = self.checks_hosts;
        Arc::make_mut(&mut self.config).cert_resolver =
            Arc::new(NotesChoice { resolver, keeps_certificate });
    }

    /// The application protocols that the server agrees on, the preferred one first.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        self.config.alpn_protocols.iter().map(Vec::as_slice)
    }

    /// Warnings for the server's owner, such as an expired certificate; to be logged at start.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// A new connection's state. It takes no memory before the peer's first bytes.
    pub fn session(&self) -> Session {
        Session::new(self.config.clone())
    }

    fn from_parts(certificate: &Pem, key: &Pem) -> Result<Self, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::BadConfig)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Certificates::default()));
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = aws_lc_rs::Ticketer::new().map_err(TlsError::BadConfig)?;
        config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()];
        let empty = Self {
            config: Arc::new(config),
            certificates: Some(Arc::new(Certificates::default())),
            warnings: Arc::from([]),
            checks_hosts: false,
        };
        empty.with_parts(certificate, key)
    }

    fn with_parts(mut self, certificate: &Pem, key: &Pem) -> Result<Self, TlsError> {
        let mut certificates = self.certificates.take().ok_or(TlsError::ForeignConfig)?;
        let mut warnings = self.warnings.to_vec();
        let provider = self.config.crypto_provider().clone();
        Arc::make_mut(&mut certificates).add(certificate, key, &provider, &mut warnings)?;
        self.set_resolver(certificates.clone());
        self.certificates = Some(certificates);
        self.warnings = warnings.into();
        Ok(self)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("alpn_protocols", &self.config.alpn_protocols)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}

/// The default provider of rustls with AES-128 before AES-256: AES-128 takes less time, and so does
/// SHA-256 with its hardware support compared with the SHA-384 that goes with AES-256.
fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
            suite::TLS13_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        ..aws_lc_rs::default_provider()
    }
}

/// A certificate and its key, both in PEM.
fn make_self_signed(names: &[&str]) -> Result<(String, String), rcgen::Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names)?;
    parameters.distinguished_name.push(DnType::CommonName, "Peregrine development certificate");
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // The validity begins a day ago for clients whose clocks are behind. Some clients refuse
    // certificates that are valid for much longer than a year.
    let day = Duration::from_secs(86_400);
    let now = Duration::from_secs(UnixTime::now().as_secs());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_before = epoch + now.saturating_sub(day);
    parameters.not_after = epoch + now + 365 * day;
    let key = KeyPair::generate()?;
    let certificate = parameters.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}
