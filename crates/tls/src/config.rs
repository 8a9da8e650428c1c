//! The TLS configuration of a server, and changes to it while the server runs.

use crate::certificate::Certificate;
use crate::challenge::CertificateProvider;
use crate::client_auth::ClientAuth;
use crate::connection::TlsConnection;
use crate::error::{TlsSetupError, TlsWarning};
use crate::handshake_info::TlsVersion;
use crate::self_signed::generate_self_signed;
use crate::spec::{ConfigBase, ConfigSpec, ReloadReport, check_usable};
use crate::status::{StatusTracker, TlsStatus};
use crate::tickets::TicketKeys;
use rustls::{KeyLogFile, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// The TLS configuration of a server. Cheap to clone; all workers share one, including its ticket
/// keys, so clients can resume a session on any worker.
///
/// - TLS 1.3 and 1.2. The server's order of cipher suites applies, AES-128-GCM first.
/// - Sessions are resumed with tickets, one per handshake, whose keys change every six hours. The
///   server stores no session state.
/// - No early data, because it can be replayed.
/// - ALPN offers `h2`, `http/1.1` and `http/1.0`; see [`TlsConfig::with_alpn`].
/// - The certificate is chosen by the client's SNI; see [`TlsConfig::with_certificate_pem`].
///
/// # While the server runs
///
/// A clone is a handle to the configuration that the server uses: [`TlsConfig::reload`] reads all
/// files again, [`TlsConfig::upsert_certificate`] and [`TlsConfig::remove_certificate`] change the
/// certificates, and [`TlsConfig::status`] reports the results. Each change is atomic and applies
/// to handshakes that start after it; if it fails, nothing changes. Open connections and running
/// handshakes keep the configuration they started with. The `with_...` methods create a new value
/// that shares only its ticket keys with the old one, so clone the handle after calling them.
#[doc(alias = "TlsAcceptor")]
#[doc(alias = "ServerConfig")]
#[doc(alias = "RustlsConfig")]
#[derive(Clone)]
pub struct TlsConfig {
    shared: Arc<ConfigShared>,
    alpn: Arc<[Vec<u8>]>,
    warnings: Arc<[TlsWarning]>,
    pub(crate) provider: Option<CertificateProvider>,
}

/// A self-signed certificate for development, created by [`TlsConfig::self_signed`].
#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// The configuration that presents the certificate.
    pub tls: TlsConfig,
    /// The certificate in PEM, for clients that should trust it.
    pub certificate_pem: String,
}

struct ConfigShared {
    /// The configuration for new handshakes.
    config: RwLock<Arc<ServerConfig>>,
    /// Locked while files are read, so that changes are made one at a time.
    spec: Mutex<ConfigSpec>,
    status: Mutex<StatusTracker>,
}

