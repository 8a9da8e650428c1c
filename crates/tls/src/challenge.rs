//! Answers ACME challenges (tls-alpn-01 and http-01), and connects a [`Tls`] with the component
//! that obtains its certificates while the server runs.
//!
//! A validation connection (RFC 8737) has its own certificate, a single application protocol, no
//! client certificates, no tickets and no application data. It therefore has its own rustls
//! configuration, chosen by its first record, and the configuration for clients is unaffected. If
//! no challenge can be pending, first records are not inspected.

use crate::config::Tls;
use crate::error::TlsError;
use crate::plan::{Base, Plan};
use crate::protocol::Protocol;
use crate::source::Source;
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
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";

/// The pending challenges: over TLS (tls-alpn-01) and over HTTP (http-01). Some are this server's
/// own. Others were found in storage shared by several instances, because the authority's request
/// may reach any of them.
#[doc(hidden)]
pub struct Challenges {
    provider: Arc<CryptoProvider>,
    by_name: Arc<ByName>,
    config: Arc<ServerConfig>,
    by_token: Table<Arc<str>>,
    found_by_token: Table<Arc<str>>,
    elsewhere: OnceLock<Elsewhere>,
}

/// Where other instances store their challenges, and which kinds.
struct Elsewhere {
    place: Box<dyn LooksElsewhere>,
    has_names: bool,
    has_tokens: bool,
}

/// Looks up the challenges of other instances.
#[doc(hidden)]
pub trait LooksElsewhere: Send + Sync {
    /// Completes after [`Challenges::find`] was called with the state of the storage at some time
    /// after this call. It is called from threads that must not block, and remote hosts decide how
    /// often.
    fn look(&self) -> Looking;
}

/// Completes when the lookup is done.
#[doc(hidden)]
pub type Looking = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A table that is usually empty; checking for that costs one atomic load.
struct Table<V> {
    count: AtomicUsize,
    all: RwLock<HashMap<Box<str>, V>>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), all: RwLock::default() }
    }
}

impl<V: Clone> Table<V> {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn put(&self, key: &str, value: V) {
        self.change(|all| drop(all.insert(key.into(), value)));
    }

    fn remove(&self, key: &str) {
        self.change(|all| drop(all.remove(key)));
    }

    fn replace(&self, by: HashMap<Box<str>, V>) {
        // Avoid the lock in the usual case: empty before and after.
        if !(by.is_empty() && self.is_empty()) {
            self.change(|all| *all = by);
        }
    }

    fn has(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.all.read().unwrap_or_else(PoisonError::into_inner).keys().any(|key| is_it(key))
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Box<str>, V>)) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut all);
        self.count.store(all.len(), Ordering::Release);
    }

    fn get(&self, key: &str) -> Option<V> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}

/// The validation certificates by name in lower case: this server's own, and those of other
/// instances.
#[derive(Default)]
struct ByName {
    own: Table<Arc<CertifiedKey>>,
    found: Table<Arc<CertifiedKey>>,
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByName")
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // RFC 8737 §3: a validation connection offers only this protocol, and sends SNI.
        let mut offered = hello.alpn()?;
        if offered.next() != Some(ACME_TLS) || offered.next().is_some() {
            return None;
        }
        let name = hello.server_name()?.to_ascii_lowercase();
        self.own.get(&name).or_else(|| self.found.get(&name))
    }
}

