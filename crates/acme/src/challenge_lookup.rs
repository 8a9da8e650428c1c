//! Looks up the challenge responses of other instances: an authority's request can reach any
//! instance that shares the storage, whichever ordered.

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
/// content of a request never reaches the storage, and one read serves all waiting requests. A read
/// counts only for requests that arrived before it began, so responses stored before a request are
/// found.
pub(crate) struct StorageChallengeLookup(Arc<Inner>);

struct Inner {
    storage: ScopedStorage,
    /// Where found responses are published; it owns this.
    challenges: Weak<ChallengeResponses>,
    state: Mutex<State>,
    /// The number of the last completed read.
    completed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The number of reads begun.
    started: u64,
    started_at: Option<Instant>,
    /// The number of the read that requests wait for.
    requested: u64,
    is_running: bool,
}

impl StorageChallengeLookup {
    pub(crate) fn new(stored: ScopedStorage, challenges: &Arc<ChallengeResponses>) -> Self {
        let (state, done) = (Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Inner {
            storage: stored,
            challenges: Arc::downgrade(challenges),
            state,
            completed: done,
        }))
    }
}

impl RemoteChallengeLookup for StorageChallengeLookup {
    fn lookup(&self) -> LookupFuture {
        let inner = &self.0;
        if inner.completed.receiver_count() >= WAITERS_MAX {
            return Box::pin(ready(()));
        }
        let mut state = lock(&inner.state);
        let number = state.started + 1;
        state.requested = number;
        if !state.is_running {
            let worker = Arc::clone(inner);
            let begun = thread::Builder::new()
                .name("peregrine-answers".to_owned())
                .spawn(move || worker.run());
            if let Err(error) = begun {
                tracing::error!(target: "peregrine", %error,
                    "the challenge responses of other instances cannot be looked up");
                return Box::pin(ready(()));
            }
            state.is_running = true;
        }
        drop(state);
        let mut done = inner.completed.subscribe();
        Box::pin(async move { drop(done.wait_for(|done| *done >= number).await) })
    }
}

impl Inner {
    /// Reads as long as requests wait.
    fn run(&self) {
        loop {
            let begun_at = lock(&self.state).started_at;
            let next = begun_at.map(|at| at + LOOKUP_INTERVAL);
            thread::sleep(
                next.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now())),
            );
            let number = {
                let mut state = lock(&self.state);
                state.started_at = Some(Instant::now());
                state.started += 1;
                state.started
            };
            // Waiting requests are always notified.
            let looked = catch_unwind(AssertUnwindSafe(|| self.lookup()));
            let cause = match looked {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panic) => Some(catch_unwind::panic_message(panic.as_ref()).to_owned()),
            };
            if let Some(cause) = cause {
                tracing::error!(target: "peregrine", cause,
                    "the challenge responses of other instances cannot be read");
            }
            self.completed.send_replace(number);
            let mut state = lock(&self.state);
            if state.requested <= number {
                state.is_running = false;
                return;
            }
        }
    }

    fn lookup(&self) -> io::Result<()> {
        let Some(challenges) = self.challenges.upgrade() else { return Ok(()) };
        let found = self.storage.challenge_responses(SystemTime::now())?;
        let shown = |answer: &ChallengeResponse| {
            let (chain, key) =
                tls_alpn_certificate(&answer.domain, &answer.key_authorization).ok()?;
            Some((answer.domain.clone(), chain, key))
        };
        let names = found.iter().filter(|answer| answer.is_tls_alpn).filter_map(shown);
        let by_request = found.iter().filter(|answer| !answer.is_tls_alpn);
        let told =
            |answer: &ChallengeResponse| (answer.token.clone(), answer.key_authorization.clone());
        challenges.replace_remote(names, by_request.map(told));
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
    struct Counting {
        value: Mutex<Vec<u8>>,
        reads: Arc<AtomicUsize>,
    }

    impl Storage for Counting {
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
    fn questions_in_a_crowd_cost_few_looks_and_each_finds_what_was_stored_before_it() {
        let reads = Arc::new(AtomicUsize::new(0));
        let storage = Counting { value: Mutex::default(), reads: Arc::clone(&reads) };
        let stored =
            ScopedStorage::new(PanicSafeStorage::new(Arc::new(storage)), "https://ca.test/");
        let challenges = ChallengeResponses::new().expect("the challenges can be created");
        let lookup = StorageChallengeLookup::new(stored.clone(), &challenges);
        challenges.set_remote_lookup(Box::new(lookup), true, true);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let ask = |token: &str| runtime.block_on(challenges.remote_http01(token));
        // A storage that panics yields nothing, and is read again the next time.
        assert_eq!(ask("token"), None);
        let answer = ChallengeResponse::http01("a.test", "token", "token.thumb");
        stored
            .store_challenge_response(answer, SystemTime::now())
            .expect("the storage accepts all values");
        let begun = reads.load(Ordering::Relaxed);
        assert_eq!(ask("token").as_deref(), Some("token.thumb"));
        assert_eq!(reads.load(Ordering::Relaxed), begun + 1);
        let crowd = (0..200).map(|number| {
            let challenges = Arc::clone(&challenges);
            async move { challenges.remote_http01(&format!("garbage-{number}")).await }
        });
        let local = tokio::task::LocalSet::new();
        let all: Vec<_> = crowd.map(|one| local.spawn_local(one)).collect();
        runtime.block_on(local.run_until(async {
            for one in all {
                assert_eq!(one.await.expect("the task does not panic"), None);
            }
        }));
        // All requests arrive before the first read for them begins, since reads begin one second
        // apart.
        assert_eq!(reads.load(Ordering::Relaxed), begun + 2);
        // A removed response cannot be found.
        stored
            .remove_challenge_response("token", SystemTime::now())
            .expect("the storage accepts all values");
        assert_eq!(ask("token"), None);
    }
}
