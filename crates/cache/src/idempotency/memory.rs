//! An in-memory store of outcomes.

use super::store::{
    ClaimResult, Fingerprint, IdempotencyStore, IdempotencyStoreError, IdempotentOutcome,
};
use peregrine_web::panic::catch_subscriber_panic;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The default capacity: 64 MiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The estimated memory of an entry in addition to its key and response.
const ENTRY_BYTES: usize = 256;

/// Requests without an identity may use the capacity of the store divided by this.
const ANONYMOUS_SHARE_DIVISOR: usize = 4;

/// Stores outcomes in memory. Clones share the store: create it outside the application's closure
/// and clone it in, so that all workers share it. Applications that respond differently to the same
/// host and path need separate stores.
///
/// Keys are never evicted before they expire, since a request could then be executed twice. When
/// the store is full (64 MiB, or [`MemoryIdempotencyStore::bytes_max`]), it first evicts the
/// responses of finished requests, oldest first; repeating such a request gets a 409. When it is
/// full of keys alone, requests with new keys get a 503, whose `Retry-After` is the time until the
/// next key expires, and this is logged once. Requests without an identity may use only a quarter
/// of the store. On a route that reads cookies, any cookie counts as an identity, even an invented
/// one, so put authentication or a rate limit outside of `Idempotency`.
#[derive(Clone)]
pub struct MemoryIdempotencyStore(Arc<Mutex<MemoryStoreInner>>);

struct MemoryStoreInner {
    entries: HashMap<Box<str>, ClaimEntry>,
    /// For requests with an identity, and for those without (indexed by `is_anonymous`).
    partitions: [StorePartition; 2],
    last_claim: u64,
    bytes_max: usize,
}

/// The part of the store for requests with, or without, an identity.
#[derive(Default)]
struct StorePartition {
    /// The keys by expiry; the claim number distinguishes those with the same expiry.
    by_expiry: BTreeMap<(Instant, u64), Box<str>>,
    /// The keys with stored responses by claim number, so oldest first.
    responses: BTreeMap<u64, Box<str>>,
    bytes: usize,
    /// The bytes used by responses.
    response_bytes: usize,
    /// Whether it was logged that this partition is full.
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
    /// Creates an empty store.
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
        let (result, should_log) = {
            let mut inner = self.lock();
            let result = inner.claim(key, fingerprint, lease, is_anonymous);
            let is_full = result.is_err();
            let should_log = inner.should_log_full(is_anonymous, is_full);
            (result, should_log)
        };
        if should_log {
            catch_subscriber_panic(|| log_full(is_anonymous));
        }
        result
    }
}

