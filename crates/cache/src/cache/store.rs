//! The store of responses.

use super::coalesce::{CoalescedFetch, FlightOutcome};
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

/// Stores of at least this size have several parts, to reduce lock contention between workers.
const SHARDING_BYTES_MIN: usize = 16 * 1024 * 1024;
const SHARDS: usize = 8;

/// How long requests do not wait for each other after a response turned out not to be shareable.
const HIT_FOR_PASS_TTL: Duration = Duration::from_secs(5);

/// An in-memory response store for [`Cache`](super::Cache). Clones share the store. Create it
/// outside the application's closure and clone it in, and all workers share it; created inside,
/// each worker has its own, which needs more memory but avoids lock contention. Applications that
/// answer the same host and path differently need stores of their own.
///
/// When it exceeds 64 MiB, or [`CacheStore::with_capacity_bytes`], it evicts the least recently
/// used responses.
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
    /// Requests answered with a stored response.
    pub hits: u64,
    /// Hits whose response was stale.
    pub stale_hits: u64,
    /// Requests passed to the handler.
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
    flights: HashMap<(Arc<str>, Vec<u8>), Arc<CoalescedFetch>>,
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
    /// Until when responses are known not to be shareable: for clients without and with an
    /// identity.
    hit_for_pass_until: [Option<Instant>; 2],
}

/// How to handle a request without a fresh response.
pub(crate) enum FlightRole {
    /// Call the handler; others may wait for the response.
    Leader(FetchLeader),
    /// Wait for another request.
    Follower(Arc<CoalescedFetch>),
}

/// The right to call the handler on behalf of waiting requests. Dropping it passes that right on.
pub(crate) struct FetchLeader {
    store: CacheStore,
    key: Arc<str>,
    variant: Vec<u8>,
    pub(crate) flight: Arc<CoalescedFetch>,
    /// No request waits for this one, because recent responses were not shareable.
    pub(crate) is_pass: bool,
}

impl CacheStore {
    /// Creates an empty store of 64 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity_bytes(CAPACITY_BYTES_DEFAULT)
    }

    /// Creates an empty store with this capacity, which covers content, fields and overhead.
    #[doc(alias = "max_capacity")]
    #[must_use]
    pub fn with_capacity_bytes(bytes: usize) -> Self {
        let parts = if bytes >= SHARDING_BYTES_MIN { SHARDS } else { 1 };
        let part = || Mutex::new(CacheShard { bytes_max: bytes / parts, ..CacheShard::default() });
        let parts = (0..parts).map(|_| part()).collect();
        Self(Arc::new(Inner { shards: parts, hasher: RandomState::new() }))
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

    /// The statistics so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let mut all = CacheStats::default();
        for part in &self.0.shards {
            let counts = lock(part).stats;
            all.hits += counts.hits;
            all.stale_hits += counts.stale_hits;
            all.misses += counts.misses;
            all.revalidated += counts.revalidated;
            all.evicted += counts.evicted;
            all.entries += counts.entries;
            all.bytes += counts.bytes;
        }
        all
    }

    fn remove_matching(&self, is_meant: impl Fn(&str) -> bool) {
        self.0.shards.iter().for_each(|part| lock(part).remove_matching(&is_meant));
    }

    /// Removes the responses under exactly this key.
    pub(crate) fn remove(&self, key: &str) {
        let mut part = self.shard(key);
        part.remove(key);
        part.invalidate_flights(|other| other == key);
    }

    /// Whether this is the same store.
    pub(crate) fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, CacheShard> {
        let hash = self.0.hasher.hash_one(key);
        let parts = &self.0.shards;
        lock(&parts[usize::try_from(hash % parts.len() as u64).unwrap_or_default()])
    }

    /// The stored response for this request, unless it is useless by now.
    pub(crate) fn lookup(
        &self,
        key: &str,
        asker: Requester<'_>,
    ) -> Option<(Arc<CacheEntry>, Freshness)> {
        let mut part = self.shard(key);
        let place = part.targets.get(key)?;
        let entry = Arc::clone(place.variants.iter().rev().find(|entry| entry.matches(asker))?);
        part.touch(key);
        let freshness = entry.freshness();
        is_usable(&entry).then_some((entry, freshness))
    }

    /// Counts a hit.
    pub(crate) fn record_hit(&self, key: &str, is_stale: bool) {
        let counts = &mut self.shard(key).stats;
        counts.hits += 1;
        counts.stale_hits += u64::from(is_stale);
    }

    /// Decides which request fetches. `depth` is the number of outer caches with this store, which
    /// fetch separately.
    pub(crate) fn join_flight(&self, key: &str, asker: Requester<'_>, depth: u8) -> FlightRole {
        let mut part = self.shard(key);
        let place = part.targets.get(key);
        let is_alone = place.is_some_and(|place| place.is_hit_for_pass(asker));
        let mut variant = vec![depth, u8::from(asker.is_private())];
        variant.extend(asker.route_key());
        if is_alone {
            // It gets its own flight anyway, so that a concurrent change prevents it from being
            // stored.
            part.tick += 1;
            variant.push(1);
            variant.extend(part.tick.to_be_bytes());
        } else {
            // Requests that the last response's `Vary` distinguishes do not wait for each other.
            let mut variants = place.into_iter().flat_map(|place| place.variants.iter().rev());
            let last = variants.find(|last| last.is_from(asker));
            variant.push(0);
            for name in last.into_iter().flat_map(|last| last.vary_fields()) {
                variant.extend(asker.field_values(name));
                variant.push(0);
            }
        }
        let key: Arc<str> = key.into();
        if let Some(flight) = part.flights.get(&(Arc::clone(&key), variant.clone())) {
            return FlightRole::Follower(Arc::clone(flight));
        }
        let flight = Arc::<CoalescedFetch>::default();
        part.stats.misses += 1;
        part.flights.insert((Arc::clone(&key), variant.clone()), Arc::clone(&flight));
        drop(part);
        FlightRole::Leader(FetchLeader {
            store: self.clone(),
            key,
            variant,
            flight,
            is_pass: is_alone,
        })
    }
}

