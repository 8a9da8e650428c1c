//! Builds a rustls configuration from the settings and the files' contents.

use crate::certificate::{Certificate, CertificateResolver, LoadedCertificate};
use crate::challenge::CertificateProvider;
use crate::client_auth::{ClientAuth, LoadedClientAuth};
use crate::error::{TlsSetupError, TlsWarning};
use crate::limits::TICKETS_PER_HANDSHAKE;
use crate::protocol::ProtocolSettings;
use crate::resolver::RecordingResolver;
use crate::sha256::Digest;
use crate::tickets::{PendingKeys, TicketKeys, Ticketer};
use rustls::crypto::CryptoProvider;
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection};
use rustls::{KeyLog, ServerConfig};
use rustls_pki_types::UnixTime;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

/// All settings, with the contents of the files they name. Changes are made to a copy, which
/// replaces the original once a rustls configuration could be built from it.
#[derive(Clone)]
pub(crate) struct ConfigSpec {
    pub(crate) base: ConfigBase,
    pub(crate) alpn: Vec<Vec<u8>>,
    pub(crate) checks_hosts: bool,
    /// How long before expiry to warn about a certificate.
    pub(crate) expiry_warning_before: Duration,
    pub(crate) provider: Option<CertificateProvider>,
}

/// The basis of the configuration.
#[derive(Clone)]
pub(crate) enum ConfigBase {
    Managed(Box<ManagedConfig>),
    /// An existing rustls configuration.
    External(Arc<ServerConfig>),
}

#[derive(Clone)]
pub(crate) struct ManagedConfig {
    certificates: Vec<(Certificate, Arc<LoadedCertificate>)>,
    client_auth: Option<(ClientAuth, LoadedClientAuth)>,
    pub(crate) protocol: ProtocolSettings,
    pub(crate) tickets: TicketKeys,
    pub(crate) key_log: Option<Arc<dyn KeyLog>>,
    /// Whether the list of certificates may be empty.
    pub(crate) allow_no_certificate: bool,
    provider: Arc<CryptoProvider>,
}

/// The result of building a [`ConfigSpec`].
pub(crate) struct BuiltConfig {
    pub(crate) config: Arc<ServerConfig>,
    /// Warnings about certificates that can never be chosen.
    pub(crate) shadowed: Vec<TlsWarning>,
}

/// The parts that a reload has replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// The labels of certificates that are new or have a new staple.
    pub certificates: Vec<String>,
    /// The roots or revocation lists for client certificates are new.
    pub client_auth: bool,
    /// The ticket keys are new.
    pub tickets: bool,
}

impl ReloadReport {
    /// Returns whether anything is new.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        *self != Self::default()
    }
}

impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.has_changes() {
            return f.write_str("nothing has changed");
        }
        let certificates = (!self.certificates.is_empty())
            .then(|| format!("certificates ({})", self.certificates.join(", ")));
        let client_auth = self.client_auth.then(|| "client roots or revocation lists".to_owned());
        let tickets = self.tickets.then(|| "ticket keys".to_owned());
        let parts: Vec<_> = [certificates, client_auth, tickets].into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

pub(crate) fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

