//! Outcomes in the memory of the process.

use super::store::{Begun, Fingerprint, IdempotencyStore, Outcome, StoreError};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So much is kept, unless set otherwise: 64 MiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// What an entry costs beside its key and content.
const ENTRY_BYTES: usize = 256;

/// Keeps outcomes in the memory of the process. A clone is the same store: make it outside of the application's closure, and clone it
/// in, so that all workers share it.
///
/// It never forgets a key before its time, since that might carry a request out twice. So when it is full (64 MiB, or what
/// [`MemoryStore::bytes_max`] says), new keys are refused with 503; outcomes that do not fit are kept without their response.
#[derive(Clone)]
pub struct MemoryStore(Arc<Mutex<Kept>>);

struct Kept {
    entries: HashMap<Box<str>, Entry>,
    /// The keys by when they run out; the number tells those of one moment apart.
    ends: BTreeMap<(Instant, u64), Box<str>>,
    claims: u64,
    bytes: usize,
    bytes_max: usize,
}

struct Entry {
    fingerprint: Fingerprint,
    claim: u64,
    /// None while the request is worked on.
    outcome: Option<Outcome>,
    end: Instant,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Kept {
            entries: HashMap::new(),
            ends: BTreeMap::new(),
            claims: 0,
            bytes: 0,
            bytes_max: BYTES_MAX,
        })))
    }

    /// How much memory outcomes may take, in bytes.
    #[must_use]
    pub fn bytes_max(self, bytes: usize) -> Self {
        self.lock().bytes_max = bytes;
        self
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing in there panics between two changes that hang together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    ) -> Result<Begun, StoreError> {
        let now = Instant::now();
        while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.get().clone();
            self.remove(&key);
        }
        if let Some(entry) = self.entries.get(key) {
            return Ok(match &entry.outcome {
                Some(outcome) => Begun::Done(entry.fingerprint, outcome.clone()),
                None => Begun::InProgress(entry.fingerprint),
            });
        }
        if self.bytes + ENTRY_BYTES + key.len() > self.bytes_max {
            return Err(StoreError::Full);
        }
        self.claims += 1;
        let claim = self.claims;
        self.insert(
            key,
            Entry { fingerprint: *fingerprint, claim, outcome: None, end: later(now, lease) },
        );
        Ok(Begun::Claimed(claim))
    }

    fn finish(&mut self, key: &str, claim: u64, mut outcome: Outcome, keep_for: Duration) {
        if self.entries.get(key).is_none_or(|entry| entry.claim != claim) {
            return;
        }
        let Some(entry) = self.remove(key) else { return };
        if self.bytes + ENTRY_BYTES + key.len() + weight(&outcome) > self.bytes_max {
            outcome = Outcome::Lost;
        }
        let end = later(Instant::now(), keep_for);
        self.insert(key, Entry { outcome: Some(outcome), end, ..entry });
    }

    fn insert(&mut self, key: &str, entry: Entry) {
        self.bytes += ENTRY_BYTES + key.len() + entry.outcome.as_ref().map_or(0, weight);
        self.ends.insert((entry.end, entry.claim), key.into());
        self.entries.insert(key.into(), entry);
    }

    fn remove(&mut self, key: &str) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.ends.remove(&(entry.end, entry.claim));
        self.bytes -= ENTRY_BYTES + key.len() + entry.outcome.as_ref().map_or(0, weight);
        Some(entry)
    }
}

fn later(now: Instant, after: Duration) -> Instant {
    // Centuries are for ever.
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
        self.lock().begin(key, fingerprint, lease)
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
            .field("bytes", &kept.bytes)
            .field("bytes_max", &kept.bytes_max)
            .finish()
    }
}
