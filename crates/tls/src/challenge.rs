//! Responds to ACME challenges (tls-alpn-01 and http-01), and connects a [`TlsConfig`] with the
//! component that obtains its certificates while the server runs.
//!
//! A validation connection (RFC 8737) has its own certificate, a single application protocol, no
//! client certificates, no tickets and no application data. It therefore has its own rustls
//! configuration, chosen by its first record, and the configuration for clients is unaffected.
//! First records are inspected only while a challenge can be pending.

use crate::config::TlsConfig;
use crate::error::TlsSetupError;
use crate::pem::PemSource;
use crate::protocol::ProtocolSettings;
use crate::spec::{ConfigBase, ConfigSpec};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::task::{Context, Poll};

/// The application protocol of validation connections.
// RFC 8737 §6.2.
pub(crate) const ACME_TLS_ALPN: &[u8] = b"acme-tls/1";

/// The pending challenges: over TLS (tls-alpn-01) and over HTTP (http-01). Some belong to this
/// server. Others were read from storage shared by several instances, because the authority's
/// request may reach any instance.
#[doc(hidden)]
pub struct ChallengeResponses {
    provider: Arc<CryptoProvider>,
    tls_alpn: Arc<TlsAlpnResolver>,
    config: Arc<ServerConfig>,
    http01: SparseMap<Arc<str>>,
    remote_http01: SparseMap<Arc<str>>,
    remote: OnceLock<RemoteLookup>,
}

/// The lookup of other instances' challenges, and which kinds they have.
struct RemoteLookup {
    lookup: Box<dyn RemoteChallengeLookup>,
    has_tls_alpn: bool,
    has_http01: bool,
}

/// Looks up the challenges of other instances.
#[doc(hidden)]
pub trait RemoteChallengeLookup: Send + Sync {
    /// Completes after [`ChallengeResponses::replace_remote`] was called with the state of the
    /// storage at some time after this call. This is called on threads that must not block, and
    /// remote hosts control how often.
    fn lookup(&self) -> LookupFuture;
}

/// Completes when the lookup is done.
#[doc(hidden)]
pub type LookupFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A table that is usually empty; checking for that costs one atomic load.
struct SparseMap<V> {
    count: AtomicUsize,
    entries: RwLock<HashMap<Box<str>, V>>,
}

impl<V> Default for SparseMap<V> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), entries: RwLock::default() }
    }
}

impl<V: Clone> SparseMap<V> {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn insert(&self, key: &str, value: V) {
        self.change(|map| drop(map.insert(key.into(), value)));
    }

    fn remove(&self, key: &str) {
        self.change(|map| drop(map.remove(key)));
    }

    fn replace(&self, entries: HashMap<Box<str>, V>) {
        // Avoid the lock in the usual case: empty before and after.
        if !(entries.is_empty() && self.is_empty()) {
            self.change(|map| *map = entries);
        }
    }

    fn any(&self, predicate: impl Fn(&str) -> bool) -> bool {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).keys().any(|key| predicate(key))
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Box<str>, V>)) {
        let mut map = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut map);
        self.count.store(map.len(), Ordering::Release);
    }

    fn get(&self, key: &str) -> Option<V> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

/// The validation certificates by name in lower case: this server's own, and those of other
/// instances.
#[derive(Default)]
struct TlsAlpnResolver {
    local: SparseMap<Arc<CertifiedKey>>,
    remote: SparseMap<Arc<CertifiedKey>>,
}

impl fmt::Debug for TlsAlpnResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsAlpnResolver")
    }
}

impl ResolvesServerCert for TlsAlpnResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // RFC 8737 §3: a validation connection offers only this protocol, and sends SNI.
        let mut offered = hello.alpn()?;
        if offered.next() != Some(ACME_TLS_ALPN) || offered.next().is_some() {
            return None;
        }
        let name = hello.server_name()?.to_ascii_lowercase();
        self.local.get(&name).or_else(|| self.remote.get(&name))
    }
}

