//! The store of responses.

use super::asker::Asker;
use super::entry::{Entry, Freshness};
use super::flight::{Flight, Landed};
use http::StatusCode;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The default capacity.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The maximum number of variants of one target; the oldest is evicted.
const VARIANTS_MAX: usize = 16;

/// Stores of at least this size have several parts, to reduce lock contention between workers.
const PARTED_BYTES: usize = 16 * 1024 * 1024;
const PARTS: usize = 8;

/// How long requests do not wait for each other after a response turned out not to be shareable.
const PASS_FOR: Duration = Duration::from_secs(5);

/// An in-memory response store for [`Cache`](super::Cache). Clones share the store. Create it
/// outside the application's closure and clone it in, and all workers share it; created inside,
/// each worker has its own, which needs more memory but avoids lock contention. Applications that
/// answer the same host and path differently need stores of their own.
///
/// When it exceeds 64 MiB, or [`CacheStore::with_bytes_max`], it evicts the least recently used
/// responses.
#[derive(Clone)]
pub struct CacheStore(Arc<Inner>);

struct Inner {
    parts: Box<[Mutex<Part>]>,
    hasher: RandomState,
}

/// Statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Requests answered with a stored response.
    pub hits: u64,
    /// Hits whose response was stale.
    pub stale: u64,
    /// Requests passed to the handler.
    pub misses: u64,
    /// Misses for which the handler confirmed the stored response with a 304.
    pub validated: u64,
    /// Responses evicted for lack of space.
    pub evicted: u64,
    /// Responses in the store.
    pub entries: usize,
    /// The memory they use, in bytes.
    pub bytes: usize,
}

#[derive(Default)]
struct Part {
    places: HashMap<Arc<str>, Place>,
    /// Keys by their last use.
    order: BTreeMap<u64, Arc<str>>,
    flights: HashMap<(Arc<str>, Vec<u8>), Arc<Flight>>,
    tick: u64,
    bytes_max: usize,
    counts: CacheCounts,
}

/// The responses of one target.
#[derive(Default)]
struct Place {
    /// The newest is last.
    variants: Vec<Arc<Entry>>,
    used: u64,
    /// Until when responses are known not to be shareable: for clients without and with an
    /// identity.
    pass_until: [Option<Instant>; 2],
}

/// How to handle a request without a fresh response.
pub(crate) enum Turn {
    /// Call the handler; others may wait for the response.
    Lead(Lead),
    /// Wait for another request.
    Wait(Arc<Flight>),
}

/// The right to call the handler on behalf of waiting requests. Dropping it passes that right on.
pub(crate) struct Lead {
    store: CacheStore,
    key: Arc<str>,
    variant: Vec<u8>,
    pub(crate) flight: Arc<Flight>,
    /// No request waits for this one, because recent responses were not shareable.
    pub(crate) is_alone: bool,
}

impl CacheStore {
    /// Creates an empty store of 64 MiB.
    #[must_use]
    pub fn new() -> Self {
        Self::with_bytes_max(BYTES_MAX)
    }

    /// Creates an empty store with this capacity, which covers content, fields and overhead.
    #[must_use]
    pub fn with_bytes_max(bytes: usize) -> Self {
        let parts = if bytes >= PARTED_BYTES { PARTS } else { 1 };
        let part = || Mutex::new(Part { bytes_max: bytes / parts, ..Part::default() });
        let parts = (0..parts).map(|_| part()).collect();
        Self(Arc::new(Inner { parts, hasher: RandomState::new() }))
    }

    /// Removes the responses for a path, for all hosts and queries. Responses being fetched for it
    /// now are not stored. The path is as clients send it: percent-encoded, and with the prefix of
    /// a mount.
    pub fn invalidate(&self, path: &str) {
        self.forget(|key| path_of(key) == path);
    }