impl TlsConfig {
    /// Reads a certificate chain and its private key from PEM files; see [`Certificate`].
    ///
    /// # Errors
    ///
    /// A [`TlsSetupError`] names the file, the cause and the remedy.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsSetupError> {
        Self::from_certificate(Certificate::from_files(certificate, key))
    }

    /// Like [`TlsConfig::from_pem_files`], with PEM text in memory.
    ///
    /// # Errors
    ///
    /// A [`TlsSetupError`] names the cause and the remedy.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsSetupError> {
        Self::from_certificate(Certificate::from_pem(certificate, key))
    }

    /// Like [`TlsConfig::from_pem_files`], with the further options of [`Certificate`].
    ///
    /// # Errors
    ///
    /// A [`TlsSetupError`] names the cause and the remedy.
    pub fn from_certificate(certificate: Certificate) -> Result<Self, TlsSetupError> {
        let mut spec = ConfigSpec::new()?;
        spec.managed_mut()?.add(certificate)?;
        Self::from_spec(spec)
    }

    /// Creates a certificate for these DNS names and IP addresses, with a new ECDSA P-256 key. It
    /// is meant for development: it is valid for one year, is lost when the program ends, and
    /// clients trust it only if configured to.
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::SelfSignedFailed`] if a name is neither a DNS name nor an IP address.
    pub fn self_signed(names: &[&str]) -> Result<SelfSigned, TlsSetupError> {
        let (certificate_pem, key_pem) =
            generate_self_signed(names).map_err(|error| TlsSetupError::SelfSignedFailed {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                error,
            })?;
        let tls = Self::from_pem(certificate_pem.as_bytes(), key_pem.as_bytes())?;
        Ok(SelfSigned { tls, certificate_pem })
    }

    /// Uses an existing rustls configuration, for options that this type does not offer. Its
    /// certificate resolver is wrapped to record the requested names. Reloading does nothing in
    /// this case.
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::EarlyDataEnabled`] if it accepts early data, and
    /// [`TlsSetupError::BadConfig`] if rustls cannot create a connection from it.
    pub fn from_config(config: Arc<ServerConfig>) -> Result<Self, TlsSetupError> {
        if config.max_early_data_size > 0 {
            return Err(TlsSetupError::EarlyDataEnabled);
        }
        check_usable(&config)?;
        Self::from_spec(ConfigSpec::external(config))
    }

    pub(crate) fn from_spec(spec: ConfigSpec) -> Result<Self, TlsSetupError> {
        let built = spec.build()?;
        let mut status = StatusTracker::default();
        status.on_config_change(&spec, &built);
        let (alpn, warnings) = (spec.alpn.clone().into(), status.warnings().into());
        let provider = spec.provider.clone();
        let shared = ConfigShared {
            config: RwLock::new(built.config),
            spec: Mutex::new(spec),
            status: Mutex::new(status),
        };
        Ok(Self { shared: Arc::new(shared), alpn, warnings, provider })
    }

    /// Adds a certificate, which is chosen if a client requests one of its DNS names.
    ///
    /// An exact name takes precedence over a wildcard, and an earlier certificate over a later one
    /// with the same name. The first certificate is used for clients that send no name or an
    /// unknown one.
    ///
    /// # Errors
    ///
    /// As [`TlsConfig::from_pem`], and [`TlsSetupError::ExternalConfig`] after
    /// [`TlsConfig::from_config`].
    pub fn with_certificate_pem(
        self,
        certificate: &[u8],
        key: &[u8],
    ) -> Result<Self, TlsSetupError> {
        self.with_certificate(Certificate::from_pem(certificate, key))
    }

    /// Like [`TlsConfig::with_certificate_pem`], with files.
    ///
    /// # Errors
    ///
    /// As [`TlsConfig::from_pem_files`], and [`TlsSetupError::ExternalConfig`] after
    /// [`TlsConfig::from_config`].
    pub fn with_certificate_files(
        self,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsSetupError> {
        self.with_certificate(Certificate::from_files(certificate, key))
    }

    /// Like [`TlsConfig::with_certificate_pem`], with the further options of [`Certificate`].
    ///
    /// # Errors
    ///
    /// As [`TlsConfig::from_pem_files`], and [`TlsSetupError::ExternalConfig`] after
    /// [`TlsConfig::from_config`].
    pub fn with_certificate(self, certificate: Certificate) -> Result<Self, TlsSetupError> {
        self.rebuild(|spec| spec.managed_mut()?.add(certificate))
    }

    /// Requests certificates from clients.
    ///
    /// # Errors
    ///
    /// A [`TlsSetupError`] that names the file, the cause and the remedy;
    /// [`TlsSetupError::ExternalConfig`] after [`TlsConfig::from_config`].
    pub fn with_client_auth(self, client_auth: ClientAuth) -> Result<Self, TlsSetupError> {
        self.rebuild(|spec| spec.managed_mut()?.set_client_auth(client_auth))
    }

    /// Uses these keys for session tickets instead of random ones.
    ///
    /// Has no effect after [`TlsConfig::from_config`], because that configuration has its own
    /// ticketer.
    #[must_use]
    pub fn with_ticket_keys(self, keys: TicketKeys) -> Self {
        self.rebuild_infallible(|spec| {
            if let ConfigBase::Managed(managed) = &mut spec.base {
                managed.tickets = keys;
            }
        })
    }

    /// Sets the oldest version to accept. The default is [`TlsVersion::Tls12`].
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::NoCipherSuite`] if none of the enabled cipher suites is for this version;
    /// [`TlsSetupError::ExternalConfig`] after [`TlsConfig::from_config`].
    pub fn with_min_version(self, minimum: TlsVersion) -> Result<Self, TlsSetupError> {
        self.rebuild(|spec| {
            spec.managed_mut()?.protocol.minimum = minimum;
            Ok(())
        })
    }

    /// Restricts the cipher suites to these, in order of preference, by their registered names
    /// (`TLS_AES_128_GCM_SHA256`) or OpenSSL's (`ECDHE-RSA-AES128-GCM-SHA256`). There are nine, all
    /// of them secure; leaving some out is only needed for compliance. A version without any suite
    /// is disabled.
    ///
    /// ```
    /// use peregrine::tls::TlsConfig;
    ///
    /// let self_signed = TlsConfig::self_signed(&["localhost"])?;
    /// let tls = self_signed.tls.with_cipher_suites(&["TLS_AES_256_GCM_SHA384"])?;
    /// let error = tls.with_cipher_suites(&["RC4-SHA"]).unwrap_err().to_string();
    /// assert!(error.contains("RC4-SHA") && error.contains("TLS13_AES_256_GCM_SHA384"));
    /// # Ok::<(), peregrine::tls::TlsSetupError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::UnknownAlgorithm`], which lists the known names;
    /// [`TlsSetupError::NoCipherSuite`] if none is for the minimum version;
    /// [`TlsSetupError::ExternalConfig`] after [`TlsConfig::from_config`].
    pub fn with_cipher_suites(self, names: &[&str]) -> Result<Self, TlsSetupError> {
        self.rebuild(|spec| {
            let managed = spec.managed_mut()?;
            managed.protocol.set_suites(names)?;
            managed.rebuild_provider();
            Ok(())
        })
    }

    /// Restricts the key exchange groups to these, in order of preference: `X25519MLKEM768`,
    /// `X25519`, `secp256r1` (`P-256`), `secp384r1` (`P-384`). The first exists only in TLS 1.3.
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::UnknownAlgorithm`], which lists the known names;
    /// [`TlsSetupError::ExternalConfig`] after [`TlsConfig::from_config`].
    pub fn with_key_exchange_groups(self, names: &[&str]) -> Result<Self, TlsSetupError> {
        self.rebuild(|spec| {
            let managed = spec.managed_mut()?;
            managed.protocol.set_groups(names)?;
            managed.rebuild_provider();
            Ok(())
        })
    }

    /// Writes the secrets of each connection to the file named by the environment variable
    /// `SSLKEYLOGFILE`, if it is set, so that Wireshark can decrypt captured traffic. Anyone who
    /// has that file can read everything: never use this in production. Without this call the
    /// variable is ignored.
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::ExternalConfig`] after [`TlsConfig::from_config`].
    pub fn with_key_log(self) -> Result<Self, TlsSetupError> {
        self.rebuild(|spec| {
            spec.managed_mut()?.key_log = Some(Arc::new(KeyLogFile::new()));
            Ok(())
        })
    }

    /// Sets how long before expiry to warn about a certificate. The default is 14 days.
    #[must_use]
    pub fn with_expiry_warning(self, duration: Duration) -> Self {
        self.rebuild_infallible(|spec| spec.expiry_warning_before = duration)
    }

    /// Sets the application protocols in order of preference. The default is `h2` (HTTP/2), then
    /// `http/1.1` and `http/1.0`; without `h2`, clients cannot use HTTP/2. With an empty list, ALPN
    /// is disabled.
    ///
    /// A client that offers only other protocols is rejected.
    #[must_use]
    pub fn with_alpn(self, protocols: &[&[u8]]) -> Self {
        self.rebuild_infallible(|spec| {
            spec.alpn = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        })
    }

    /// Rejects requests with 421 (Misdirected Request) if the connection's certificate is not valid
    /// for their host. By default hosts are not checked, because clients used for testing often
    /// trust any certificate.
    ///
    /// The host is that of the `Host` field, or of a target in absolute form; its port is ignored.
    /// Wildcards match one label, and IP addresses match only entries for IP addresses. An HTTP/1.0
    /// request without a host is accepted. Clients that send an SNI for which there is no
    /// certificate get the first certificate, so their requests are rejected.
    // RFC 9110 §7.4: a request for an https resource must be rejected unless it was received over a
    // connection that was secured for that origin.
    #[must_use]
    pub fn with_host_check(self) -> Self {
        self.rebuild_infallible(|spec| spec.checks_hosts = true)
    }

    /// Creates a new value from a changed copy of this value's settings.
    fn rebuild(
        self,
        change: impl FnOnce(&mut ConfigSpec) -> Result<(), TlsSetupError>,
    ) -> Result<Self, TlsSetupError> {
        let mut spec = self.spec().clone();
        change(&mut spec)?;
        Self::from_spec(spec)
    }

    fn rebuild_infallible(self, change: impl FnOnce(&mut ConfigSpec)) -> Self {
        let result = self.rebuild(|spec| {
            change(spec);
            Ok(())
        });
        result.expect("the previous configuration was valid, and this change cannot break it")
    }

    /// Reads all files again: certificates, keys, staples, roots and revocation lists for clients,
    /// ticket keys. The new contents apply from the next handshake on. If anything is wrong with
    /// them, such as a truncated file, a key that does not match, or a new certificate that has
    /// expired or is not valid yet, nothing changes; the log and [`TlsConfig::status`] report the
    /// reason.
    ///
    /// Reads files and may therefore block: in a handler, call it through
    /// `peregrine::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// A [`TlsSetupError`] names the file, the cause and the remedy.
    pub fn reload(&self) -> Result<ReloadReport, TlsSetupError> {
        let mut spec = self.spec();
        let result = spec.check_regular_files().and_then(|()| spec.reload()).and_then(
            |(next, mut report, tickets)| {
                if report.has_changes() {
                    self.activate(&mut spec, next)?;
                }
                report.tickets = tickets.is_some_and(|pending| match &spec.base {
                    ConfigBase::Managed(managed) => managed.tickets.apply(pending),
                    ConfigBase::External(_) => false,
                });
                Ok(report)
            },
        );
        self.status_tracker().record_reload(&result);
        result
    }

    /// Adds a certificate while the server runs, or replaces the one with the same label
    /// ([`Certificate::label`]).
    ///
    /// # Errors
    ///
    /// As [`TlsConfig::reload`]; [`TlsSetupError::ExternalConfig`] after
    /// [`TlsConfig::from_config`]. On an error, nothing changes.
    pub fn upsert_certificate(&self, certificate: Certificate) -> Result<(), TlsSetupError> {
        self.upsert_certificate_before(certificate, &[])
    }

    /// Like [`TlsConfig::upsert_certificate`]; a new certificate is inserted before those with
    /// these labels.
    ///
    /// # Errors
    ///
    /// As [`TlsConfig::upsert_certificate`].
    #[doc(hidden)]
    pub fn upsert_certificate_before(
        &self,
        certificate: Certificate,
        labels: &[String],
    ) -> Result<(), TlsSetupError> {
        self.update_running(|spec| spec.managed_mut()?.upsert(certificate, labels).map(|()| true))
            .map(drop)
    }

    /// Removes the certificate with this label while the server runs. Returns false if there is
    /// none. Clients that request its names then get the default, which is the first of the
    /// remaining ones.
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::LastCertificate`] if it is the only one; [`TlsSetupError::ExternalConfig`]
    /// after [`TlsConfig::from_config`].
    pub fn remove_certificate(&self, label: &str) -> Result<bool, TlsSetupError> {
        self.update_running(|spec| spec.managed_mut()?.remove(label))
    }

    fn update_running(
        &self,
        change: impl FnOnce(&mut ConfigSpec) -> Result<bool, TlsSetupError>,
    ) -> Result<bool, TlsSetupError> {
        let mut spec = self.spec();
        let mut next = spec.clone();
        let is_changed = change(&mut next)?;
        if is_changed {
            self.activate(&mut spec, next)?;
        }
        Ok(is_changed)
    }

    /// Builds a rustls configuration from `next` and puts it into use.
    fn activate(&self, spec: &mut ConfigSpec, next: ConfigSpec) -> Result<(), TlsSetupError> {
        let built = next.build()?;
        self.status_tracker().on_config_change(&next, &built);
        *self.shared.config.write().unwrap_or_else(PoisonError::into_inner) = built.config;
        *spec = next;
        Ok(())
    }

    fn spec(&self) -> MutexGuard<'_, ConfigSpec> {
        self.shared.spec.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status_tracker(&self) -> MutexGuard<'_, StatusTracker> {
        self.shared.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The results of reloads, the certificates with their dates, and the current warnings.
    pub fn status(&self) -> TlsStatus {
        self.status_tracker().status()
    }

    /// Returns whether a reload is useful although no file has changed: to drop a staple that has
    /// expired, or to retry after a failure.
    #[must_use]
    pub fn is_reload_due(&self) -> bool {
        let status = self.status_tracker();
        status.has_expired_ocsp() || status.has_failed()
    }

    /// The files that a reload reads.
    pub fn files(&self) -> Vec<PathBuf> {
        self.spec().files()
    }

    /// The keys for session tickets, for handing them over to other instances and to the next
    /// process; `None` after [`TlsConfig::from_config`].
    pub fn ticket_keys(&self) -> Option<TicketKeys> {
        match &self.spec().base {
            ConfigBase::Managed(managed) => Some(managed.tickets.clone()),
            ConfigBase::External(_) => None,
        }
    }

    /// Returns whether both are handles to the same configuration.
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The application protocols, in order of preference.
    pub fn alpn_protocols(&self) -> impl Iterator<Item = &[u8]> {
        self.alpn.iter().map(Vec::as_slice)
    }

    /// The warnings found when this value was created, such as an expired certificate. The server
    /// logs them at startup, and those of [`TlsConfig::status`] daily.
    pub fn warnings(&self) -> &[TlsWarning] {
        &self.warnings
    }

    /// Creates the state of a new connection. It allocates nothing before the peer's first bytes,
    /// or very little while ACME challenges are pending.
    pub fn new_connection(&self) -> TlsConnection {
        let config = self.shared.config.read().unwrap_or_else(PoisonError::into_inner);
        match self.active_challenges() {
            None => TlsConnection::new(Arc::clone(&config)),
            Some(challenges) => {
                TlsConnection::with_challenges(Arc::clone(&config), Arc::clone(challenges))
            }
        }
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("alpn_protocols", &self.alpn)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}
