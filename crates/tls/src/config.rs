//! The configuration of a server's TLS, and changing it while the server runs.

use crate::certificate::Certificate;
use crate::challenge::Supplier;
use crate::client::ClientAuth;
use crate::error::{TlsError, Warning};
use crate::facts::Version;
use crate::made::make_self_signed;
use crate::plan::{Base, Plan, Reloaded, check_makes_connections};
use crate::session::Session;
use crate::status::{Known, TlsStatus};
use crate::tickets::TicketKeys;
use rustls::{KeyLogFile, ServerConfig};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
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
///
/// # While the server runs
///
/// A clone is a handle to what the server uses: [`Tls::reload`] reads all files again,
/// [`Tls::put_certificate`] and [`Tls::remove_certificate`] change the certificates, and
/// [`Tls::status`] tells what became of that. Each change is done as a whole, for handshakes that
/// begin after it, or, with an error, not at all. Connections that are open, and handshakes under way,
/// go on with what they began with. The methods `with_...` make a new value, which has nothing but
/// its ticket keys in common with its clones: take the handle when they are done.
#[derive(Clone)]
pub struct Tls {
    shared: Arc<Shared>,
    alpn: Arc<[Vec<u8>]>,
    warnings: Arc<[Warning]>,
    pub(crate) supplier: Option<Supplier>,
}

/// A certificate made by [`Tls::self_signed`], for development.
#[derive(Clone, Debug)]
pub struct SelfSigned {
    /// The configuration that presents it.
    pub tls: Tls,
    /// The certificate in PEM, for clients that should trust it.
    pub certificate_pem: String,
}

struct Shared {
    /// What a handshake takes.
    config: RwLock<Arc<ServerConfig>>,
    /// Locked while files are read, so that one change follows another.
    plan: Mutex<Plan>,
    known: Mutex<Known>,
}

impl Tls {
    /// Reads a certificate chain and its private key from PEM files; see [`Certificate`].
    ///
    /// # Errors
    ///
    /// A [`TlsError`] names the file, the cause and the remedy.
    pub fn from_pem_files(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Self::from_certificate(Certificate::from_files(certificate, key))
    }

