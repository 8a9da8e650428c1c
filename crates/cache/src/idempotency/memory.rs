//! An in-memory store of outcomes.

use super::store::{Begun, Fingerprint, IdempotencyStore, Outcome, StoreError};
use peregrine_web::panics::contained;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The default capacity: 64 MiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The overhead of an entry.
const ENTRY_BYTES: usize = 256;

/// Requests without an identity may use one nth of the store.
const ANONYMOUS_PART: usize = 4;

/// Stores outcomes in memory. Clones share the store: create it outside the application's closure
/// and clone it in, so that all workers share it. Applications that answer the same host and path
/// differently need stores of their own.
///
/// Keys are never evicted before they expire, since a request could then be executed twice. When
/// the store is full (64 MiB, or [`MemoryStore::bytes_max`]), it first evicts the responses of
/// finished requests, oldest first; repeating such a request gets a 409. When it is full of keys
/// alone, requests with new keys get a 503 with a `Retry-After` at which the next key expires, and
/// this is logged once. Requests without an identity may use a quarter of the store, so that they
/// cannot lock other clients out.
#[derive(Clone)]
pub struct MemoryStore(Arc<Mutex<Kept>>);

struct Kept {
    entries: HashMap<Box<str>, Entry>,
    /// For requests with an identity, and for those without.
    shares: [Share; 2],
    claims: u64,
    bytes_max: usize,
}

/// The part of the store for requests with, or without, an identity.
#[derive(Default)]
struct Share {
    /// The keys by expiry; the number distinguishes those with the same expiry.
    ends: BTreeMap<(Instant, u64), Box<str>>,
    /// The keys with stored responses, oldest first.
    responses: BTreeMap<u64, Box<str>>,
    bytes: usize,
    /// The bytes used by responses.
    response_bytes: usize,
    /// The share was full, and that was logged.
    is_reported: bool,
}

struct Entry {
    fingerprint: Fingerprint,
    claim: u64,
    is_anonymous: bool,
    /// `None` while the request is in progress.
    outcome: Option<Outcome>,
    end: Instant,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Kept {
            entries: HashMap::new(),
            shares: <_>::default(),
            claims: 0,
            bytes_max: BYTES_MAX,
        })))
    }

    /// Sets the capacity, in bytes.
    #[must_use]
    pub fn bytes_max(self, bytes: usize) -> Self {
        self.lock().bytes_max = bytes;
        self
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No code under this lock panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
        is_anonymous: bool,
    ) -> Result<Begun, StoreError> {
        let (begun, is_news) = {
            let mut kept = self.lock();
            let begun = kept.begin(key, fingerprint, lease, is_anonymous);
            let is_full = begun.is_err();
            let is_news = kept.report(is_anonymous, is_full);
            (begun, is_news)
        };
        if is_news {
            contained(|| report(is_anonymous));
        }
        begun
    }
}

