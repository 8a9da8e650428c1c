//! The store of responses.

use super::coalesce::{Flight, FlightOutcome};
use super::entry::{CacheEntry, Freshness};
use super::requester::Requester;
use http::StatusCode;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The default capacity.
const CAPACITY_BYTES_DEFAULT: usize = 64 * 1024 * 1024;

/// The maximum number of variants of one target; the oldest is evicted.
const VARIANTS_MAX: usize = 16;

/// Stores of at least this size are sharded, to reduce lock contention between workers.
const SHARDING_BYTES_MIN: usize = 16 * 1024 * 1024;
const SHARDS: usize = 8;

/// After a response turned out not to be shareable, requests for it do not wait for each other
/// during this time. Varnish calls this "hit-for-pass".
const HIT_FOR_PASS_TTL: Duration = Duration::from_secs(5);

/// An in-memory response store for [`Cache`](super::Cache). Clones share the store. If it is
/// created outside the application's closure and cloned into it, all workers share it. If it is
/// created inside, each worker has its own, which needs more memory but avoids lock contention.
/// Applications that respond differently to the same host and path need separate stores.
///
/// When it exceeds its capacity of 64 MiB ([`CacheStore::with_capacity_bytes`]), it evicts the
/// least recently used responses.
#[derive(Clone)]
pub struct CacheStore(Arc<Inner>);

struct Inner {
    shards: Box<[Mutex<CacheShard>]>,
    hasher: RandomState,
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Requests whose response came from the store.
    pub hits: u64,
    /// Hits whose response was stale.
    pub stale_hits: u64,
    /// Fetches of a response from the handler, including background refreshes.
    pub misses: u64,
    /// Misses for which the handler confirmed the stored response with a 304.
    pub revalidated: u64,
    /// Responses evicted for lack of space.
    pub evicted: u64,
    /// Responses in the store.
    pub entries: usize,
    /// The memory they use, in bytes.
    pub bytes: usize,
}

#[derive(Default)]
struct CacheShard {
    targets: HashMap<Arc<str>, TargetEntry>,
    /// Keys by their last use.
    lru: BTreeMap<u64, Arc<str>>,
    /// The fetches in progress, by key and request class (see [`FlightLeader`]).
    flights: HashMap<(Arc<str>, Vec<u8>), Arc<Flight>>,
    /// Increases with each use of a target, to order targets by their last use.
    tick: u64,
    bytes_max: usize,
    stats: CacheStats,
}

/// The responses of one target.
#[derive(Default)]
struct TargetEntry {
    /// The newest is last.
    variants: Vec<Arc<CacheEntry>>,
    last_used: u64,
    /// Before these times, requests do not wait for each other, because a recent response was not
    /// shareable. The first is for requests whose [`Requester::is_private`] is `false`, the second
    /// for the others.
    hit_for_pass_until: [Option<Instant>; 2],
}

/// How to handle a request without a fresh response.
pub(crate) enum FlightRole {
    /// Call the handler; other requests may wait for the response.
    Leader(FlightLeader),
    /// Wait for another request's fetch.
    Follower(Arc<Flight>),
}

/// The right to call the handler on behalf of waiting requests. Dropping it before it has an
/// outcome passes the right on to one of them, except during a panic.
pub(crate) struct FlightLeader {
    store: CacheStore,
    key: Arc<str>,
    /// The requests for the key that may share a response, as far as is known before the fetch.
    request_class: Vec<u8>,
    pub(crate) flight: Arc<Flight>,
    /// No request waits for this one, because recent responses were not shareable.
    pub(crate) is_hit_for_pass: bool,
}

