//! Looks up the challenge responses of other instances: an authority's request can reach any
//! instance that shares the storage, not only the one that ordered.

use crate::catch_unwind;
use crate::challenge_responses::tls_alpn_certificate;
use crate::scoped_storage::{ChallengeResponse, ScopedStorage};
use crate::shared::lock;
use peregrine_tls::{ChallengeResponses, LookupFuture, RemoteChallengeLookup};
use std::future::ready;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// The interval between storage reads. Requests by arbitrary clients thus cost at most one small
/// file per second, and no request waits longer than that.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of waiting requests; further ones immediately get no response.
const WAITERS_MAX: usize = 4096;

/// The responses of other instances. All of them are in one entry of the storage, so that the
/// content of a request never reaches the storage, and one read serves all waiting requests. A
/// request waits for a read that starts after its arrival, so it finds each response that was
/// stored before.
pub(crate) struct StorageChallengeLookup(Arc<Inner>);

struct Inner {
    storage: ScopedStorage,
    /// Where found responses are published. This is weak, because the `ChallengeResponses` own this
    /// lookup.
    challenges: Weak<ChallengeResponses>,
    state: Mutex<State>,
    /// The number of the last completed read.
    completed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The number of reads that have begun.
    started: u64,
    started_at: Option<Instant>,
    /// The number of the read that requests wait for.
    requested: u64,
    is_running: bool,
}

impl StorageChallengeLookup {
    pub(crate) fn new(storage: ScopedStorage, challenges: &Arc<ChallengeResponses>) -> Self {
        let (state, completed) = (Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Inner { storage, challenges: Arc::downgrade(challenges), state, completed }))
    }
}

impl RemoteChallengeLookup for StorageChallengeLookup {
    fn lookup(&self) -> LookupFuture {
        let inner = &self.0;
        if inner.completed.receiver_count() >= WAITERS_MAX {
            return Box::pin(ready(()));
        }
        let mut state = lock(&inner.state);
        let read_number = state.started + 1;
        state.requested = read_number;
        if !state.is_running {
            let worker = Arc::clone(inner);
            let spawned = thread::Builder::new()
                .name("peregrine-answers".to_owned())
                .spawn(move || worker.run());
            if let Err(error) = spawned {
                tracing::error!(target: "peregrine", %error,
                    "the challenge responses of other instances cannot be looked up");
                return Box::pin(ready(()));
            }
            state.is_running = true;
        }
        drop(state);
        let mut completed = inner.completed.subscribe();
        Box::pin(async move { drop(completed.wait_for(|number| *number >= read_number).await) })
    }
}

impl Inner {
    /// Reads the storage as long as requests wait.
    fn run(&self) {
        loop {
            let started_at = lock(&self.state).started_at;
            let next_read_at = started_at.map(|at| at + LOOKUP_INTERVAL);
            thread::sleep(
                next_read_at
                    .map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now())),
            );
            let read_number = {
                let mut state = lock(&self.state);
                state.started_at = Some(Instant::now());
                state.started += 1;
                state.started
            };
            // Waiting requests are always notified.
            let result = catch_unwind(AssertUnwindSafe(|| self.lookup()));
            let cause = match result {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panic) => Some(catch_unwind::panic_message(panic.as_ref()).to_owned()),
            };
            if let Some(cause) = cause {
                tracing::error!(target: "peregrine", cause,
                    "the challenge responses of other instances cannot be read");
            }
            self.completed.send_replace(read_number);
            let mut state = lock(&self.state);
            if state.requested <= read_number {
                state.is_running = false;
                return;
            }
        }
    }

    fn lookup(&self) -> io::Result<()> {
        let Some(challenges) = self.challenges.upgrade() else { return Ok(()) };
        let responses = self.storage.challenge_responses(SystemTime::now())?;
        let tls_alpn_entry = |response: &ChallengeResponse| {
            let (chain, key) =
                tls_alpn_certificate(&response.domain, &response.key_authorization).ok()?;
            Some((response.domain.clone(), chain, key))
        };
        let tls_alpn_entries =
            responses.iter().filter(|response| response.is_tls_alpn).filter_map(tls_alpn_entry);
        let http01_responses = responses.iter().filter(|response| !response.is_tls_alpn);
        let http01_entry = |response: &ChallengeResponse| {
            (response.token.clone(), response.key_authorization.clone())
        };
        challenges.replace_remote(tls_alpn_entries, http01_responses.map(http01_entry));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panic_safe_storage::PanicSafeStorage;
    use crate::storage::Storage;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A storage with one entry, which counts reads.
    struct CountingStorage {
        value: Mutex<Vec<u8>>,
        reads: Arc<AtomicUsize>,
    }

    impl Storage for CountingStorage {
        fn load(&self, _: &str) -> io::Result<Option<Vec<u8>>> {
            assert!(
                self.reads.fetch_add(1, Ordering::Relaxed) > 0,
                "the first read panics on purpose"
            );
            Ok(Some(lock(&self.value).clone()))
        }

        fn store(&self, _: &str, value: &[u8]) -> io::Result<()> {
            *lock(&self.value) = value.to_vec();
            Ok(())
        }

        fn remove(&self, _: &str) -> io::Result<()> {
            Ok(())
        }

        fn try_lock(&self, _: &str, _: Duration) -> io::Result<Option<Box<dyn Send>>> {
            Ok(None)
        }
    }

    #[test]
    fn concurrent_lookups_share_reads_and_find_earlier_responses() {
        let reads = Arc::new(AtomicUsize::new(0));
        let storage = CountingStorage { value: Mutex::default(), reads: Arc::clone(&reads) };
        let scoped_storage =
            ScopedStorage::new(PanicSafeStorage::new(Arc::new(storage)), "https://ca.test/");
        let challenges = ChallengeResponses::new().expect("the challenges can be created");
        let lookup = StorageChallengeLookup::new(scoped_storage.clone(), &challenges);
        challenges.set_remote_lookup(Box::new(lookup), true, true);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("the runtime can be created");
        let lookup_token = |token: &str| runtime.block_on(challenges.remote_http01(token));
        // A storage that panics yields nothing, and is read again the next time.
        assert_eq!(lookup_token("token"), None);
        let response = ChallengeResponse::http01("a.test", "token", "token.thumb");
        scoped_storage
            .store_challenge_response(response, SystemTime::now())
            .expect("the storage accepts all values");
        let reads_before = reads.load(Ordering::Relaxed);
        assert_eq!(lookup_token("token").as_deref(), Some("token.thumb"));
        assert_eq!(reads.load(Ordering::Relaxed), reads_before + 1);
        let lookups = (0..200).map(|index| {
            let challenges = Arc::clone(&challenges);
            async move { challenges.remote_http01(&format!("garbage-{index}")).await }
        });
        let local = tokio::task::LocalSet::new();
        let tasks: Vec<_> = lookups.map(|task| local.spawn_local(task)).collect();
        runtime.block_on(local.run_until(async {
            for task in tasks {
                assert_eq!(task.await.expect("the task does not panic"), None);
            }
        }));
        // All requests arrive before the first read for them begins, since reads begin one second
        // apart.
        assert_eq!(reads.load(Ordering::Relaxed), reads_before + 2);
        // A removed response cannot be found.
        scoped_storage
            .remove_challenge_response("token", SystemTime::now())
            .expect("the storage accepts all values");
        assert_eq!(lookup_token("token"), None);
    }
}
