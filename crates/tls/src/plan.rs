//! Builds a rustls configuration from the settings and the files' contents.

use crate::certificate::{Certificate, Certificates, Loaded};
use crate::challenge::Supplier;
use crate::choice::NotesChoice;
use crate::client::{ClientAuth, LoadedClients};
use crate::digest::Digest;
use crate::error::{TlsError, Warning};
use crate::limits::TICKETS_PER_HANDSHAKE;
use crate::protocol::Protocol;
use crate::tickets::{Reread, TicketKeys, Ticketer};
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
pub(crate) struct Plan {
    pub(crate) base: Base,
    pub(crate) alpn: Vec<Vec<u8>>,
    pub(crate) checks_hosts: bool,
    /// How long before expiry to warn about a certificate.
    pub(crate) soon: Duration,
    pub(crate) supplier: Option<Supplier>,
}

/// The basis of the configuration.
#[derive(Clone)]
pub(crate) enum Base {
    Own(Box<Own>),
    /// An existing rustls configuration.
    Foreign(Arc<ServerConfig>),
}

#[derive(Clone)]
pub(crate) struct Own {
    certificates: Vec<(Certificate, Arc<Loaded>)>,
    clients: Option<(ClientAuth, LoadedClients)>,
    pub(crate) protocol: Protocol,
    pub(crate) tickets: TicketKeys,
    pub(crate) key_log: Option<Arc<dyn KeyLog>>,
    /// Whether the list of certificates may be empty.
    pub(crate) may_be_empty: bool,
    provider: Arc<CryptoProvider>,
}

/// The result of building a plan.
pub(crate) struct Built {
    pub(crate) config: Arc<ServerConfig>,
    /// Warnings about certificates that can never be chosen.
    pub(crate) never_chosen: Vec<Warning>,
}

/// The result of a reload: the parts that it has replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reloaded {
    /// The labels of certificates that are new or have a new staple.
    pub certificates: Vec<String>,
    /// The roots or revocation lists for client certificates are new.
    pub clients: bool,
    /// The ticket keys are new.
    pub tickets: bool,
}

impl Reloaded {
    /// Returns whether anything is new.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        *self != Self::default()
    }
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_changed() {
            return f.write_str("nothing has changed");
        }
        let certificates = (!self.certificates.is_empty())
            .then(|| format!("certificates ({})", self.certificates.join(", ")));
        let clients = self.clients.then(|| "client roots or revocation lists".to_owned());
        let tickets = self.tickets.then(|| "ticket keys".to_owned());
        let all: Vec<_> = [certificates, clients, tickets].into_iter().flatten().collect();
        f.write_str(&all.join(", "))
    }
}

pub(crate) fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

impl Plan {
    /// The default settings, without a certificate.
    pub(crate) fn new() -> Result<Self, TlsError> {
        let protocol = Protocol::default();
        let own = Own {
            certificates: Vec::new(),
            clients: None,
            provider: Arc::new(protocol.provider()),
            protocol,
            tickets: TicketKeys::random()?,
            key_log: None,
            may_be_empty: false,
        };
        let alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec(), b"http/1.0".to_vec()];
        Ok(Self::from(Base::Own(Box::new(own)), alpn))
    }

    pub(crate) fn foreign(config: Arc<ServerConfig>) -> Self {
        let alpn = config.alpn_protocols.clone();
        Self::from(Base::Foreign(config), alpn)
    }

    fn from(base: Base, alpn: Vec<Vec<u8>>) -> Self {
        Self { base, alpn, checks_hosts: false, soon: SOON, supplier: None }
    }

    /// The settings, or an error if the rustls configuration was provided by the user.
    pub(crate) fn own(&mut self) -> Result<&mut Own, TlsError> {
        match &mut self.base {
            Base::Own(own) => Ok(own),
            Base::Foreign(_) => Err(TlsError::ForeignConfig),
        }
    }

    /// Opening a named pipe would block until another process writes to it, possibly forever, and
    /// so would all later reloads.
    pub(crate) fn are_files(&self) -> Result<(), TlsError> {
        let is_another = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| !found.is_file());
        match self.files().into_iter().find(is_another) {
            None => Ok(()),
            Some(path) => {
                let cause = "it is not a regular file and cannot be read again";
                let error = io::Error::new(io::ErrorKind::InvalidInput, cause);
                Err(TlsError::Unreadable { path, error })
            }
        }
    }

    /// The files to read.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let Base::Own(own) = &self.base else { return Vec::new() };
        let certificates = own.certificates.iter().flat_map(|(source, _)| source.paths());
        let clients = own.clients.iter().flat_map(|(clients, _)| clients.paths());
        let all = certificates.chain(clients).chain(own.tickets.path());
        all.map(ToOwned::to_owned).collect()
    }

    pub(crate) fn certificates(&self) -> Vec<Arc<Loaded>> {
        let Base::Own(own) = &self.base else { return Vec::new() };
        own.certificates.iter().map(|(_, loaded)| Arc::clone(loaded)).collect()
    }

    pub(crate) fn clients(&self) -> Option<&LoadedClients> {
        let Base::Own(own) = &self.base else { return None };
        own.clients.as_ref().map(|(_, loaded)| loaded)
    }

    pub(crate) fn build(&self) -> Result<Built, TlsError> {
        match &self.base {
            Base::Own(own) => own.build(&self.alpn, self.checks_hosts),
            Base::Foreign(config) => {
                let mut config = ServerConfig::clone(config);
                config.alpn_protocols.clone_from(&self.alpn);
                let resolver = Arc::clone(&config.cert_resolver);
                let keeps_certificate = self.checks_hosts;
                config.cert_resolver = Arc::new(NotesChoice { resolver, keeps_certificate });
                Ok(Built { config: Arc::new(config), never_chosen: Vec::new() })
            }
        }
    }

    /// Reads all files again. Ticket keys that were read are not applied yet.
    pub(crate) fn reread(&self) -> Result<(Self, Reloaded, Option<Reread>), TlsError> {
        let mut next = self.clone();
        let Base::Own(own) = &mut next.base else {
            return Ok((next, Reloaded::default(), None));
        };
        let (mut reloaded, now) = (Reloaded::default(), now());
        for (source, loaded) in &mut own.certificates {
            let new = source.load(&own.provider, Some(&*loaded), now)?;
            if !new.is_certificate_of(loaded) {
                check_dates(&new, now)?;
            }
            if !Arc::ptr_eq(&new, loaded) {
                reloaded.certificates.push(new.label.to_string());
                *loaded = new;
            }
        }
        if let Some((source, loaded)) = &mut own.clients {
            let new = source.load(&own.provider)?;
            reloaded.clients = new.digest != loaded.digest;
            if reloaded.clients
                && let Some(Warning::RevocationListExpired { origin }) = new.warnings(now).next()
            {
                return Err(TlsError::OldRevocationList { origin });
            }
            *loaded = new;
        }
        let tickets = own.tickets.reread()?;
        Ok((next, reloaded, tickets))
    }
}

