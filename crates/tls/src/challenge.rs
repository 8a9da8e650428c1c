//! Answers to those who check whom a name belongs to (ACME), and what a [`Tls`] needs of whoever gets its
//! certificates while the server runs.
//!
//! A connection by which a name is checked (RFC 8737) has nothing in common with those of clients: a
//! certificate of its own, one application protocol, no certificates of clients, no tickets, and no
//! content. So it has a configuration of its own, chosen by its first record, and that of clients stays as
//! it is. While nothing can be asked for, nobody looks.

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

/// The application protocol of a connection by which a name is checked.
// RFC 8737 §6.2.
pub(crate) const ACME_TLS: &[u8] = b"acme-tls/1";

/// The answers that are expected at this moment: to TLS (tls-alpn-01) and to HTTP (http-01). Some are this server's own,
/// others were found where instances that share a storage leave them for each other: an authority's request may reach
/// any of them.
#[doc(hidden)]
pub struct Challenges {
    provider: Arc<CryptoProvider>,
    by_name: Arc<ByName>,
    config: Arc<ServerConfig>,
    by_token: Table<Arc<str>>,
    found_by_token: Table<Arc<str>>,
    elsewhere: OnceLock<Elsewhere>,
}

/// Where other instances leave their answers, and which kinds of them.
struct Elsewhere {
    place: Box<dyn LooksElsewhere>,
    has_names: bool,
    has_tokens: bool,
}

/// Whoever knows where other instances leave their answers.
#[doc(hidden)]
pub trait LooksElsewhere: Send + Sync {
    /// Completes when [`Challenges::find`] was given what was there at a moment after this call. It is called on
    /// threads that must not wait, and as often as strangers like.
    fn look(&self) -> Looking;
}

/// Completes when that was looked at.
#[doc(hidden)]
pub type Looking = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A table that is empty most of the time, which costs one load to see.
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
        // Most of the time there is nothing, and was nothing.
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

/// The certificates that answer, by name in lower case: this server's own, and those that were found.
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
        // RFC 8737 §3: the only protocol that is offered is this one, and the name is asked for.
        let mut offered = hello.alpn()?;
        if offered.next() != Some(ACME_TLS) || offered.next().is_some() {
            return None;
        }
        let name = hello.server_name()?.to_ascii_lowercase();
        self.own.get(&name).or_else(|| self.found.get(&name))
    }
}

impl Challenges {
    /// No answers.
    ///
    /// # Errors
    ///
    /// rustls refuses the configuration, which does not happen.
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

    /// Answers for `name` with this certificate until [`forget_name`](Self::forget_name).
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
        // Whether they belong together is not asked: who would read the certificate for that takes no critical
        // extension that it does not know, and this one must have such (RFC 8737, section 3).
        let loaded = self.provider.key_provider.load_private_key(key.key()?);
        let loaded = loaded
            .map_err(|error| TlsError::UnsupportedKey { origin: key.origin.clone(), error })?;
        Ok(Arc::new(CertifiedKey::new(chain.chain()?, loaded)))
    }

    /// No longer answers for `name`.
    pub fn forget_name(&self, name: &str) {
        self.by_name.own.remove(&name.to_ascii_lowercase());
    }

    /// Answers requests for `token` with `answer` until [`forget_token`](Self::forget_token).
    pub fn answer_token(&self, token: &str, answer: &str) {
        self.by_token.put(token, answer.into());
    }

    /// No longer answers requests for `token`.
    pub fn forget_token(&self, token: &str) {
        self.by_token.remove(token);
    }

    /// Has connections and requests that nothing is known about looked up at `place`, if this is not done yet: those for
    /// names, and those for tokens.
    pub fn look_at(&self, place: Box<dyn LooksElsewhere>, has_names: bool, has_tokens: bool) {
        let _ = self.elsewhere.set(Elsewhere { place, has_names, has_tokens });
    }

    /// What others answer at this moment takes the place of what was found before: each name with its chain and key, and
    /// each token with its text. What cannot be used is left out.
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

    /// Does any request have an answer of this server's own?
    #[inline]
    pub fn has_tokens(&self) -> bool {
        !self.by_token.is_empty()
    }

    /// The answer of this server's own to requests for `token`.
    pub fn token(&self, token: &str) -> Option<Arc<str>> {
        self.by_token.get(token)
    }

    /// May others answer requests for tokens that this server does not know?
    #[inline]
    pub fn looks_up_tokens(&self) -> bool {
        self.elsewhere.get().is_some_and(|elsewhere| elsewhere.has_tokens)
    }

    /// The answer that another instance gives to requests for `token`, which takes a moment to find.
    pub async fn token_elsewhere(&self, token: &str) -> Option<Arc<str>> {
        let elsewhere = self.elsewhere.get().filter(|elsewhere| elsewhere.has_tokens)?;
        elsewhere.place.look().await;
        self.found_by_token.get(token)
    }

    /// May a connection come by which a name is checked?
    fn may_be_asked(&self) -> bool {
        !self.by_name.own.is_empty()
            || self.elsewhere.get().is_some_and(|elsewhere| elsewhere.has_names)
    }

    /// Begins to look elsewhere for the name in this first message; `None` if the answer is this server's own, or nobody
    /// else has any.
    fn look_for(&self, hello: &[u8]) -> Option<Looking> {
        let elsewhere = self.elsewhere.get().filter(|elsewhere| elsewhere.has_names)?;
        // The name stands there as it is; who puts another one's beside it is only refused sooner.
        let stands = |name: &str| {
            let is_it = |window: &[u8]| window.eq_ignore_ascii_case(name.as_bytes());
            hello.windows(name.len().max(1)).any(is_it)
        };
        (!self.by_name.own.has(stands)).then(|| elsewhere.place.look())
    }
}

