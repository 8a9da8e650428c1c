//! Outcomes in the memory of the process.

use super::store::{Begun, Fingerprint, IdempotencyStore, Outcome, StoreError};
use peregrine_web::panics::contained;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// So much is kept, unless set otherwise: 64 MiB.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// What an entry costs beside its key and content.
const ENTRY_BYTES: usize = 256;

/// Requests without an identity may take this part of the store.
const ANONYMOUS_PART: usize = 4;

/// Keeps outcomes in the memory of the process. A clone is the same store: make it outside of the application's closure, and clone it
/// in, so that all workers share it.
///
/// It never forgets a key before its time, since that might carry a request out twice. So when it is full (64 MiB, or what
/// [`MemoryStore::bytes_max`] says), it first forgets the responses of finished requests, the
/// oldest first: sent again, such a request is a 409. When it is full of keys alone, new ones are
/// refused with 503, and `Retry-After` says when the next key ends; the log says so once. Requests
/// without an identity may take a quarter of the store, so that they cannot keep other clients out.
#[derive(Clone)]
pub struct MemoryStore(Arc<Mutex<Kept>>);

struct Kept {
    entries: HashMap<Box<str>, Entry>,
    /// Of requests with an identity, and of those without.
    shares: [Share; 2],
    claims: u64,
    bytes_max: usize,
}

/// Requests with an identity, or those without.
#[derive(Default)]
struct Share {
    /// The keys by when they run out; the number tells those of one moment apart.
    ends: BTreeMap<(Instant, u64), Box<str>>,
    /// The keys whose responses are kept, the oldest first.
    responses: BTreeMap<u64, Box<str>>,
    bytes: usize,
    /// What the responses take of it.
    response_bytes: usize,
    /// It was full, and that was logged.
    is_reported: bool,
}

struct Entry {
    fingerprint: Fingerprint,
    claim: u64,
    is_anonymous: bool,
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
            shares: <_>::default(),
            claims: 0,
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
        tracing::warn!(target: "peregrine", "the quarter of the store of idempotency keys that requests without an identity may take is full: more of them are refused until their keys end; limit their rate");
    } else {
        tracing::error!(target: "peregrine", "the store of idempotency keys is full: requests with new keys are refused until others end; give it more room, or keep outcomes for a shorter time");
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
        // A response that takes more than half of what there is would drive out all others.
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

    /// How much these requests may take.
    fn bytes_of(&self, is_anonymous: bool) -> usize {
        if is_anonymous { self.bytes_max / ANONYMOUS_PART } else { self.bytes_max }
    }

    fn bytes(&self) -> usize {
        self.shares.iter().map(|share| share.bytes).sum()
    }

    /// Is there room for so many bytes, when responses have been forgotten as far as that helps?
    fn make_room(&mut self, bytes: usize, is_anonymous: bool) -> bool {
        let share_max = self.bytes_of(is_anonymous);
        let keys = self.shares.each_ref().map(|share| share.bytes - share.response_bytes);
        // In vain, no response is forgotten.
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

    /// Forgets the oldest response of a share, and keeps its key.
    fn forget_response(&mut self, number: usize) {
        let share = &mut self.shares[number];
        let (_, key) = share.responses.pop_first().expect("its bytes are those of responses");
        let entry = self.entries.get_mut(&key).expect("a share has keys of entries only");
        let bytes = entry.outcome.replace(Outcome::Lost).as_ref().map_or(0, weight);
        share.bytes -= bytes;
        share.response_bytes -= bytes;
    }

    /// When the next key ends whose place such a request could have.
    fn next_end(&self, is_anonymous: bool) -> Option<Instant> {
        let first = |share: &Share| share.ends.keys().next().map(|(end, _)| *end);
        let is_share_full = is_anonymous
            && self.shares[1].bytes + ENTRY_BYTES >= self.bytes_of(true).min(self.bytes_max);
        match is_share_full {
            true => first(&self.shares[1]),
            false => self.shares.iter().filter_map(first).min(),
        }
    }

    /// Is it news that a share is full? It is not full any more when a quarter of it is free.
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