impl ChallengeResponses {
    /// Creates an empty set of challenges.
    ///
    /// # Errors
    ///
    /// Returns the error if rustls rejects the configuration, which does not happen.
    pub fn new() -> Result<Arc<Self>, TlsSetupError> {
        let (provider, tls_alpn) = (
            Arc::new(ProtocolSettings::default().provider()),
            Arc::new(TlsAlpnResolver::default()),
        );
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsSetupError::BadConfig)?;
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&tls_alpn) as _;
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![ACME_TLS_ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let (http01, remote_http01) = (SparseMap::default(), SparseMap::default());
        let (config, remote) = (Arc::new(config), OnceLock::new());
        Ok(Arc::new(Self { provider, tls_alpn, config, http01, remote_http01, remote }))
    }

    /// Presents this certificate for `name` until [`remove_tls_alpn`](Self::remove_tls_alpn).
    ///
    /// # Errors
    ///
    /// The certificate cannot be used.
    pub fn set_tls_alpn(&self, name: &str, chain: &[u8], key: &[u8]) -> Result<(), TlsSetupError> {
        let certified = self.build_certified_key(chain, key)?;
        self.tls_alpn.local.insert(&name.to_ascii_lowercase(), certified);
        Ok(())
    }

    fn build_certified_key(
        &self,
        chain: &[u8],
        key: &[u8],
    ) -> Result<Arc<CertifiedKey>, TlsSetupError> {
        let (chain, key) = (PemSource::memory(chain).read()?, PemSource::memory(key).read()?);
        // Do not check that certificate and key match: that parses the certificate, and the parser
        // rejects unknown critical extensions, which this certificate must have (RFC 8737 §3).
        let signing_key = self.provider.key_provider.load_private_key(key.key()?);
        let signing_key = signing_key
            .map_err(|error| TlsSetupError::UnsupportedKey { origin: key.origin.clone(), error })?;
        Ok(Arc::new(CertifiedKey::new(chain.certificates()?, signing_key)))
    }

    /// Removes the certificate for `name`.
    pub fn remove_tls_alpn(&self, name: &str) {
        self.tls_alpn.local.remove(&name.to_ascii_lowercase());
    }

    /// Responds to requests for `token` with `response` until
    /// [`remove_http01`](Self::remove_http01).
    pub fn set_http01(&self, token: &str, response: &str) {
        self.http01.insert(token, response.into());
    }

    /// Removes the response for `token`.
    pub fn remove_http01(&self, token: &str) {
        self.http01.remove(token);
    }

    /// Sets how the challenges of other instances are looked up, unless already set: those over TLS
    /// if `has_tls_alpn`, and those over HTTP if `has_http01`.
    pub fn set_remote_lookup(
        &self,
        lookup: Box<dyn RemoteChallengeLookup>,
        has_tls_alpn: bool,
        has_http01: bool,
    ) {
        let _ = self.remote.set(RemoteLookup { lookup, has_tls_alpn, has_http01 });
    }

    /// Replaces the challenges of other instances: names with chain and key, and tokens with their
    /// responses. Invalid entries are skipped.
    pub fn replace_remote(
        &self,
        names: impl Iterator<Item = (String, String, String)>,
        tokens: impl Iterator<Item = (String, String)>,
    ) {
        let build_entry = |(name, chain, key): (String, String, String)| {
            let certified = self.build_certified_key(chain.as_bytes(), key.as_bytes()).ok()?;
            Some((name.to_ascii_lowercase().into(), certified))
        };
        self.tls_alpn.remote.replace(names.filter_map(build_entry).collect());
        let build_response = |(token, response): (String, String)| (token.into(), response.into());
        self.remote_http01.replace(tokens.map(build_response).collect());
    }

    /// Returns whether this server has a pending http-01 challenge.
    #[inline]
    pub fn has_http01(&self) -> bool {
        !self.http01.is_empty()
    }

    /// Returns this server's own response for `token`.
    pub fn http01(&self, token: &str) -> Option<Arc<str>> {
        self.http01.get(token)
    }

    /// Returns whether unknown tokens may belong to other instances.
    #[inline]
    pub fn has_remote_http01(&self) -> bool {
        self.remote.get().is_some_and(|remote| remote.has_http01)
    }

    /// Looks up another instance's response for `token`.
    pub async fn remote_http01(&self, token: &str) -> Option<Arc<str>> {
        let remote = self.remote.get().filter(|remote| remote.has_http01)?;
        remote.lookup.lookup().await;
        self.remote_http01.get(token)
    }

    /// Returns whether a validation connection is possible.
    fn is_active(&self) -> bool {
        !self.tls_alpn.local.is_empty()
            || self.remote.get().is_some_and(|remote| remote.has_tls_alpn)
    }

    /// Starts a lookup for the name in this ClientHello. Returns `None` if this server has the
    /// certificate, or if there are no other instances.
    fn lookup_server_name(&self, hello: &[u8]) -> Option<LookupFuture> {
        let remote = self.remote.get().filter(|remote| remote.has_tls_alpn)?;
        // Searching the raw bytes for the name is enough: a client that puts the name elsewhere
        // only fails earlier, because the remote challenges are then not looked up.
        let contains_name = |name: &str| {
            let matches_name = |window: &[u8]| window.eq_ignore_ascii_case(name.as_bytes());
            hello.windows(name.len().max(1)).any(matches_name)
        };
        (!self.tls_alpn.local.any(contains_name)).then(|| remote.lookup.lookup())
    }
}

/// Decides by the first record whether a connection is a client's or a validation connection.
pub(crate) struct ChallengeDetector {
    client_config: Arc<ServerConfig>,
    challenges: Arc<ChallengeResponses>,
    lookup: LookupState,
}

/// The state of the lookup in other instances.
enum LookupState {
    NotStarted,
    Pending(LookupFuture),
    Done,
}

impl ChallengeDetector {
    pub(crate) fn new(
        client_config: Arc<ServerConfig>,
        challenges: Arc<ChallengeResponses>,
    ) -> Self {
        Self { client_config, challenges, lookup: LookupState::NotStarted }
    }