fn report(is_anonymous: bool) {
    if is_anonymous {
        tracing::warn!(target: "peregrine", "the quarter of the store of idempotency keys for requests without an identity is full: more such requests are rejected until keys expire; limit their rate");
    } else {
        tracing::error!(target: "peregrine", "the store of idempotency keys is full: requests with new keys are rejected until others expire; enlarge the store, or shorten the retention time");
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Kept {
    fn begin(
        &mut self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
        is_anonymous: bool,
    ) -> Result<Begun, StoreError> {
        let now = Instant::now();
        self.forget_ended(now);
        if let Some(entry) = self.entries.get(key) {
            return Ok(match &entry.outcome {
                Some(outcome) => Begun::Done(entry.fingerprint, outcome.clone()),
                None => Begun::InProgress(entry.fingerprint),
            });
        }
        if !self.make_room(ENTRY_BYTES + key.len(), is_anonymous) {
            let end = self.next_end(is_anonymous).map(|end| end.duration_since(now));
            return Err(end.map_or(StoreError::Full, StoreError::FullFor));
        }
        self.claims += 1;
        let (claim, end) = (self.claims, later(now, lease));
        let entry = Entry { fingerprint: *fingerprint, claim, is_anonymous, outcome: None, end };
        self.insert(key, entry);
        Ok(Begun::Claimed(claim))
    }

    fn finish(&mut self, key: &str, claim: u64, mut outcome: Outcome, keep_for: Duration) {
        if self.entries.get(key).is_none_or(|entry| entry.claim != claim) {
            return;
        }
        let Some(entry) = self.remove(key) else { return };
        let least = ENTRY_BYTES + key.len();
        // A response of more than half the capacity would evict all others.
        let is_small = least + weight(&outcome) <= self.bytes_of(entry.is_anonymous) / 2;
        if !is_small || !self.make_room(least + weight(&outcome), entry.is_anonymous) {
            outcome = Outcome::Lost;
        }
        let end = later(Instant::now(), keep_for);
        self.insert(key, Entry { outcome: Some(outcome), end, ..entry });
    }

    fn forget_ended(&mut self, now: Instant) {
        for number in 0..self.shares.len() {
            let is_over = |share: &Share| {
                let ((end, _), key) = share.ends.first_key_value()?;
                (*end <= now).then(|| key.clone())
            };
            while let Some(key) = is_over(&self.shares[number]) {
                self.remove(&key);
            }
        }
    }

    /// How many bytes these requests may use.
    fn bytes_of(&self, is_anonymous: bool) -> usize {
        if is_anonymous { self.bytes_max / ANONYMOUS_PART } else { self.bytes_max }
    }

    fn bytes(&self) -> usize {
        self.shares.iter().map(|share| share.bytes).sum()
    }

    /// Makes room for this many bytes by evicting responses. Returns whether there is room now.
    fn make_room(&mut self, bytes: usize, is_anonymous: bool) -> bool {
        let share_max = self.bytes_of(is_anonymous);
        let keys = self.shares.each_ref().map(|share| share.bytes - share.response_bytes);
        // If evicting all responses would not suffice, keep them.
        let fits_share = !is_anonymous || keys[1] + bytes <= share_max;
        if !fits_share || keys.iter().sum::<usize>() + bytes > self.bytes_max {
            return false;
        }
        while is_anonymous && self.shares[1].bytes + bytes > share_max {
            self.forget_response(1);
        }
        while self.bytes() + bytes > self.bytes_max {
            let share = usize::from(!self.shares[1].responses.is_empty());
            self.forget_response(share);
        }
        true
    }

    /// Evicts the oldest response of a share, and keeps its key.
    fn forget_response(&mut self, number: usize) {
        let share = &mut self.shares[number];
        let (_, key) =
            share.responses.pop_first().expect("the share's response bytes are not zero");
        let entry = self.entries.get_mut(&key).expect("every key of a share has an entry");
        let bytes = entry.outcome.replace(Outcome::Lost).as_ref().map_or(0, weight);
        share.bytes -= bytes;
        share.response_bytes -= bytes;
    }

    /// The expiry of the next key that would make room for such a request.
    fn next_end(&self, is_anonymous: bool) -> Option<Instant> {
        let first = |share: &Share| share.ends.keys().next().map(|(end, _)| *end);
        let is_share_full = is_anonymous
            && self.shares[1].bytes + ENTRY_BYTES >= self.bytes_of(true).min(self.bytes_max);
        match is_share_full {
            true => first(&self.shares[1]),
            false => self.shares.iter().filter_map(first).min(),
        }
    }

    /// Whether to log that a share is full. It counts as full until a quarter of it is free.
    fn report(&mut self, is_anonymous: bool, is_full: bool) -> bool {
        let (used, most) = match is_anonymous {
            true => (self.shares[1].bytes, self.bytes_of(true)),
            false => (self.bytes(), self.bytes_max),
        };
        let share = &mut self.shares[usize::from(is_anonymous)];
        if is_full {
            return !std::mem::replace(&mut share.is_reported, true);
        }
        share.is_reported &= used > most / 4 * 3;
        false
    }

    fn insert(&mut self, key: &str, entry: Entry) {
        let share = &mut self.shares[usize::from(entry.is_anonymous)];
        let response = entry.outcome.as_ref().map_or(0, weight);
        share.bytes += ENTRY_BYTES + key.len() + response;
        share.response_bytes += response;
        share.ends.insert((entry.end, entry.claim), key.into());
        if matches!(entry.outcome, Some(Outcome::Kept(_))) {
            share.responses.insert(entry.claim, key.into());
        }
        self.entries.insert(key.into(), entry);
    }

    fn remove(&mut self, key: &str) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        let share = &mut self.shares[usize::from(entry.is_anonymous)];
        share.ends.remove(&(entry.end, entry.claim));
        share.responses.remove(&entry.claim);
        let response = entry.outcome.as_ref().map_or(0, weight);
        share.bytes -= ENTRY_BYTES + key.len() + response;
        share.response_bytes -= response;
        Some(entry)
    }
}

fn later(now: Instant, after: Duration) -> Instant {
    // Overflow: a century or so is as good as forever.
    now.checked_add(after).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

fn weight(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Kept(kept) => kept.held_bytes(),
        Outcome::Lost => 0,
    }
}

impl IdempotencyStore for MemoryStore {
    async fn begin(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Begun, StoreError> {
        self.claim(key, fingerprint, lease, false)
    }

    async fn begin_anonymous(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Begun, StoreError> {
        self.claim(key, fingerprint, lease, true)
    }

    async fn finish(
        &self,
        key: &str,
        claim: u64,
        outcome: Outcome,
        keep_for: Duration,
    ) -> Result<(), StoreError> {
        self.lock().finish(key, claim, outcome, keep_for);
        Ok(())
    }

    async fn release(&self, key: &str, claim: u64) -> Result<(), StoreError> {
        let mut kept = self.lock();
        if kept.entries.get(key).is_some_and(|entry| entry.claim == claim) {
            kept.remove(key);
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.lock();
        f.debug_struct("MemoryStore")
            .field("keys", &kept.entries.len())
            .field("anonymous_keys", &kept.shares[1].ends.len())
            .field("bytes", &kept.bytes())
            .field("bytes_max", &kept.bytes_max)
            .finish()
    }
}