fn log_full(is_anonymous: bool) {
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
        if !self.make_room(ENTRY_BYTES + key.len(), is_anonymous) {
            let wait =
                self.next_expiry(is_anonymous).map(|expires_at| expires_at.duration_since(now));
            return Err(wait.map_or(IdempotencyStoreError::Full, IdempotencyStoreError::FullFor));
        }
        self.last_claim += 1;
        let (claim, expires_at) = (self.last_claim, saturating_add(now, lease));
        let entry = ClaimEntry {
            fingerprint: *fingerprint,
            claim,
            is_anonymous,
            outcome: None,
            expires_at,
        };
        self.insert(key, entry);
        Ok(ClaimResult::Claimed(claim))
    }

    fn complete(
        &mut self,
        key: &str,
        claim: u64,
        mut outcome: IdempotentOutcome,
        retention: Duration,
    ) {
        if self.entries.get(key).is_none_or(|entry| entry.claim != claim) {
            return;
        }
        let Some(entry) = self.remove(key) else { return };
        let key_bytes = ENTRY_BYTES + key.len();
        // A response of more than half the capacity would evict most others.
        let is_small =
            key_bytes + memory_bytes(&outcome) <= self.capacity_bytes(entry.is_anonymous) / 2;
        if !is_small || !self.make_room(key_bytes + memory_bytes(&outcome), entry.is_anonymous) {
            outcome = IdempotentOutcome::NotStored;
        }
        let expires_at = saturating_add(Instant::now(), retention);
        self.insert(key, ClaimEntry { outcome: Some(outcome), expires_at, ..entry });
    }

    fn remove_expired(&mut self, now: Instant) {
        for index in 0..self.partitions.len() {
            let first_expired = |partition: &StorePartition| {
                let ((expires_at, _), key) = partition.by_expiry.first_key_value()?;
                (*expires_at <= now).then(|| key.clone())
            };
            while let Some(key) = first_expired(&self.partitions[index]) {
                self.remove(&key);
            }
        }
    }

    /// Returns how many bytes requests with or without an identity may use.
    fn capacity_bytes(&self, is_anonymous: bool) -> usize {
        if is_anonymous { self.bytes_max / ANONYMOUS_SHARE_DIVISOR } else { self.bytes_max }
    }

    fn bytes(&self) -> usize {
        self.partitions.iter().map(|partition| partition.bytes).sum()
    }

    /// Makes room for `bytes` more bytes by evicting responses. Returns `false` if that is
    /// impossible.
    fn make_room(&mut self, bytes: usize, is_anonymous: bool) -> bool {
        let partition_max = self.capacity_bytes(is_anonymous);
        let key_bytes =
            self.partitions.each_ref().map(|partition| partition.bytes - partition.response_bytes);
        // If evicting all responses would not suffice, keep them.
        let fits_partition = !is_anonymous || key_bytes[1] + bytes <= partition_max;
        if !fits_partition || key_bytes.iter().sum::<usize>() + bytes > self.bytes_max {
            return false;
        }
        while is_anonymous && self.partitions[1].bytes + bytes > partition_max {
            self.evict_response(1);
        }
        while self.bytes() + bytes > self.bytes_max {
            // Responses to requests without an identity are evicted first.
            let index = usize::from(!self.partitions[1].responses.is_empty());
            self.evict_response(index);
        }
        true
    }

    /// Evicts the oldest response of a partition, but not its key, so that the request is not
    /// executed again.
    fn evict_response(&mut self, index: usize) {
        let partition = &mut self.partitions[index];
        let (_, key) =
            partition.responses.pop_first().expect("the partition's response bytes are not zero");
        let entry = self.entries.get_mut(&key).expect("every key of a partition has an entry");
        let bytes =
            entry.outcome.replace(IdempotentOutcome::NotStored).as_ref().map_or(0, memory_bytes);
        partition.bytes -= bytes;
        partition.response_bytes -= bytes;
    }

    /// Returns when the next key expires that makes room for a request with or without an identity.
    fn next_expiry(&self, is_anonymous: bool) -> Option<Instant> {
        let first = |partition: &StorePartition| {
            partition.by_expiry.keys().next().map(|(expires_at, _)| *expires_at)
        };
        let is_partition_full = is_anonymous
            && self.partitions[1].bytes + ENTRY_BYTES
                >= self.capacity_bytes(true).min(self.bytes_max);
        match is_partition_full {
            true => first(&self.partitions[1]),
            false => self.partitions.iter().filter_map(first).min(),
        }
    }

    /// Returns whether to log that a partition is full. After that, it is logged again only if a
    /// quarter of the partition has been free in between.
    fn should_log_full(&mut self, is_anonymous: bool, is_full: bool) -> bool {
        let (used, capacity) = match is_anonymous {
            true => (self.partitions[1].bytes, self.capacity_bytes(true)),
            false => (self.bytes(), self.bytes_max),
        };
        let partition = &mut self.partitions[usize::from(is_anonymous)];
        if is_full {
            return !std::mem::replace(&mut partition.is_reported, true);
        }
        partition.is_reported &= used > capacity / 4 * 3;
        false
    }

    fn insert(&mut self, key: &str, entry: ClaimEntry) {
        let partition = &mut self.partitions[usize::from(entry.is_anonymous)];
        let response_bytes = entry.outcome.as_ref().map_or(0, memory_bytes);
        partition.bytes += ENTRY_BYTES + key.len() + response_bytes;
        partition.response_bytes += response_bytes;
        partition.by_expiry.insert((entry.expires_at, entry.claim), key.into());
        if matches!(entry.outcome, Some(IdempotentOutcome::Stored(_))) {
            partition.responses.insert(entry.claim, key.into());
        }
        self.entries.insert(key.into(), entry);
    }

    fn remove(&mut self, key: &str) -> Option<ClaimEntry> {
        let entry = self.entries.remove(key)?;
        let partition = &mut self.partitions[usize::from(entry.is_anonymous)];
        partition.by_expiry.remove(&(entry.expires_at, entry.claim));
        partition.responses.remove(&entry.claim);
        let response_bytes = entry.outcome.as_ref().map_or(0, memory_bytes);
        partition.bytes -= ENTRY_BYTES + key.len() + response_bytes;
        partition.response_bytes -= response_bytes;
        Some(entry)
    }
}

fn saturating_add(now: Instant, after: Duration) -> Instant {
    // On overflow, use about a century instead, which is as good as forever.
    now.checked_add(after).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

fn memory_bytes(outcome: &IdempotentOutcome) -> usize {
    match outcome {
        IdempotentOutcome::Stored(response) => response.memory_bytes(),
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
        retention: Duration,
    ) -> Result<(), IdempotencyStoreError> {
        self.lock().complete(key, claim, outcome, retention);
        Ok(())
    }

    async fn release(&self, key: &str, claim: u64) -> Result<(), IdempotencyStoreError> {
        let mut inner = self.lock();
        if inner.entries.get(key).is_some_and(|entry| entry.claim == claim) {
            inner.remove(key);
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryIdempotencyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        f.debug_struct("MemoryIdempotencyStore")
            .field("keys", &inner.entries.len())
            .field("anonymous_keys", &inner.partitions[1].by_expiry.len())
            .field("bytes", &inner.bytes())
            .field("bytes_max", &inner.bytes_max)
            .finish()
    }
}