    /// Chooses the configuration by the first bytes. Returns `None` if more bytes are needed, or
    /// while the lookup is running.
    pub(crate) fn choose_config(&mut self, received: &[u8]) -> Option<Arc<ServerConfig>> {
        if !is_acme_tls_alpn(received)? {
            return Some(Arc::clone(&self.client_config));
        }
        if matches!(self.lookup, LookupState::NotStarted) {
            let lookup = self.challenges.lookup_server_name(received);
            self.lookup = lookup.map_or(LookupState::Done, LookupState::Pending);
        }
        matches!(self.lookup, LookupState::Done).then(|| Arc::clone(&self.challenges.config))
    }

    pub(crate) fn is_lookup_pending(&self) -> bool {
        matches!(self.lookup, LookupState::Pending(_))
    }

    /// Ready when no lookup is running.
    pub(crate) fn poll_lookup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let LookupState::Pending(lookup) = &mut self.lookup {
            std::task::ready!(lookup.as_mut().poll(cx));
            self.lookup = LookupState::Done;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for ChallengeResponses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChallengeResponses").finish_non_exhaustive()
    }
}

/// Obtains the certificates of a [`TlsConfig`] while the server runs.
#[derive(Clone)]
pub(crate) struct CertificateProvider {
    challenges: Arc<ChallengeResponses>,
    provider: Arc<dyn Any + Send + Sync>,
}

impl TlsConfig {
    /// Creates a `TlsConfig` without a certificate, whose handshakes fail until one is added.
    /// `provider` obtains the certificates; it is kept alive by this value and its clones.
    ///
    /// # Errors
    ///
    /// [`TlsSetupError::RngFailed`] if the system returns no random bytes.
    #[doc(hidden)]
    pub fn with_provider(
        challenges: Arc<ChallengeResponses>,
        provider: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, TlsSetupError> {
        let mut spec = ConfigSpec::new()?;
        if let ConfigBase::Managed(managed) = &mut spec.base {
            managed.allow_no_certificate = true;
        }
        spec.provider = Some(CertificateProvider { challenges, provider });
        Self::from_spec(spec)
    }

    /// The challenges, if certificates are obtained at run time.
    #[doc(hidden)]
    pub fn challenges(&self) -> Option<&Arc<ChallengeResponses>> {
        self.provider.as_ref().map(|provider| &provider.challenges)
    }

    /// The component that obtains the certificates.
    #[doc(hidden)]
    pub fn provider(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.provider.as_ref().map(|provider| Arc::clone(&provider.provider))
    }

    /// The challenges, if a validation connection is possible now.
    pub(crate) fn active_challenges(&self) -> Option<&Arc<ChallengeResponses>> {
        Some(&self.provider.as_ref()?.challenges).filter(|challenges| challenges.is_active())
    }
}

/// Returns whether this is the beginning of a validation connection, or `None` if more bytes are
/// needed. `received` starts with the first byte of a TLS record.
pub(crate) fn is_acme_tls_alpn(received: &[u8]) -> Option<bool> {
    let (header, rest) = received.split_first_chunk::<5>()?;
    let (content_type, length) =
        (header[0], usize::from(u16::from_be_bytes([header[3], header[4]])));
    if content_type != CONTENT_TYPE_HANDSHAKE || length > CLIENT_HELLO_BYTES_MAX {
        return Some(false);
    }
    let hello = rest.get(..length)?;
    // The protocol name after its length. Random bytes do not contain it by accident, and a client
    // that puts it elsewhere on purpose is only rejected.
    let marker = [&[ACME_TLS_ALPN.len() as u8], ACME_TLS_ALPN].concat();
    Some(hello.windows(marker.len()).any(|window| window == marker))
}

/// The content type of handshake messages.
const CONTENT_TYPE_HANDSHAKE: u8 = 22;

/// The maximum length of a validation connection's first record.
// RFC 8446 §5.1: a record has at most 2^14 bytes.
const CLIENT_HELLO_BYTES_MAX: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::is_acme_tls_alpn;

    fn record(content_type: u8, hello: &[u8]) -> Vec<u8> {
        let length = u16::try_from(hello.len()).unwrap().to_be_bytes();
        [&[content_type, 3, 1], &length[..], hello].concat()
    }

    #[test]
    fn only_a_complete_first_record_is_recognised() {
        let hello = b"....\x00\x10\x00\x0d\x00\x0b\x0aacme-tls/1....";
        let complete = record(22, hello);
        for end in 0..complete.len() {
            assert_eq!(is_acme_tls_alpn(&complete[..end]), None, "{end}");
        }
        let followed = [&complete[..], b"more"].concat();
        for (received, expected) in [
            (&complete[..], true),
            (&followed, true),
            (&record(22, b"....\x02h2...."), false),
            (&record(22, b""), false),
            (&record(21, hello), false),
            // Bytes after the first record are ignored.
            (&[record(22, b"..."), complete.clone()].concat(), false),
            (&[22, 3, 1, 0x40, 1], false),
        ] {
            assert_eq!(is_acme_tls_alpn(received), Some(expected), "{received:?}");
        }
    }
}