impl Challenges {
    /// Creates an empty set of challenges.
    ///
    /// # Errors
    ///
    /// Returns the error if rustls rejects the configuration, which does not happen.
    pub fn new() -> Result<Arc<Self>, TlsError> {
        let (provider, by_name) =
            (Arc::new(Protocol::default().provider()), Arc::new(ByName::default()));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::BadConfig)?;
        let resolver: Arc<dyn ResolvesServerCert> = Arc::clone(&by_name) as _;
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let (by_token, found_by_token) = (Table::default(), Table::default());
        let (config, elsewhere) = (Arc::new(config), OnceLock::new());
        Ok(Arc::new(Self { provider, by_name, config, by_token, found_by_token, elsewhere }))
    }

    /// Presents this certificate for `name` until [`forget_name`](Self::forget_name).
    ///
    /// # Errors
    ///
    /// The certificate cannot be used.
    pub fn answer_name(&self, name: &str, chain: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let certified = self.certified(chain, key)?;
        self.by_name.own.put(&name.to_ascii_lowercase(), certified);
        Ok(())
    }

    fn certified(&self, chain: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, TlsError> {
        let (chain, key) = (Source::memory(chain).read()?, Source::memory(key).read()?);
        // Do not check that certificate and key match: that parses the certificate, and the parser
        // rejects unknown critical extensions, which this certificate must have (RFC 8737 §3).
        let loaded = self.provider.key_provider.load_private_key(key.key()?);
        let loaded = loaded
            .map_err(|error| TlsError::UnsupportedKey { origin: key.origin.clone(), error })?;
        Ok(Arc::new(CertifiedKey::new(chain.chain()?, loaded)))
    }

    /// Removes the certificate for `name`.
    pub fn forget_name(&self, name: &str) {
        self.by_name.own.remove(&name.to_ascii_lowercase());
    }

    /// Answers requests for `token` with `answer` until [`forget_token`](Self::forget_token).
    pub fn answer_token(&self, token: &str, answer: &str) {
        self.by_token.put(token, answer.into());
    }

    /// Removes the answer for `token`.
    pub fn forget_token(&self, token: &str) {
        self.by_token.remove(token);
    }

    /// Sets where the challenges of other instances are looked up, unless already set: those for
    /// names, and those for tokens.
    pub fn look_at(&self, place: Box<dyn LooksElsewhere>, has_names: bool, has_tokens: bool) {
        let _ = self.elsewhere.set(Elsewhere { place, has_names, has_tokens });
    }

    /// Replaces the challenges of other instances: names with chain and key, and tokens with their
    /// answers. Invalid entries are skipped.
    pub fn find(
        &self,
        names: impl Iterator<Item = (String, String, String)>,
        tokens: impl Iterator<Item = (String, String)>,
    ) {
        let certified = |(name, chain, key): (String, String, String)| {
            let certified = self.certified(chain.as_bytes(), key.as_bytes()).ok()?;
            Some((name.to_ascii_lowercase().into(), certified))
        };
        self.by_name.found.replace(names.filter_map(certified).collect());
        let told = |(token, answer): (String, String)| (token.into(), answer.into());
        self.found_by_token.replace(tokens.map(told).collect());
    }

    /// Returns whether this server has a pending http-01 challenge.
    #[inline]
    pub fn has_tokens(&self) -> bool {
        !self.by_token.is_empty()
    }

    /// Returns this server's own answer for `token`.
    pub fn token(&self, token: &str) -> Option<Arc<str>> {
        self.by_token.get(token)
    }

    /// Returns whether unknown tokens may belong to other instances.
    #[inline]
    pub fn looks_up_tokens(&self) -> bool {
        self.elsewhere.get().is_some_and(|elsewhere| elsewhere.has_tokens)
    }

    /// Looks up another instance's answer for `token`.
    pub async fn token_elsewhere(&self, token: &str) -> Option<Arc<str>> {
        let elsewhere = self.elsewhere.get().filter(|elsewhere| elsewhere.has_tokens)?;
        elsewhere.place.look().await;
        self.found_by_token.get(token)
    }

    /// Returns whether a validation connection is possible.
    fn may_be_asked(&self) -> bool {
        !self.by_name.own.is_empty()
            || self.elsewhere.get().is_some_and(|elsewhere| elsewhere.has_names)
    }

    /// Starts a lookup for the name in this ClientHello. Returns `None` if this server has the
    /// certificate, or if there are no other instances.
    fn look_for(&self, hello: &[u8]) -> Option<Looking> {
        let elsewhere = self.elsewhere.get().filter(|elsewhere| elsewhere.has_names)?;
        // Searching the raw bytes for the name is enough: a client that adds another name somewhere
        // only fails sooner.
        let stands = |name: &str| {
            let is_it = |window: &[u8]| window.eq_ignore_ascii_case(name.as_bytes());
            hello.windows(name.len().max(1)).any(is_it)
        };
        (!self.by_name.own.has(stands)).then(|| elsewhere.place.look())
    }
}

/// A connection whose first record has not shown yet whether it is a client's or a validation
/// connection.
pub(crate) struct Examined {
    usual: Arc<ServerConfig>,
    challenges: Arc<Challenges>,
    looks: Looks,
}

/// The state of the lookup in other instances.
enum Looks {
    NotYet,
    Now(Looking),
    Done,
}

impl Examined {
    pub(crate) fn new(usual: Arc<ServerConfig>, challenges: Arc<Challenges>) -> Self {
        Self { usual, challenges, looks: Looks::NotYet }
    }