impl Default for CacheStore {
    fn default() -> Self {
        Self::new()
    }
}

impl FetchLeader {
    /// Stores the response and hands it to all waiting requests.
    pub(crate) fn store(self, entry: &Arc<CacheEntry>) {
        let mut part = self.store.shard(&self.key);
        // Check and store under one lock, which invalidation takes too.
        if !self.flight.is_invalidated() {
            part.store(&self.key, entry);
        }
        drop(part);
        self.flight.complete(FlightOutcome::Stored(Arc::clone(entry)));
    }

    /// Hands a stored response, which stays, to all waiting requests.
    pub(crate) fn serve_existing(self, entry: &Arc<CacheEntry>) {
        self.flight.complete(FlightOutcome::Stored(Arc::clone(entry)));
    }

    /// The response has this status and is not shareable, so the stored one is not valid either.
    pub(crate) fn mark_hit_for_pass(self, asker: Requester<'_>, status: StatusCode) {
        let has_crowd = self.flight.waiters() > 0;
        self.store.shard(&self.key).mark_hit_for_pass(&self.key, asker, status, has_crowd);
        self.flight.complete(FlightOutcome::Uncacheable);
    }

    /// An inner cache with the same store has handled the request.
    pub(crate) fn delegate_to_inner(self) {
        self.flight.complete(FlightOutcome::Uncacheable);
    }

    /// Counts a confirmed response.
    pub(crate) fn count_revalidated(&self) {
        self.store.shard(&self.key).stats.revalidated += 1;
    }
}

impl Drop for FetchLeader {
    fn drop(&mut self) {
        let place = (Arc::clone(&self.key), std::mem::take(&mut self.variant));
        let mut part = self.store.shard(&self.key);
        // After an invalidation, this key may belong to another flight.
        if part.flights.get(&place).is_some_and(|other| Arc::ptr_eq(other, &self.flight)) {
            part.flights.remove(&place);
        }
        drop(part);
        let is_panic = std::thread::panicking();
        self.flight.complete(if is_panic {
            FlightOutcome::Uncacheable
        } else {
            FlightOutcome::Abandoned
        });
    }
}

impl CacheShard {
    fn touch(&mut self, key: &str) {
        self.tick += 1;
        let Some(place) = self.targets.get_mut(key) else { return };
        if let Some(key) = self.lru.remove(&place.last_used) {
            self.lru.insert(self.tick, key);
            place.last_used = self.tick;
        }
    }