impl ConfigSpec {
    /// The default settings, without a certificate.
    pub(crate) fn new() -> Result<Self, TlsSetupError> {
        let protocol = ProtocolSettings::default();
        let managed = ManagedConfig {
            certificates: Vec::new(),
            client_auth: None,
            provider: Arc::new(protocol.provider()),
            protocol,
            tickets: TicketKeys::random()?,
            key_log: None,
            allow_no_certificate: false,
        };
        let alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()];
        Ok(Self::from(ConfigBase::Managed(Box::new(managed)), alpn))
    }

    pub(crate) fn external(config: Arc<ServerConfig>) -> Self {
        let alpn = config.alpn_protocols.clone();
        Self::from(ConfigBase::External(config), alpn)
    }

    fn from(base: ConfigBase, alpn: Vec<Vec<u8>>) -> Self {
        Self {
            base,
            alpn,
            checks_hosts: false,
            expiry_warning_before: EXPIRY_WARNING_BEFORE,
            provider: None,
        }
    }

    /// Returns the settings, or an error if the rustls configuration was provided by the user.
    pub(crate) fn managed_mut(&mut self) -> Result<&mut ManagedConfig, TlsSetupError> {
        match &mut self.base {
            ConfigBase::Managed(managed) => Ok(managed),
            ConfigBase::External(_) => Err(TlsSetupError::ExternalConfig),
        }
    }

    /// Rejects files that are not regular. Opening a named pipe would block until another process
    /// writes to it, possibly forever, and so would all later reloads.
    pub(crate) fn check_regular_files(&self) -> Result<(), TlsSetupError> {
        let is_not_regular =
            |path: &PathBuf| fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        match self.files().into_iter().find(is_not_regular) {
            None => Ok(()),
            Some(path) => {
                let cause = "it is not a regular file and cannot be read again";
                let error = io::Error::new(io::ErrorKind::InvalidInput, cause);
                Err(TlsSetupError::Unreadable { path, error })
            }
        }
    }

    /// Returns the files to read.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let ConfigBase::Managed(managed) = &self.base else { return Vec::new() };
        let certificates = managed.certificates.iter().flat_map(|(source, _)| source.paths());
        let client_auth_paths =
            managed.client_auth.iter().flat_map(|(client_auth, _)| client_auth.paths());
        let paths = certificates.chain(client_auth_paths).chain(managed.tickets.path());
        paths.map(ToOwned::to_owned).collect()
    }

    pub(crate) fn certificates(&self) -> Vec<Arc<LoadedCertificate>> {
        let ConfigBase::Managed(managed) = &self.base else { return Vec::new() };
        managed.certificates.iter().map(|(_, loaded)| Arc::clone(loaded)).collect()
    }

    pub(crate) fn client_auth(&self) -> Option<&LoadedClientAuth> {
        let ConfigBase::Managed(managed) = &self.base else { return None };
        managed.client_auth.as_ref().map(|(_, loaded)| loaded)
    }

    pub(crate) fn build(&self) -> Result<BuiltConfig, TlsSetupError> {
        match &self.base {
            ConfigBase::Managed(managed) => managed.build(&self.alpn, self.checks_hosts),
            ConfigBase::External(config) => {
                let mut config = ServerConfig::clone(config);
                config.alpn_protocols.clone_from(&self.alpn);
                let resolver = Arc::clone(&config.cert_resolver);
                let record_certificate = self.checks_hosts;
                config.cert_resolver = Arc::new(RecordingResolver { resolver, record_certificate });
                Ok(BuiltConfig { config: Arc::new(config), shadowed: Vec::new() })
            }
        }
    }

    /// Reads all files again. Ticket keys that were read are not applied yet.
    pub(crate) fn reload(
        &self,
    ) -> Result<(Self, ReloadReport, Option<PendingKeys>), TlsSetupError> {
        let mut next = self.clone();
        let ConfigBase::Managed(managed) = &mut next.base else {
            return Ok((next, ReloadReport::default(), None));
        };
        let (mut report, now) = (ReloadReport::default(), now());
        for (source, loaded) in &mut managed.certificates {
            let new = source.load(&managed.provider, Some(&*loaded), now)?;
            if !new.is_same_certificate(loaded) {
                check_dates(&new, now)?;
            }
            if !Arc::ptr_eq(&new, loaded) {
                report.certificates.push(new.label.to_string());
                *loaded = new;
            }
        }
        if let Some((source, loaded)) = &mut managed.client_auth {
            let new = source.load(&managed.provider)?;
            report.client_auth = new.digest != loaded.digest;
            if report.client_auth
                && let Some(TlsWarning::RevocationListExpired { origin }) = new.warnings(now).next()
            {
                return Err(TlsSetupError::ExpiredRevocationList { origin });
            }
            *loaded = new;
        }
        let tickets = managed.tickets.reload()?;
        Ok((next, report, tickets))
    }
}

/// How long before expiry to warn about a certificate, by default: 14 days.
const EXPIRY_WARNING_BEFORE: Duration = Duration::from_secs(14 * 86_400);

