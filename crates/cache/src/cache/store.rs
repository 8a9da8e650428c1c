//! Where responses are kept.

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

/// So much is kept, unless set otherwise: 64 MiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// Responses to one target that differ in what they depend on; the oldest gives way.
const VARIANTS_MAX: usize = 16;

/// Stores of so many bytes have several parts, so that workers seldom wait for each other.
const PARTED_BYTES: usize = 16 * 1024 * 1024;
const PARTS: usize = 8;

/// For so long those that ask for something that turned out not to be for others do not wait for each other.
const PASS_FOR: Duration = Duration::from_secs(5);

/// Keeps responses for [`Cache`](super::Cache), in memory. A clone is the same store: make it outside of the application's closure, and clone it
/// in, and all workers share it; made inside, each worker has its own, which costs as much memory more and no locks that others hold.
///
/// Beyond 64 MiB, or [`CacheStore::with_bytes_max`], what was not asked for the longest gives way.
#[derive(Clone)]
pub struct CacheStore(Arc<Inner>);

struct Inner {
    parts: Box<[Mutex<Part>]>,
    hasher: RandomState,
}

/// What a store did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Requests that were answered by a response that was kept.
    pub hits: u64,
    /// Those among them whose response was stale.
    pub stale: u64,
    /// Requests that went to their handler.
    pub misses: u64,
    /// Those among them by which the handler said (304) that what is kept is good still.
    pub validated: u64,
    /// Responses that gave way to others.
    pub evicted: u64,
    /// Responses that are kept.
    pub entries: usize,
    /// What they take, in bytes.
    pub bytes: usize,
}

#[derive(Default)]
struct Part {
    places: HashMap<Arc<str>, Place>,
    /// Keys by when they were last asked for.
    order: BTreeMap<u64, Arc<str>>,
    flights: HashMap<(Arc<str>, Vec<u8>), Arc<Flight>>,
    tick: u64,
    bytes_max: usize,
    counts: CacheCounts,
}

/// What is known of one target.
#[derive(Default)]
struct Place {
    /// The youngest comes last.
    variants: Vec<Arc<Entry>>,
    used: u64,
    /// Answers are not for others; for those to clients that say who they are, and for those to the others.
    pass_until: [Option<Instant>; 2],
}

/// What to do about a request for which nothing fresh is kept.
pub(crate) enum Turn {
    /// It goes on, and others may wait for it.
    Lead(Lead),
    /// Another is on its way.
    Wait(Arc<Flight>),
}

/// The place of a request that others wait for. Dropping it lets another take it.
pub(crate) struct Lead {
    store: CacheStore,
    key: Arc<str>,
    variant: Vec<u8>,
    pub(crate) flight: Arc<Flight>,
    /// Nobody waits for it, because what came before was not for others.
    pub(crate) is_alone: bool,
}