    fn store(&mut self, key: &Arc<str>, entry: &Arc<CacheEntry>) {
        let bytes = entry.memory_bytes();
        if overhead_bytes(key) + bytes > self.bytes_max {
            // The stored response is older than the one that does not fit.
            self.remove(key);
            return;
        }
        let mut place = self.remove(key).unwrap_or_default();
        place.variants.retain(|other| !entry.has_same_vary(other) && is_usable(other));
        if place.variants.len() >= VARIANTS_MAX {
            place.variants.remove(0);
            self.stats.evicted += 1;
        }
        place.variants.push(Arc::clone(entry));
        place.hit_for_pass_until = [None; 2];
        self.insert(key, place);
        self.evict();
    }

    /// Evicts the least recently used responses.
    fn evict(&mut self) {
        while self.stats.bytes > self.bytes_max {
            let Some((_, oldest)) = self.lru.first_key_value() else { break };
            let oldest = Arc::clone(oldest);
            let gone = self.remove(&oldest);
            self.stats.evicted += gone.map_or(0, |place| place.variants.len() as u64);
        }
    }

    fn mark_hit_for_pass(
        &mut self,
        key: &Arc<str>,
        asker: Requester<'_>,
        status: StatusCode,
        has_crowd: bool,
    ) {
        let mut place = self.remove(key).unwrap_or_default();
        // A response for one client, or an error, says nothing about responses for other clients.
        let is_news = !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS;
        if is_news && !asker.is_private() {
            place.variants.retain(|entry| !entry.matches(asker));
        }
        if has_crowd {
            let until = Instant::now().checked_add(HIT_FOR_PASS_TTL);
            place.hit_for_pass_until[usize::from(asker.is_private())] = until;
        }
        let is_marked =
            place.hit_for_pass_until.iter().flatten().any(|until| *until > Instant::now());
        if is_marked || !place.variants.is_empty() {
            self.insert(key, place);
            self.evict();
        }
    }

    fn remove_matching(&mut self, is_meant: impl Fn(&str) -> bool) {
        let keys: Vec<_> = self.targets.keys().filter(|key| is_meant(key)).cloned().collect();
        for key in keys {
            self.remove(&key);
        }
        self.invalidate_flights(is_meant);
    }

    /// Prevents responses that are being fetched from being stored.
    fn invalidate_flights(&mut self, is_meant: impl Fn(&str) -> bool) {
        self.flights.retain(|(key, _), flight| {
            let is_over = is_meant(key);
            if is_over {
                flight.invalidate();
            }
            !is_over
        });
    }

    fn insert(&mut self, key: &Arc<str>, mut place: TargetEntry) {
        self.tick += 1;
        place.last_used = self.tick;
        self.stats.entries += place.variants.len();
        self.stats.bytes += overhead_bytes(key) + place.memory_bytes();
        self.lru.insert(self.tick, Arc::clone(key));
        self.targets.insert(Arc::clone(key), place);
    }

    fn remove(&mut self, key: &str) -> Option<TargetEntry> {
        let place = self.targets.remove(key)?;
        self.lru.remove(&place.last_used);
        self.stats.entries -= place.variants.len();
        self.stats.bytes -= overhead_bytes(key) + place.memory_bytes();
        Some(place)
    }
}

impl TargetEntry {
    /// Whether responses for such clients are known not to be shareable.
    fn is_hit_for_pass(&self, asker: Requester<'_>) -> bool {
        let until = self.hit_for_pass_until[usize::from(asker.is_private())];
        until.is_some_and(|until| until > Instant::now())
    }

    fn memory_bytes(&self) -> usize {
        self.variants.iter().map(|entry| entry.memory_bytes()).sum()
    }
}

/// Whether an entry has any use left. One with a validator always does.
fn is_usable(entry: &CacheEntry) -> bool {
    entry.freshness() < Freshness::Expired || entry.has_validators()
}

/// The overhead of a target.
fn overhead_bytes(key: &str) -> usize {
    192 + key.len()
}

/// A key is an origin, a space, and a target.
fn key_path(key: &str) -> &str {
    let target = key.split_once(' ').map_or(key, |(_, target)| target);
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn lock(part: &Mutex<CacheShard>) -> MutexGuard<'_, CacheShard> {
    // No code under this lock panics halfway through a change.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for CacheStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheStore").field(&self.stats()).finish()
    }
}