/// The default of how long before expiry to warn about a certificate: 14 days.
const SOON: Duration = Duration::from_secs(14 * 86_400);

/// A certificate that clients would reject must not replace a valid one.
fn check_dates(loaded: &Loaded, now: i64) -> Result<(), TlsError> {
    loaded.date_warning(now).map_or(Ok(()), |warning| Err(TlsError::NotValidNow { warning }))
}

impl Own {
    /// Adds a certificate before the server runs; if it is not valid now, there is only a warning.
    pub(crate) fn add(&mut self, source: Certificate) -> Result<(), TlsError> {
        let loaded = source.load(&self.provider, None, now())?;
        self.certificates.push((source, loaded));
        Ok(())
    }

    /// Replaces the certificate with the same label. If there is none, inserts the certificate
    /// before the first one whose label is in `others`, or at the end.
    pub(crate) fn put(&mut self, source: Certificate, others: &[String]) -> Result<(), TlsError> {
        let now = now();
        let loaded = source.load(&self.provider, None, now)?;
        check_dates(&loaded, now)?;
        match self.place_of(&loaded.label) {
            Some(place) => self.certificates[place] = (source, loaded),
            None => {
                let mut labels = self.certificates.iter().map(|(_, loaded)| &loaded.label);
                let place = labels.position(|label| others.iter().any(|other| **other == **label));
                let place = place.unwrap_or(self.certificates.len());
                self.certificates.insert(place, (source, loaded));
            }
        }
        Ok(())
    }

    /// Returns false if no certificate has this label.
    pub(crate) fn remove(&mut self, label: &str) -> Result<bool, TlsError> {
        let Some(place) = self.place_of(label) else { return Ok(false) };
        if self.certificates.len() == 1 && !self.may_be_empty {
            return Err(TlsError::LastCertificate { label: label.to_owned() });
        }
        drop(self.certificates.remove(place));
        Ok(true)
    }

    fn place_of(&self, label: &str) -> Option<usize> {
        self.certificates.iter().position(|(_, loaded)| *loaded.label == *label)
    }

    pub(crate) fn set_clients(&mut self, clients: ClientAuth) -> Result<(), TlsError> {
        let loaded = clients.load(&self.provider)?;
        self.clients = Some((clients, loaded));
        Ok(())
    }

    /// Applies changed protocol settings.
    pub(crate) fn renew_provider(&mut self) {
        self.provider = Arc::new(self.protocol.provider());
    }

    fn build(&self, alpn: &[Vec<u8>], checks_hosts: bool) -> Result<Built, TlsError> {
        let mut certificates = Certificates::default();
        let mut never_chosen = Vec::new();
        for (_, loaded) in &self.certificates {
            if !certificates.add(loaded) {
                never_chosen.push(Warning::NeverChosen { origin: loaded.origin.clone() });
            }
        }
        let resolver =
            NotesChoice { resolver: Arc::new(certificates), keeps_certificate: checks_hosts };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&self.protocol.versions()?)
            .map_err(TlsError::BadConfig)?;
        let (builder, context) = match &self.clients {
            None => (builder.with_no_client_auth(), Digest::default()),
            Some((_, clients)) => {
                (builder.with_client_cert_verifier(Arc::clone(&clients.verifier)), clients.digest)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.ignore_client_order = true;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = Arc::new(Ticketer { keys: self.tickets.clone(), context });
        config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        config.alpn_protocols = alpn.to_vec();
        if let Some(key_log) = &self.key_log {
            config.key_log = Arc::clone(key_log);
        }
        let config = Arc::new(config);
        check_makes_connections(&config)?;
        Ok(Built { config, never_chosen })
    }
}

/// Whether connections can be created depends only on the configuration, so try it once.
pub(crate) fn check_makes_connections(config: &Arc<ServerConfig>) -> Result<(), TlsError> {
    UnbufferedServerConnection::new(Arc::clone(config)).map(drop).map_err(TlsError::BadConfig)
}