impl CacheStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_bytes_max(BYTES_MAX)
    }

    /// An empty store that keeps so many bytes: content, fields, and what they take beside.
    #[must_use]
    pub fn with_bytes_max(bytes: usize) -> Self {
        let parts = if bytes >= PARTED_BYTES { PARTS } else { 1 };
        let part = || Mutex::new(Part { bytes_max: bytes / parts, ..Part::default() });
        let parts = (0..parts).map(|_| part()).collect();
        Self(Arc::new(Inner { parts, hasher: RandomState::new() }))
    }

    /// Forgets what is kept for a path, whatever host and query it was asked for with. What is being fetched for it now is not kept.
    /// Paths are as clients send them, with the prefix of a mount, and still percent-encoded.
    pub fn invalidate(&self, path: &str) {
        self.forget(|key| path_of(key) == path);
    }

    /// As [`CacheStore::invalidate`], for a path and everything below it.
    pub fn invalidate_below(&self, path: &str) {
        let stem = path.strip_suffix('/').unwrap_or(path);
        self.forget(|key| {
            let rest = path_of(key).strip_prefix(stem);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.forget(|_| true);
    }

    /// What it did so far.
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

    /// Forgets what is kept under exactly this key.
    pub(crate) fn remove(&self, key: &str) {
        let mut part = self.part(key);
        part.take(key);
        part.void(|other| other == key);
    }

    /// Is it the same store?
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn part(&self, key: &str) -> MutexGuard<'_, Part> {
        let hash = self.0.hasher.hash_one(key);
        let parts = &self.0.parts;
        lock(&parts[usize::try_from(hash % parts.len() as u64).unwrap_or_default()])
    }

    /// What is kept for this request, unless it is of no use any more.
    pub(crate) fn find(&self, key: &str, asker: Asker<'_>) -> Option<(Arc<Entry>, Freshness)> {
        let mut part = self.part(key);
        let place = part.places.get(key)?;
        let entry = Arc::clone(place.variants.iter().rev().find(|entry| entry.fits(asker))?);
        part.touch(key);
        let freshness = entry.freshness();
        is_useful(&entry).then_some((entry, freshness))
    }

    /// Counts a request that was answered from here.
    pub(crate) fn hit(&self, key: &str, is_stale: bool) {
        let counts = &mut self.part(key).counts;
        counts.hits += 1;
        counts.stale += u64::from(is_stale);
    }

    /// Who fetches? Behind so many other caches with this store, which have their turns.
    pub(crate) fn turn(&self, key: &str, asker: Asker<'_>, depth: u8) -> Turn {
        let mut part = self.part(key);
        let place = part.places.get(key);
        let is_alone = place.is_some_and(|place| place.passes(asker));
        let mut variant = vec![depth, u8::from(asker.is_personal())];
        variant.extend(asker.place());
        if is_alone {
            // It has a flight of its own all the same: what is changed meanwhile is not kept.
            part.tick += 1;
            variant.push(1);
            variant.extend(part.tick.to_be_bytes());
        } else {
            // Requests that the last response would tell apart do not wait for each other.
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
    /// Keeps the response, and gives it to all that wait.
    pub(crate) fn keep(self, entry: &Arc<Entry>) {
        let mut part = self.store.part(&self.key);
        // Seen and done behind one lock, behind which changes void it as well.
        if !self.flight.is_void() {
            part.keep(&self.key, entry);
        }
        drop(part);
        self.flight.land(Landed::Kept(Arc::clone(entry)));
    }

    /// All that wait are given a response that was kept before, and stays.
    pub(crate) fn reuse(self, entry: &Arc<Entry>) {
        self.flight.land(Landed::Kept(Arc::clone(entry)));
    }

    /// A response with this status is not for others, so what was kept is not either.
    pub(crate) fn pass(self, asker: Asker<'_>, status: StatusCode) {
        let has_crowd = self.flight.waiting() > 0;
        self.store.part(&self.key).pass(&self.key, asker, status, has_crowd);
        self.flight.land(Landed::Passed);
    }

    /// Another cache with the same store, further in, has done what is to be done.
    pub(crate) fn hand_over(self) {
        self.flight.land(Landed::Passed);
    }

    /// Counts what is good still.
    pub(crate) fn count_validated(&self) {
        self.store.part(&self.key).counts.validated += 1;
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let place = (Arc::clone(&self.key), std::mem::take(&mut self.variant));
        let mut part = self.store.part(&self.key);
        // After an invalidation there may be another one in this place.
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
            // What was kept is older than what cannot be.
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

    /// What was not asked for the longest gives way.
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
        // What one client is told, or that something is out of order, says nothing about what is kept for others.
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

    /// What is being fetched there is not to be kept.
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
    /// Are answers for such clients known not to be for others?
    fn passes(&self, asker: Asker<'_>) -> bool {
        let until = self.pass_until[usize::from(asker.is_personal())];
        until.is_some_and(|until| until > Instant::now())
    }

    fn held_bytes(&self) -> usize {
        self.variants.iter().map(|entry| entry.held_bytes()).sum()
    }
}

/// Is there anything that an entry may be used for? One that can be validated always may.
fn is_useful(entry: &Entry) -> bool {
    entry.freshness() < Freshness::Over || entry.has_validators()
}

/// What a place costs beside its responses.
fn weight(key: &str) -> usize {
    192 + key.len()
}

/// A key is an origin, a space, and a target.
fn path_of(key: &str) -> &str {
    let target = key.split_once(' ').map_or(key, |(_, target)| target);
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    // Nothing in there panics between two changes that hang together.
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for CacheStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CacheStore").field(&self.counts()).finish()
    }
}