/// Rejects a certificate that has expired or is not valid yet: it must not replace a valid one.
fn check_dates(loaded: &LoadedCertificate, now: i64) -> Result<(), TlsSetupError> {
    loaded
        .expiry_warning(now)
        .map_or(Ok(()), |warning| Err(TlsSetupError::OutsideValidity { warning }))
}

impl ManagedConfig {
    /// Adds a certificate before the server runs; if it is not valid now, there is only a warning.
    pub(crate) fn add(&mut self, source: Certificate) -> Result<(), TlsSetupError> {
        let loaded = source.load(&self.provider, None, now())?;
        self.certificates.push((source, loaded));
        Ok(())
    }

    /// Replaces the certificate with the same label. If there is none, inserts the certificate
    /// before the first one whose label is in `labels_after`, or at the end.
    pub(crate) fn upsert(
        &mut self,
        source: Certificate,
        labels_after: &[String],
    ) -> Result<(), TlsSetupError> {
        let now = now();
        let loaded = source.load(&self.provider, None, now)?;
        check_dates(&loaded, now)?;
        match self.position(&loaded.label) {
            Some(index) => self.certificates[index] = (source, loaded),
            None => {
                let mut labels = self.certificates.iter().map(|(_, loaded)| &loaded.label);
                let index =
                    labels.position(|label| labels_after.iter().any(|other| **other == **label));
                let index = index.unwrap_or(self.certificates.len());
                self.certificates.insert(index, (source, loaded));
            }
        }
        Ok(())
    }

    /// Removes the certificate with this label. Returns false if there is none.
    pub(crate) fn remove(&mut self, label: &str) -> Result<bool, TlsSetupError> {
        let Some(index) = self.position(label) else { return Ok(false) };
        if self.certificates.len() == 1 && !self.allow_no_certificate {
            return Err(TlsSetupError::LastCertificate { label: label.to_owned() });
        }
        drop(self.certificates.remove(index));
        Ok(true)
    }

    fn position(&self, label: &str) -> Option<usize> {
        self.certificates.iter().position(|(_, loaded)| *loaded.label == *label)
    }

    pub(crate) fn set_client_auth(&mut self, client_auth: ClientAuth) -> Result<(), TlsSetupError> {
        let loaded = client_auth.load(&self.provider)?;
        self.client_auth = Some((client_auth, loaded));
        Ok(())
    }

    /// Applies changed protocol settings.
    pub(crate) fn rebuild_provider(&mut self) {
        self.provider = Arc::new(self.protocol.provider());
    }

    fn build(&self, alpn: &[Vec<u8>], checks_hosts: bool) -> Result<BuiltConfig, TlsSetupError> {
        let mut certificates = CertificateResolver::default();
        let mut shadowed = Vec::new();
        for (_, loaded) in &self.certificates {
            if !certificates.add(loaded) {
                shadowed.push(TlsWarning::Shadowed { origin: loaded.origin.clone() });
            }
        }
        let resolver = RecordingResolver {
            resolver: Arc::new(certificates),
            record_certificate: checks_hosts,
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&self.protocol.versions()?)
            .map_err(TlsSetupError::BadConfig)?;
        let (builder, client_auth_digest) = match &self.client_auth {
            None => (builder.with_no_client_auth(), Digest::default()),
            Some((_, client_auth)) => (
                builder.with_client_cert_verifier(Arc::clone(&client_auth.verifier)),
                client_auth.digest,
            ),
        };
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(Ticketer { keys: self.tickets.clone(), client_auth_digest });
        config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        config.alpn_protocols = alpn.to_vec();
        if let Some(key_log) = &self.key_log {
            config.key_log = Arc::clone(key_log);
        }
        let config = Arc::new(config);
        check_usable(&config)?;
        Ok(BuiltConfig { config, shadowed })
    }
}

/// Checks that rustls can create connections. That depends only on the configuration, so trying it
/// once is enough.
pub(crate) fn check_usable(config: &Arc<ServerConfig>) -> Result<(), TlsSetupError> {
    UnbufferedServerConnection::new(Arc::clone(config)).map(drop).map_err(TlsSetupError::BadConfig)
}
