//! An in-memory store of outcomes.

use super::store::{
    ClaimResult, Fingerprint, IdempotencyStore, IdempotencyStoreError, IdempotentOutcome,
};
use peregrine_web::panic::catch_log_panic;
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
const ANONYMOUS_SHARE_DIVISOR: usize = 4;

/// Stores outcomes in memory. Clones share the store: create it outside the application's closure
/// and clone it in, so that all workers share it. Applications that answer the same host and path
/// differently need stores of their own.
///
/// Keys are never evicted before they expire, since a request could then be executed twice. When
/// the store is full (64 MiB, or [`MemoryIdempotencyStore::bytes_max`]), it first evicts the
/// responses of finished requests, oldest first; repeating such a request gets a 409. When it is
/// full of keys alone, requests with new keys get a 503 with a `Retry-After` at which the next key
/// expires, and this is logged once. Requests without an identity may use a quarter of the store,
/// so that they cannot lock other clients out.
#[derive(Clone)]
pub struct MemoryIdempotencyStore(Arc<Mutex<MemoryStoreInner>>);

struct MemoryStoreInner {
    entries: HashMap<Box<str>, ClaimEntry>,
    /// For requests with an identity, and for those without.
    partitions: [StorePartition; 2],
    last_claim: u64,
    bytes_max: usize,
}

/// The part of the store for requests with, or without, an identity.
#[derive(Default)]
struct StorePartition {
    /// The keys by expiry; the number distinguishes those with the same expiry.
    by_expiry: BTreeMap<(Instant, u64), Box<str>>,
    /// The keys with stored responses, oldest first.
    responses: BTreeMap<u64, Box<str>>,
    bytes: usize,
    /// The bytes used by responses.
    response_bytes: usize,
    /// The share was full, and that was logged.
    is_reported: bool,
}

struct ClaimEntry {
    fingerprint: Fingerprint,
    claim: u64,
    is_anonymous: bool,
    /// `None` while the request is in progress.
    outcome: Option<IdempotentOutcome>,
    expires_at: Instant,
}