    /// Like [`CacheStore::invalidate`], for a path and everything below it.
    pub fn invalidate_below(&self, path: &str) {
        let stem = path.strip_suffix('/').unwrap_or(path);
        self.forget(|key| {
            let rest = path_of(key).strip_prefix(stem);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    }

    /// Removes all responses.
    pub fn clear(&self) {
        self.forget(|_| true);
    }

    /// The statistics so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        let mut all = CacheCounts::default();
        for part in &self.0.parts {
            let counts = lock(part).counts;
            all.hits += counts.hits;
            all.stale += counts.stale;
            all.misses += counts.misses;
            all.validated += counts.validated;
            all.evicted += counts.evicted;
            all.entries += counts.entries;
            all.bytes += counts.bytes;
        }
        all
    }

    fn forget(&self, is_meant: impl Fn(&str) -> bool) {
        self.0.parts.iter().for_each(|part| lock(part).forget(&is_meant));
    }

    /// Removes the responses under exactly this key.
    pub(crate) fn remove(&self, key: &str) {
        let mut part = self.part(key);
        part.take(key);
        part.void(|other| other == key);
    }

    /// Whether this is the same store.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn part(&self, key: &str) -> MutexGuard<'_, Part> {
        let hash = self.0.hasher.hash_one(key);
        let parts = &self.0.parts;
        lock(&parts[usize::try_from(hash % parts.len() as u64).unwrap_or_default()])
    }

    /// The stored response for this request, unless it is useless by now.
    pub(crate) fn find(&self, key: &str, asker: Asker<'_>) -> Option<(Arc<Entry>, Freshness)> {
        let mut part = self.part(key);
        let place = part.places.get(key)?;
        let entry = Arc::clone(place.variants.iter().rev().find(|entry| entry.fits(asker))?);
        part.touch(key);
        let freshness = entry.freshness();
        is_useful(&entry).then_some((entry, freshness))
    }

    /// Counts a hit.
    pub(crate) fn hit(&self, key: &str, is_stale: bool) {
        let counts = &mut self.part(key).counts;
        counts.hits += 1;
        counts.stale += u64::from(is_stale);
    }

    /// Decides which request fetches. `depth` is the number of outer caches with this store, which
    /// fetch separately.
    pub(crate) fn turn(&self, key: &str, asker: Asker<'_>, depth: u8) -> Turn {
        let mut part = self.part(key);
        let place = part.places.get(key);
        let is_alone = place.is_some_and(|place| place.passes(asker));
        let mut variant = vec![depth, u8::from(asker.is_personal())];
        variant.extend(asker.place());
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
            for name in last.into_iter().flat_map(|last| last.names()) {
                variant.extend(asker.said(name));
                variant.push(0);
            }
        }
        let key: Arc<str> = key.into();
        if let Some(flight) = part.flights.get(&(Arc::clone(&key), variant.clone())) {
            return Turn::Wait(Arc::clone(flight));
        }
        let flight = Arc::<Flight>::default();
        part.counts.misses += 1;
        part.flights.insert((Arc::clone(&key), variant.clone()), Arc::clone(&flight));
        drop(part);
        Turn::Lead(Lead { store: self.clone(), key, variant, flight, is_alone })
    }
}

impl Default for CacheStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Lead {
    /// Stores the response and hands it to all waiting requests.
    pub(crate) fn keep(self, entry: &Arc<Entry>) {
        let mut part = self.store.part(&self.key);
        // Check and store under one lock, which invalidation takes too.
        if !self.flight.is_void() {
            part.keep(&self.key, entry);
        }
        drop(part);
        self.flight.land(Landed::Kept(Arc::clone(entry)));
    }

    /// Hands a stored response, which stays, to all waiting requests.
    pub(crate) fn reuse(self, entry: &Arc<Entry>) {
        self.flight.land(Landed::Kept(Arc::clone(entry)));
    }

    /// The response has this status and is not shareable, so the stored one is not valid either.
    pub(crate) fn pass(self, asker: Asker<'_>, status: StatusCode) {
        let has_crowd = self.flight.waiting() > 0;
        self.store.part(&self.key).pass(&self.key, asker, status, has_crowd);
        self.flight.land(Landed::Passed);
    }

    /// An inner cache with the same store has handled the request.
    pub(crate) fn hand_over(self) {
        self.flight.land(Landed::Passed);
    }

    /// Counts a confirmed response.
    pub(crate) fn count_validated(&self) {
        self.store.part(&self.key).counts.validated += 1;
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let place = (Arc::clone(&self.key), std::mem::take(&mut self.variant));
        let mut part = self.store.part(&self.key);
        // After an invalidation, this key may belong to another flight.
        if part.flights.get(&place).is_some_and(|other| Arc::ptr_eq(other, &self.flight)) {
            part.flights.remove(&place);
        }
        drop(part);
        let is_panic = std::thread::panicking();
        self.flight.land(if is_panic { Landed::Passed } else { Landed::Abandoned });
    }
}