    /// As [`Tls::from_pem_files`], from text that the program has already.
    ///
    /// # Errors
    ///
    /// A [`TlsError`] names the cause and the remedy.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::from_certificate(Certificate::from_pem(certificate, key))
    }

    /// As [`Tls::from_pem_files`], with what else a [`Certificate`] may have.
    ///
    /// # Errors
    ///
    /// A [`TlsError`] names the cause and the remedy.
    pub fn from_certificate(certificate: Certificate) -> Result<Self, TlsError> {
        let mut plan = Plan::new()?;
        plan.own()?.add(certificate)?;
        Self::from_plan(plan)
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

    /// Uses a rustls configuration made elsewhere, for what this type does not offer. Its certificate
    /// resolver is wrapped to learn the names that clients ask for. A reload has nothing to read then.
    ///
    /// # Errors
    ///
    /// [`TlsError::EarlyData`] if it accepts early data, and [`TlsError::BadConfig`] if rustls
    /// cannot make a connection from it.
    pub fn from_config(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        if config.max_early_data_size > 0 {
            return Err(TlsError::EarlyData);
        }
        check_makes_connections(&config)?;
        Self::from_plan(Plan::foreign(config))
    }

    pub(crate) fn from_plan(plan: Plan) -> Result<Self, TlsError> {
        let built = plan.build()?;
        let mut known = Known::default();
        known.follow(&plan, &built);
        let (alpn, warnings) = (plan.alpn.clone().into(), known.warnings().into());
        let supplier = plan.supplier.clone();
        let shared = Shared {
            config: RwLock::new(built.config),
            plan: Mutex::new(plan),
            known: Mutex::new(known),
        };
        Ok(Self { shared: Arc::new(shared), alpn, warnings, supplier })
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
        self.with(Certificate::from_pem(certificate, key))
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
        self.with(Certificate::from_files(certificate, key))
    }

    /// As [`Tls::with_certificate`], with what else a [`Certificate`] may have.
    ///
    /// # Errors
    ///
    /// As [`Tls::from_pem_files`], and [`TlsError::ForeignConfig`] after [`Tls::from_config`].
    pub fn with(self, certificate: Certificate) -> Result<Self, TlsError> {
        self.changed(|plan| plan.own()?.add(certificate))
    }

    /// Asks clients for certificates.
    ///
    /// # Errors
    ///
    /// A [`TlsError`] that names the file, the cause and the remedy; [`TlsError::ForeignConfig`] after
    /// [`Tls::from_config`].
    pub fn with_client_auth(self, clients: ClientAuth) -> Result<Self, TlsError> {
        self.changed(|plan| plan.own()?.set_clients(clients))
    }

    /// Makes and opens session tickets with these keys, instead of keys of its own.
    ///
    /// After [`Tls::from_config`] this does nothing: that configuration has its own.
    #[must_use]
    pub fn with_ticket_keys(self, keys: TicketKeys) -> Self {
        self.surely_changed(|plan| {
            if let Base::Own(own) = &mut plan.base {
                own.tickets = keys;
            }
        })
    }

    /// Speaks no older version than this; the default is [`Version::Tls12`].
    ///
    /// # Errors
    ///
    /// [`TlsError::NoCipherSuite`] if none of those that are left is for it;
    /// [`TlsError::ForeignConfig`] after [`Tls::from_config`].
    pub fn with_minimum_version(self, minimum: Version) -> Result<Self, TlsError> {
        self.changed(|plan| {
            plan.own()?.protocol.minimum = minimum;
            Ok(())
        })
    }

    /// Offers these cipher suites only, the preferred one first: by their registered names
    /// (`TLS_AES_128_GCM_SHA256`) or those of OpenSSL (`ECDHE-RSA-AES128-GCM-SHA256`). There are nine,
    /// and none that is weak: to leave some out is a matter of rules that you must obey. A version
    /// whose suites are all left out is not spoken.
    ///
    /// ```
    /// use peregrine::tls::Tls;
    ///
    /// let made = Tls::self_signed(&["localhost"])?;
    /// let tls = made.tls.with_cipher_suites(&["TLS_AES_256_GCM_SHA384"])?;
    /// let error = tls.with_cipher_suites(&["RC4-SHA"]).unwrap_err().to_string();
    /// assert!(error.contains("RC4-SHA") && error.contains("TLS13_AES_256_GCM_SHA384"));
    /// # Ok::<(), peregrine::tls::TlsError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TlsError::UnknownName`] lists those that are known; [`TlsError::NoCipherSuite`] if none is for
    /// the minimum version; [`TlsError::ForeignConfig`] after [`Tls::from_config`].
    pub fn with_cipher_suites(self, names: &[&str]) -> Result<Self, TlsError> {
        self.changed(|plan| {
            let own = plan.own()?;
            own.protocol.set_suites(names)?;
            own.renew_provider();
            Ok(())
        })
    }

    /// Offers these groups for the exchange of keys only, the preferred one first: `X25519MLKEM768`,
    /// `X25519`, `secp256r1` (`P-256`), `secp384r1` (`P-384`). TLS 1.2 knows nothing of the first.
    ///
    /// # Errors
    ///
    /// [`TlsError::UnknownName`] lists those that are known; [`TlsError::ForeignConfig`] after
    /// [`Tls::from_config`].
    pub fn with_key_exchange_groups(self, names: &[&str]) -> Result<Self, TlsError> {
        self.changed(|plan| {
            let own = plan.own()?;
            own.protocol.set_groups(names)?;
            own.renew_provider();
            Ok(())
        })
    }

    /// Writes the secrets of each connection to the file that the environment variable `SSLKEYLOGFILE`
    /// names, if it names one, so that Wireshark can read what was recorded. Whoever has that file can
    /// read everything: never ask for this in production. Without this call the variable does nothing.
    ///
    /// # Errors
    ///
    /// [`TlsError::ForeignConfig`] after [`Tls::from_config`].
    pub fn with_key_log(self) -> Result<Self, TlsError> {
        self.changed(|plan| {
            plan.own()?.key_log = Some(Arc::new(KeyLogFile::new()));
            Ok(())
        })
    }

    /// Warns of a certificate so long before its end; 14 days by default.
    #[must_use]
    pub fn with_expiry_warning(self, before: Duration) -> Self {
        self.surely_changed(|plan| plan.soon = before)
    }

    /// Sets the application protocols to agree on, the preferred one first. The default is `h2`
    /// (HTTP/2), then `http/1.1` and `http/1.0`; without `h2`, no client gets HTTP/2. With an empty
    /// list, the server takes no part in the negotiation.
    ///
    /// A client that offers protocols but none of these is refused.
    #[must_use]
    pub fn with_alpn(self, protocols: &[&[u8]]) -> Self {
        self.surely_changed(|plan| {
            plan.alpn = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        })
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
    pub fn with_host_check(self) -> Self {
        self.surely_changed(|plan| plan.checks_hosts = true)
    }

    /// A new value from what this one is made of.
    fn changed(
        self,
        change: impl FnOnce(&mut Plan) -> Result<(), TlsError>,
    ) -> Result<Self, TlsError> {
        let mut plan = self.plan().clone();
        change(&mut plan)?;
        Self::from_plan(plan)
    }

    fn surely_changed(self, change: impl FnOnce(&mut Plan)) -> Self {
        let changed = self.changed(|plan| {
            change(plan);
            Ok(())
        });
        changed.expect("a configuration could be made before, and this change makes none fail")
    }

    /// Reads all files again: certificates, keys, staples, roots and lists for clients, ticket keys.
    /// All of it counts from the next handshake on, or, if anything is wrong with it, nothing does:
    /// text that is cut short, a key that does not match, a new certificate that has expired or is not
    /// valid yet. The log says which, and so does [`Tls::status`].
    ///
    /// It reads files, so it may block: a handler calls it by `peregrine::offload`.
    ///
    /// # Errors
    ///
    /// A [`TlsError`] names the file, the cause and the remedy.
    pub fn reload(&self) -> Result<Reloaded, TlsError> {
        let mut plan = self.plan();
        let result = plan.are_files().and_then(|()| plan.reread()).and_then(
            |(next, mut reloaded, tickets)| {
                if reloaded.is_changed() {
                    self.install(&mut plan, next)?;
                }
                reloaded.tickets = tickets.is_some_and(|read| match &plan.base {
                    Base::Own(own) => own.tickets.apply(read),
                    Base::Foreign(_) => false,
                });
                Ok(reloaded)
            },
        );
        self.known().note(&result);
        result
    }

    /// Adds a certificate while the server runs, or puts it in the place of the one that has its label
    /// ([`Certificate::labelled`]).
    ///
    /// # Errors
    ///
    /// As [`Tls::reload`]; [`TlsError::ForeignConfig`] after [`Tls::from_config`]. Nothing has changed
    /// then.
    pub fn put_certificate(&self, certificate: Certificate) -> Result<(), TlsError> {
        self.put_certificate_ahead(certificate, &[])
    }

    /// The same; one that is new comes ahead of those with these labels.
    ///
    /// # Errors
    ///
    /// The same.
    #[doc(hidden)]
    pub fn put_certificate_ahead(
        &self,
        certificate: Certificate,
        others: &[String],
    ) -> Result<(), TlsError> {
        self.change_live(|plan| plan.own()?.put(certificate, others).map(|()| true)).map(drop)
    }

    /// Removes the certificate with this label while the server runs; false if there is none. Clients
    /// that ask for its names get the first of those that are left, which is the default.
    ///
    /// # Errors
    ///
    /// [`TlsError::LastCertificate`] if it is the only one; [`TlsError::ForeignConfig`] after
    /// [`Tls::from_config`].
    pub fn remove_certificate(&self, label: &str) -> Result<bool, TlsError> {
        self.change_live(|plan| plan.own()?.remove(label))
    }

    fn change_live(
        &self,
        change: impl FnOnce(&mut Plan) -> Result<bool, TlsError>,
    ) -> Result<bool, TlsError> {
        let mut plan = self.plan();
        let mut next = plan.clone();
        let is_changed = change(&mut next)?;
        if is_changed {
            self.install(&mut plan, next)?;
        }
        Ok(is_changed)
    }

    /// Makes the next plan count.
    fn install(&self, plan: &mut Plan, next: Plan) -> Result<(), TlsError> {
        let built = next.build()?;
        self.known().follow(&next, &built);
        *self.shared.config.write().unwrap_or_else(PoisonError::into_inner) = built.config;
        *plan = next;
        Ok(())
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.shared.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What became of reloads, the certificates with their dates, and what there is to warn of now.
    pub fn status(&self) -> TlsStatus {
        self.known().status()
    }

    /// Is something due that a reload would do, though no file has changed: to leave out a staple that
    /// has become too old, or to try again what failed?
    #[must_use]
    pub fn is_reload_due(&self) -> bool {
        let known = self.known();
        known.has_old_staple() || known.has_failed()
    }

    /// The files that a reload reads.
    pub fn files(&self) -> Vec<PathBuf> {
        self.plan().files()
    }

    /// The keys of its session tickets, to be handed over to other instances and to the next process;
    /// `None` after [`Tls::from_config`].
    pub fn ticket_keys(&self) -> Option<TicketKeys> {
        match &self.plan().base {
            Base::Own(own) => Some(own.tickets.clone()),
            Base::Foreign(_) => None,
        }
    }

    /// Are both handles to the same TLS?
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The application protocols that the server agrees on, the preferred one first.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        self.alpn.iter().map(Vec::as_slice)
    }

    /// What there was to warn of when this value was made, such as an expired certificate. The server
    /// logs it at its start, and what [`Tls::status`] warns of daily.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// A new connection's state. It takes no memory before the peer's first bytes, or next to none where names are
    /// checked as well.
    pub fn session(&self) -> Session {
        let config = self.shared.config.read().unwrap_or_else(PoisonError::into_inner);
        match self.asked() {
            None => Session::new(Arc::clone(&config)),
            Some(challenges) => Session::examining(Arc::clone(&config), Arc::clone(challenges)),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("alpn_protocols", &self.alpn)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}