impl MemoryIdempotencyStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(MemoryStoreInner {
            entries: HashMap::new(),
            partitions: <_>::default(),
            last_claim: 0,
            bytes_max: BYTES_MAX,
        })))
    }

    /// Sets the capacity, in bytes.
    #[must_use]
    pub fn bytes_max(self, bytes: usize) -> Self {
        self.lock().bytes_max = bytes;
        self
    }

    fn lock(&self) -> MutexGuard<'_, MemoryStoreInner> {
        // No code under this lock panics halfway through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_claim(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
        is_anonymous: bool,
    ) -> Result<ClaimResult, IdempotencyStoreError> {
        let (begun, is_news) = {
            let mut kept = self.lock();
            let begun = kept.claim(key, fingerprint, lease, is_anonymous);
            let is_full = begun.is_err();
            let is_news = kept.report(is_anonymous, is_full);
            (begun, is_news)
        };
        if is_news {
            catch_log_panic(|| report(is_anonymous));
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

impl Default for MemoryIdempotencyStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStoreInner {
    fn claim(
        &mut self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
        is_anonymous: bool,
    ) -> Result<ClaimResult, IdempotencyStoreError> {
        let now = Instant::now();
        self.remove_expired(now);
        if let Some(entry) = self.entries.get(key) {
            return Ok(match &entry.outcome {
                Some(outcome) => ClaimResult::Completed(entry.fingerprint, outcome.clone()),
                None => ClaimResult::InProgress(entry.fingerprint),
            });
        }
        if !self.evict(ENTRY_BYTES + key.len(), is_anonymous) {
            let end = self.next_expiry(is_anonymous).map(|end| end.duration_since(now));
            return Err(end.map_or(IdempotencyStoreError::Full, IdempotencyStoreError::FullFor));
        }
        self.last_claim += 1;
        let (claim, end) = (self.last_claim, saturating_add(now, lease));
        let entry = ClaimEntry {
            fingerprint: *fingerprint,
            claim,
            is_anonymous,
            outcome: None,
            expires_at: end,
        };
        self.insert(key, entry);
        Ok(ClaimResult::Claimed(claim))
    }

    fn complete(
        &mut self,
        key: &str,
        claim: u64,
        mut outcome: IdempotentOutcome,
        keep_for: Duration,
    ) {
        if self.entries.get(key).is_none_or(|entry| entry.claim != claim) {
            return;
        }
        let Some(entry) = self.remove(key) else { return };
        let least = ENTRY_BYTES + key.len();
        // A response of more than half the capacity would evict all others.
        let is_small = least + memory_bytes(&outcome) <= self.entry_bytes(entry.is_anonymous) / 2;
        if !is_small || !self.evict(least + memory_bytes(&outcome), entry.is_anonymous) {
            outcome = IdempotentOutcome::NotStored;
        }
        let end = saturating_add(Instant::now(), keep_for);
        self.insert(key, ClaimEntry { outcome: Some(outcome), expires_at: end, ..entry });
    }

    fn remove_expired(&mut self, now: Instant) {
        for number in 0..self.partitions.len() {
            let is_over = |share: &StorePartition| {
                let ((end, _), key) = share.by_expiry.first_key_value()?;
                (*end <= now).then(|| key.clone())
            };
            while let Some(key) = is_over(&self.partitions[number]) {
                self.remove(&key);
            }
        }
    }

    /// How many bytes these requests may use.
    fn entry_bytes(&self, is_anonymous: bool) -> usize {
        if is_anonymous { self.bytes_max / ANONYMOUS_SHARE_DIVISOR } else { self.bytes_max }
    }

    fn bytes(&self) -> usize {
        self.partitions.iter().map(|share| share.bytes).sum()
    }

    /// Makes room for this many bytes by evicting responses. Returns whether there is room now.
    fn evict(&mut self, bytes: usize, is_anonymous: bool) -> bool {
        let share_max = self.entry_bytes(is_anonymous);
        let keys = self.partitions.each_ref().map(|share| share.bytes - share.response_bytes);
        // If evicting all responses would not suffice, keep them.
        let fits_share = !is_anonymous || keys[1] + bytes <= share_max;
        if !fits_share || keys.iter().sum::<usize>() + bytes > self.bytes_max {
            return false;
        }
        while is_anonymous && self.partitions[1].bytes + bytes > share_max {
            self.evict_response(1);
        }
        while self.bytes() + bytes > self.bytes_max {
            let share = usize::from(!self.partitions[1].responses.is_empty());
            self.evict_response(share);
        }
        true
    }

    /// Evicts the oldest response of a share, and keeps its key.
    fn evict_response(&mut self, number: usize) {
        let share = &mut self.partitions[number];
        let (_, key) =
            share.responses.pop_first().expect("the share's response bytes are not zero");
        let entry = self.entries.get_mut(&key).expect("every key of a share has an entry");
        let bytes =
            entry.outcome.replace(IdempotentOutcome::NotStored).as_ref().map_or(0, memory_bytes);
        share.bytes -= bytes;
        share.response_bytes -= bytes;
    }

    /// The expiry of the next key that would make room for such a request.
    fn next_expiry(&self, is_anonymous: bool) -> Option<Instant> {
        let first = |share: &StorePartition| share.by_expiry.keys().next().map(|(end, _)| *end);
        let is_share_full = is_anonymous
            && self.partitions[1].bytes + ENTRY_BYTES >= self.entry_bytes(true).min(self.bytes_max);
        match is_share_full {
            true => first(&self.partitions[1]),
            false => self.partitions.iter().filter_map(first).min(),
        }
    }

    /// Whether to log that a share is full. It counts as full until a quarter of it is free.
    fn report(&mut self, is_anonymous: bool, is_full: bool) -> bool {
        let (used, most) = match is_anonymous {
            true => (self.partitions[1].bytes, self.entry_bytes(true)),
            false => (self.bytes(), self.bytes_max),
        };
        let share = &mut self.partitions[usize::from(is_anonymous)];
        if is_full {
            return !std::mem::replace(&mut share.is_reported, true);
        }
        share.is_reported &= used > most / 4 * 3;
        false
    }

    fn insert(&mut self, key: &str, entry: ClaimEntry) {
        let share = &mut self.partitions[usize::from(entry.is_anonymous)];
        let response = entry.outcome.as_ref().map_or(0, memory_bytes);
        share.bytes += ENTRY_BYTES + key.len() + response;
        share.response_bytes += response;
        share.by_expiry.insert((entry.expires_at, entry.claim), key.into());
        if matches!(entry.outcome, Some(IdempotentOutcome::Stored(_))) {
            share.responses.insert(entry.claim, key.into());
        }
        self.entries.insert(key.into(), entry);
    }

    fn remove(&mut self, key: &str) -> Option<ClaimEntry> {
        let entry = self.entries.remove(key)?;
        let share = &mut self.partitions[usize::from(entry.is_anonymous)];
        share.by_expiry.remove(&(entry.expires_at, entry.claim));
        share.responses.remove(&entry.claim);
        let response = entry.outcome.as_ref().map_or(0, memory_bytes);
        share.bytes -= ENTRY_BYTES + key.len() + response;
        share.response_bytes -= response;
        Some(entry)
    }
}

fn saturating_add(now: Instant, after: Duration) -> Instant {
    // Overflow: a century or so is as good as forever.
    now.checked_add(after).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

fn memory_bytes(outcome: &IdempotentOutcome) -> usize {
    match outcome {
        IdempotentOutcome::Stored(kept) => kept.memory_bytes(),
        IdempotentOutcome::NotStored => 0,
    }
}

impl IdempotencyStore for MemoryIdempotencyStore {
    async fn claim(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<ClaimResult, IdempotencyStoreError> {
        self.try_claim(key, fingerprint, lease, false)
    }

    async fn claim_anonymous(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<ClaimResult, IdempotencyStoreError> {
        self.try_claim(key, fingerprint, lease, true)
    }

    async fn complete(
        &self,
        key: &str,
        claim: u64,
        outcome: IdempotentOutcome,
        keep_for: Duration,
    ) -> Result<(), IdempotencyStoreError> {
        self.lock().complete(key, claim, outcome, keep_for);
        Ok(())
    }

    async fn release(&self, key: &str, claim: u64) -> Result<(), IdempotencyStoreError> {
        let mut kept = self.lock();
        if kept.entries.get(key).is_some_and(|entry| entry.claim == claim) {
            kept.remove(key);
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryIdempotencyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.lock();
        f.debug_struct("MemoryIdempotencyStore")
            .field("keys", &kept.entries.len())
            .field("anonymous_keys", &kept.partitions[1].by_expiry.len())
            .field("bytes", &kept.bytes())
            .field("bytes_max", &kept.bytes_max)
            .finish()
    }
}