impl Part {
    fn touch(&mut self, key: &str) {
        self.tick += 1;
        let Some(place) = self.places.get_mut(key) else { return };
        if let Some(key) = self.order.remove(&place.used) {
            self.order.insert(self.tick, key);
            place.used = self.tick;
        }
    }

    fn keep(&mut self, key: &Arc<str>, entry: &Arc<Entry>) {
        let bytes = entry.held_bytes();
        if weight(key) + bytes > self.bytes_max {
            // The stored response is older than the one that does not fit.
            self.take(key);
            return;
        }
        let mut place = self.take(key).unwrap_or_default();
        place.variants.retain(|other| !entry.replaces(other) && is_useful(other));
        if place.variants.len() >= VARIANTS_MAX {
            place.variants.remove(0);
            self.counts.evicted += 1;
        }
        place.variants.push(Arc::clone(entry));
        place.pass_until = [None; 2];
        self.put(key, place);
        self.make_room();
    }

    /// Evicts the least recently used responses.
    fn make_room(&mut self) {
        while self.counts.bytes > self.bytes_max {
            let Some((_, oldest)) = self.order.first_key_value() else { break };
            let oldest = Arc::clone(oldest);
            let gone = self.take(&oldest);
            self.counts.evicted += gone.map_or(0, |place| place.variants.len() as u64);
        }
    }

    fn pass(&mut self, key: &Arc<str>, asker: Asker<'_>, status: StatusCode, has_crowd: bool) {
        let mut place = self.take(key).unwrap_or_default();
        // A response for one client, or an error, says nothing about responses for other clients.
        let is_news = !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS;
        if is_news && !asker.is_personal() {
            place.variants.retain(|entry| !entry.fits(asker));
        }
        if has_crowd {
            let until = Instant::now().checked_add(PASS_FOR);
            place.pass_until[usize::from(asker.is_personal())] = until;
        }
        let is_marked = place.pass_until.iter().flatten().any(|until| *until > Instant::now());
        if is_marked || !place.variants.is_empty() {
            self.put(key, place);
            self.make_room();
        }
    }

    fn forget(&mut self, is_meant: impl Fn(&str) -> bool) {
        let keys: Vec<_> = self.places.keys().filter(|key| is_meant(key)).cloned().collect();
        for key in keys {
            self.take(&key);
        }
        self.void(is_meant);
    }

    /// Prevents responses that are being fetched from being stored.
    fn void(&mut self, is_meant: impl Fn(&str) -> bool) {
        self.flights.retain(|(key, _), flight| {
            let is_over = is_meant(key);
            if is_over {
                flight.void();
            }
            !is_over
        });
    }

    fn put(&mut self, key: &Arc<str>, mut place: Place) {
        self.tick += 1;
        place.used = self.tick;
        self.counts.entries += place.variants.len();
        self.counts.bytes += weight(key) + place.held_bytes();
        self.order.insert(self.tick, Arc::clone(key));
        self.places.insert(Arc::clone(key), place);
    }

    fn take(&mut self, key: &str) -> Option<Place> {
        let place = self.places.remove(key)?;
        self.order.remove(&place.used);
        self.counts.entries -= place.variants.len();
        self.counts.bytes -= weight(key) + place.held_bytes();
        Some(place)
    }
}

impl Place {
    /// Whether responses for such clients are known not to be shareable.
    fn passes(&self, asker: Asker<'_>) -> bool {
        let until = self.pass_until[usize::from(asker.is_personal())];
        until.is_some_and(|until| until > Instant::now())
    }

    fn held_bytes(&self) -> usize {
        self.variants.iter().map(|entry| entry.held_bytes()).sum()
    }
}

/// Whether an entry has any use left. One with a validator always does.
fn is_useful(entry: &Entry) -> bool {
    entry.freshness() < Freshness::Over || entry.has_validators()
}

/// The overhead of a target.
fn weight(key: &str) -> usize {
    192 + key.len()
}

/// A key is an origin, a space, and a target.
fn path_of(key: &str) -> &str {
    let target = key.split_once(' ').map_or(key, |(_, target)| target);
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    // No code under this lock panics halfway through a change.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for CacheStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheStore").field(&self.counts()).finish()
    }
}