impl CacheStore {
    /// Creates an empty store with a capacity of 64 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity_bytes(CAPACITY_BYTES_DEFAULT)
    }

    /// Creates an empty store with this capacity, which covers content, fields and overhead.
    #[doc(alias = "max_capacity")]
    #[must_use]
    pub fn with_capacity_bytes(bytes: usize) -> Self {
        let shard_count = if bytes >= SHARDING_BYTES_MIN { SHARDS } else { 1 };
        let new_shard =
            || Mutex::new(CacheShard { bytes_max: bytes / shard_count, ..CacheShard::default() });
        let shards = (0..shard_count).map(|_| new_shard()).collect();
        Self(Arc::new(Inner { shards, hasher: RandomState::new() }))
    }

    /// Removes the responses for a path, for all hosts and queries. Responses being fetched for it
    /// now are not stored. The path is as clients send it: percent-encoded, and with the prefix of
    /// a mount.
    pub fn invalidate(&self, path: &str) {
        self.remove_matching(|key| key_path(key) == path);
    }

    /// Like [`CacheStore::invalidate`], for a path and everything below it.
    #[doc(alias = "purge")]
    pub fn invalidate_prefix(&self, path: &str) {
        let stem = path.strip_suffix('/').unwrap_or(path);
        self.remove_matching(|key| {
            let rest = key_path(key).strip_prefix(stem);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    }

    /// Removes all responses.
    pub fn clear(&self) {
        self.remove_matching(|_| true);
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut total = CacheStats::default();
        for shard in &self.0.shards {
            let stats = lock(shard).stats;
            total.hits += stats.hits;
            total.stale_hits += stats.stale_hits;
            total.misses += stats.misses;
            total.revalidated += stats.revalidated;
            total.evicted += stats.evicted;
            total.entries += stats.entries;
            total.bytes += stats.bytes;
        }
        total
    }

    fn remove_matching(&self, matches: impl Fn(&str) -> bool) {
        self.0.shards.iter().for_each(|shard| lock(shard).remove_matching(&matches));
    }

    /// Removes the responses under exactly this key.
    pub(crate) fn remove(&self, key: &str) {
        let mut shard = self.shard(key);
        shard.remove(key);
        shard.invalidate_flights(|other| other == key);
    }

    /// Whether this is the same store.
    pub(crate) fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, CacheShard> {
        let hash = self.0.hasher.hash_one(key);
        let shards = &self.0.shards;
        lock(&shards[usize::try_from(hash % shards.len() as u64).unwrap_or_default()])
    }

    /// The stored response for this request, unless it has expired and cannot be revalidated.
    pub(crate) fn lookup(
        &self,
        key: &str,
        requester: Requester<'_>,
    ) -> Option<(Arc<CacheEntry>, Freshness)> {
        let mut shard = self.shard(key);
        let target = shard.targets.get(key)?;
        let entry =
            Arc::clone(target.variants.iter().rev().find(|entry| entry.matches(requester))?);
        shard.touch(key);
        let freshness = entry.freshness();
        is_usable(&entry).then_some((entry, freshness))
    }

    /// Counts a hit.
    pub(crate) fn record_hit(&self, key: &str, is_stale: bool) {
        let stats = &mut self.shard(key).stats;
        stats.hits += 1;
        stats.stale_hits += u64::from(is_stale);
    }

    /// Joins the flight for this response, or starts one. `depth` is the number of enclosing caches
    /// with the same store. Each depth has its own flights, so that an inner cache never waits for
    /// an outer one.
    pub(crate) fn join_flight(&self, key: &str, requester: Requester<'_>, depth: u8) -> FlightRole {
        let mut shard = self.shard(key);
        let target = shard.targets.get(key);
        let is_hit_for_pass = target.is_some_and(|target| target.is_hit_for_pass(requester));
        let mut request_class = vec![depth, u8::from(requester.is_private())];
        request_class.extend(requester.route_key());
        if is_hit_for_pass {
            // The request gets its own flight, by which a concurrent invalidation can prevent its
            // response from being stored.
            shard.tick += 1;
            request_class.push(1);
            request_class.extend(shard.tick.to_be_bytes());
        } else {
            // Requests that the newest response's `Vary` distinguishes do not wait for each other.
            let mut variants = target.into_iter().flat_map(|target| target.variants.iter().rev());
            let newest = variants.find(|newest| newest.is_from(requester));
            request_class.push(0);
            for name in newest.into_iter().flat_map(|newest| newest.vary_fields()) {
                request_class.extend(requester.field_values(name));
                request_class.push(0);
            }
        }
        let key: Arc<str> = key.into();
        if let Some(flight) = shard.flights.get(&(Arc::clone(&key), request_class.clone())) {
            return FlightRole::Follower(Arc::clone(flight));
        }
        let flight = Arc::<Flight>::default();
        shard.stats.misses += 1;
        shard.flights.insert((Arc::clone(&key), request_class.clone()), Arc::clone(&flight));
        drop(shard);
        FlightRole::Leader(FlightLeader {
            store: self.clone(),
            key,
            request_class,
            flight,
            is_hit_for_pass,
        })
    }
}

impl Default for CacheStore {
    fn default() -> Self {
        Self::new()
    }
}

impl FlightLeader {
    /// Stores the response and hands it to all waiting requests.
    pub(crate) fn store(self, entry: &Arc<CacheEntry>) {
        let mut shard = self.store.shard(&self.key);
        // Check and store under one lock, which invalidation acquires too.
        if !self.flight.is_invalidated() {
            shard.store(&self.key, entry);
        }
        drop(shard);
        self.flight.complete(FlightOutcome::Stored(Arc::clone(entry)));
    }

    /// Hands a response that is already in the store to all waiting requests.
    pub(crate) fn serve_existing(self, entry: &Arc<CacheEntry>) {
        self.flight.complete(FlightOutcome::Stored(Arc::clone(entry)));
    }

    /// Records that the handler's response, which has this status, is not shareable. If this also
    /// applies to other clients, removes the stored response for this request.
    pub(crate) fn mark_hit_for_pass(self, requester: Requester<'_>, status: StatusCode) {
        let has_waiters = self.flight.waiter_count() > 0;
        self.store.shard(&self.key).mark_hit_for_pass(&self.key, requester, status, has_waiters);
        self.flight.complete(FlightOutcome::Uncacheable);
    }

    /// Ends the flight without a response, because an inner cache with the same store has handled
    /// the request.
    pub(crate) fn delegate_to_inner(self) {
        self.flight.complete(FlightOutcome::Uncacheable);
    }

    /// Counts a stored response that the handler has confirmed.
    pub(crate) fn count_revalidated(&self) {
        self.store.shard(&self.key).stats.revalidated += 1;
    }
}

impl Drop for FlightLeader {
    fn drop(&mut self) {
        let flight_key = (Arc::clone(&self.key), std::mem::take(&mut self.request_class));
        let mut shard = self.store.shard(&self.key);
        // After an invalidation, this key may belong to another flight.
        if shard.flights.get(&flight_key).is_some_and(|other| Arc::ptr_eq(other, &self.flight)) {
            shard.flights.remove(&flight_key);
        }
        drop(shard);
        let is_panicking = std::thread::panicking();
        self.flight.complete(if is_panicking {
            FlightOutcome::Uncacheable
        } else {
            FlightOutcome::Abandoned
        });
    }
}

impl CacheShard {
    /// Makes a target the most recently used one.
    fn touch(&mut self, key: &str) {
        self.tick += 1;
        let Some(target) = self.targets.get_mut(key) else { return };
        if let Some(key) = self.lru.remove(&target.last_used) {
            self.lru.insert(self.tick, key);
            target.last_used = self.tick;
        }
    }

    fn store(&mut self, key: &Arc<str>, entry: &Arc<CacheEntry>) {
        let bytes = entry.memory_bytes();
        if overhead_bytes(key) + bytes > self.bytes_max {
            // The new response does not fit, and the stored ones are outdated.
            self.remove(key);
            return;
        }
        let mut target = self.remove(key).unwrap_or_default();
        target.variants.retain(|other| !entry.has_same_vary(other) && is_usable(other));
        if target.variants.len() >= VARIANTS_MAX {
            target.variants.remove(0);
            self.stats.evicted += 1;
        }
        target.variants.push(Arc::clone(entry));
        target.hit_for_pass_until = [None; 2];
        self.insert(key, target);
        self.evict();
    }

    /// Evicts the least recently used responses.
    fn evict(&mut self) {
        while self.stats.bytes > self.bytes_max {
            let Some((_, oldest)) = self.lru.first_key_value() else { break };
            let oldest = Arc::clone(oldest);
            let evicted = self.remove(&oldest);
            self.stats.evicted += evicted.map_or(0, |target| target.variants.len() as u64);
        }
    }

    fn mark_hit_for_pass(
        &mut self,
        key: &Arc<str>,
        requester: Requester<'_>,
        status: StatusCode,
        has_waiters: bool,
    ) {
        let mut target = self.remove(key).unwrap_or_default();
        // A response for one client, or an error, says nothing about responses for other clients.
        let is_conclusive = !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS;
        if is_conclusive && !requester.is_private() {
            target.variants.retain(|entry| !entry.matches(requester));
        }
        // Without concurrent requests, no request would wait for another one.
        if has_waiters {
            let until = Instant::now().checked_add(HIT_FOR_PASS_TTL);
            target.hit_for_pass_until[usize::from(requester.is_private())] = until;
        }
        let is_marked =
            target.hit_for_pass_until.iter().flatten().any(|until| *until > Instant::now());
        if is_marked || !target.variants.is_empty() {
            self.insert(key, target);
            self.evict();
        }
    }

    fn remove_matching(&mut self, matches: impl Fn(&str) -> bool) {
        let keys: Vec<_> = self.targets.keys().filter(|key| matches(key)).cloned().collect();
        for key in keys {
            self.remove(&key);
        }
        self.invalidate_flights(matches);
    }

    /// Prevents responses that are being fetched from being stored.
    fn invalidate_flights(&mut self, matches: impl Fn(&str) -> bool) {
        self.flights.retain(|(key, _), flight| {
            let is_invalidated = matches(key);
            if is_invalidated {
                flight.invalidate();
            }
            !is_invalidated
        });
    }

    fn insert(&mut self, key: &Arc<str>, mut target: TargetEntry) {
        self.tick += 1;
        target.last_used = self.tick;
        self.stats.entries += target.variants.len();
        self.stats.bytes += overhead_bytes(key) + target.memory_bytes();
        self.lru.insert(self.tick, Arc::clone(key));
        self.targets.insert(Arc::clone(key), target);
    }

    fn remove(&mut self, key: &str) -> Option<TargetEntry> {
        let target = self.targets.remove(key)?;
        self.lru.remove(&target.last_used);
        self.stats.entries -= target.variants.len();
        self.stats.bytes -= overhead_bytes(key) + target.memory_bytes();
        Some(target)
    }
}

impl TargetEntry {
    /// Whether responses for clients like this one are known not to be shareable.
    fn is_hit_for_pass(&self, requester: Requester<'_>) -> bool {
        let until = self.hit_for_pass_until[usize::from(requester.is_private())];
        until.is_some_and(|until| until > Instant::now())
    }

    fn memory_bytes(&self) -> usize {
        self.variants.iter().map(|entry| entry.memory_bytes()).sum()
    }
}

/// Whether an entry can still be served or revalidated.
fn is_usable(entry: &CacheEntry) -> bool {
    entry.freshness() < Freshness::Expired || entry.has_validators()
}

/// An estimate of the memory that a target needs in addition to its responses.
fn overhead_bytes(key: &str) -> usize {
    192 + key.len()
}

/// The path in a key, which consists of an origin, a space, and a target.
fn key_path(key: &str) -> &str {
    let target = key.split_once(' ').map_or(key, |(_, target)| target);
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn lock(shard: &Mutex<CacheShard>) -> MutexGuard<'_, CacheShard> {
    // No code under this lock panics halfway through a change.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for CacheStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheStore").field(&self.stats()).finish()
    }
}