    /// Chooses the configuration by the first bytes. Returns `None` if more bytes are needed, or
    /// while the lookup is running.
    pub(crate) fn config(&mut self, first: &[u8]) -> Option<Arc<ServerConfig>> {
        if !is_challenge(first)? {
            return Some(Arc::clone(&self.usual));
        }
        if matches!(self.looks, Looks::NotYet) {
            let looking = self.challenges.look_for(first);
            self.looks = looking.map_or(Looks::Done, Looks::Now);
        }
        matches!(self.looks, Looks::Done).then(|| Arc::clone(&self.challenges.config))
    }

    pub(crate) fn is_looking(&self) -> bool {
        matches!(self.looks, Looks::Now(_))
    }

    /// Ready when no lookup is running.
    pub(crate) fn poll_look(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Looks::Now(looking) = &mut self.looks {
            std::task::ready!(looking.as_mut().poll(context));
            self.looks = Looks::Done;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Challenges").finish_non_exhaustive()
    }
}

/// Obtains the certificates of a [`Tls`] while the server runs.
#[derive(Clone)]
pub(crate) struct Supplier {
    challenges: Arc<Challenges>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Tls {
    /// Creates a `Tls` without a certificate, whose handshakes fail until one is added. `owner`
    /// obtains the certificates; it is kept alive by this value and its clones.
    ///
    /// # Errors
    ///
    /// [`TlsError::NoRandomness`] if the system returns no random bytes.
    #[doc(hidden)]
    pub fn supplied(
        challenges: Arc<Challenges>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, TlsError> {
        let mut plan = Plan::new()?;
        if let Base::Own(own) = &mut plan.base {
            own.may_be_empty = true;
        }
        plan.supplier = Some(Supplier { challenges, owner });
        Self::from_plan(plan)
    }

    /// The challenges, if certificates are obtained at run time.
    #[doc(hidden)]
    pub fn challenges(&self) -> Option<&Arc<Challenges>> {
        self.supplier.as_ref().map(|supplier| &supplier.challenges)
    }

    /// The component that obtains the certificates.
    #[doc(hidden)]
    pub fn owner(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.supplier.as_ref().map(|supplier| Arc::clone(&supplier.owner))
    }

    /// The challenges, if a validation connection is possible now.
    pub(crate) fn asked(&self) -> Option<&Arc<Challenges>> {
        Some(&self.supplier.as_ref()?.challenges).filter(|challenges| challenges.may_be_asked())
    }
}

/// Returns whether this is the beginning of a validation connection, or `None` if more bytes are
/// needed. `first` starts with the first byte of a TLS record.
pub(crate) fn is_challenge(first: &[u8]) -> Option<bool> {
    let (header, rest) = first.split_first_chunk::<5>()?;
    let (kind, bytes) = (header[0], usize::from(u16::from_be_bytes([header[3], header[4]])));
    if kind != HANDSHAKE || bytes > HELLO_BYTES_MAX {
        return Some(false);
    }
    let hello = rest.get(..bytes)?;
    // The protocol name after its length. Random bytes do not contain it by accident, and a client
    // that puts it elsewhere on purpose is only rejected.
    let mark = [&[ACME_TLS.len() as u8], ACME_TLS].concat();
    Some(hello.windows(mark.len()).any(|window| window == mark))
}

/// The content type of handshake messages.
const HANDSHAKE: u8 = 22;

/// A longer first record is not that of a validation connection.
// RFC 8446 §5.1: a record has at most 2^14 bytes.
const HELLO_BYTES_MAX: usize = 1 << 14;

#[cfg(test)]
mod tests {
    use super::is_challenge;

    fn record(kind: u8, hello: &[u8]) -> Vec<u8> {
        let bytes = u16::try_from(hello.len()).unwrap().to_be_bytes();
        [&[kind, 3, 1], &bytes[..], hello].concat()
    }

    #[test]
    fn the_first_record_tells_and_no_part_of_it() {
        let hello = b"....\x00\x10\x00\x0d\x00\x0b\x0aacme-tls/1....";
        let whole = record(22, hello);
        for end in 0..whole.len() {
            assert_eq!(is_challenge(&whole[..end]), None, "{end}");
        }
        let more = [&whole[..], b"more"].concat();
        for (first, expected) in [
            (&whole[..], true),
            (&more, true),
            (&record(22, b"....\x02h2...."), false),
            (&record(22, b""), false),
            (&record(21, hello), false),
            // Bytes after the first record are ignored.
            (&[record(22, b"..."), whole.clone()].concat(), false),
            (&[22, 3, 1, 0x40, 1], false),
        ] {
            assert_eq!(is_challenge(first), Some(expected), "{first:?}");
        }
    }
}