/// A connection of which it is not known yet whether it is a client's or one by which a name is checked.
pub(crate) struct Examined {
    usual: Arc<ServerConfig>,
    challenges: Arc<Challenges>,
    looks: Looks,
}

/// How far the look at the answers of others is.
enum Looks {
    NotYet,
    Now(Looking),
    Done,
}

impl Examined {
    pub(crate) fn new(usual: Arc<ServerConfig>, challenges: Arc<Challenges>) -> Self {
        Self { usual, challenges, looks: Looks::NotYet }
    }

    /// The configuration that it has, by its first bytes; `None` if too few of them have come, or until it is known what
    /// others answer.
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

    /// Ready when nothing is looked for any more.
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

/// Whoever gets the certificates of a [`Tls`] while the server runs.
#[derive(Clone)]
pub(crate) struct Supplier {
    challenges: Arc<Challenges>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Tls {
    /// Without a certificate, so that every handshake fails until there is one, and with somebody who gets
    /// them: `owner`, which comes along with this value and all that are made of it.
    ///
    /// # Errors
    ///
    /// The system gives no random bytes.
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

    /// Where names are checked.
    #[doc(hidden)]
    pub fn challenges(&self) -> Option<&Arc<Challenges>> {
        self.supplier.as_ref().map(|supplier| &supplier.challenges)
    }

    /// Who gets the certificates.
    #[doc(hidden)]
    pub fn owner(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.supplier.as_ref().map(|supplier| Arc::clone(&supplier.owner))
    }

    /// Who answers those who check names, while anybody may come.
    pub(crate) fn asked(&self) -> Option<&Arc<Challenges>> {
        Some(&self.supplier.as_ref()?.challenges).filter(|challenges| challenges.may_be_asked())
    }
}

/// Is this the beginning of a connection by which a name is checked? `None` if too little of it has come. It
/// begins with the first byte of a TLS record.
pub(crate) fn is_challenge(first: &[u8]) -> Option<bool> {
    let (header, rest) = first.split_first_chunk::<5>()?;
    let (kind, bytes) = (header[0], usize::from(u16::from_be_bytes([header[3], header[4]])));
    if kind != HANDSHAKE || bytes > HELLO_BYTES_MAX {
        return Some(false);
    }
    let hello = rest.get(..bytes)?;
    // The name of the protocol after its length. That it stands elsewhere by chance is beyond belief; who
    // puts it there is only refused.
    let mark = [&[ACME_TLS.len() as u8], ACME_TLS].concat();
    Some(hello.windows(mark.len()).any(|window| window == mark))
}

/// The content type of handshake messages.
const HANDSHAKE: u8 = 22;

/// A first record that is longer is no such connection's.
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
            // What follows the first record does not count.
            (&[record(22, b"..."), whole.clone()].concat(), false),
            (&[22, 3, 1, 0x40, 1], false),
        ] {
            assert_eq!(is_challenge(first), Some(expected), "{first:?}");
        }
    }
}
