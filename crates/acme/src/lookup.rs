//! Looks up the challenge responses of other instances: an authority's request can reach any
//! instance that shares the storage, whichever ordered.

use crate::answers::certificate;
use crate::caught;
use crate::shared::lock;
use crate::stored::{Answer, Stored};
use peregrine_tls::{Challenges, Looking, LooksElsewhere};
use std::future::ready;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;

/// The interval between storage reads. Requests by arbitrary clients thus cost at most one small
/// file per second, and no request waits longer than that.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The maximum number of waiting requests; further ones immediately get no response.
const WAITING_MAX: usize = 4096;

/// The responses of other instances. All of them are in one entry of the storage, so that the
/// content of a request never reaches the storage, and one read serves all waiting requests. A read
/// counts only for requests that arrived before it began, so responses stored before a request are
/// found.
pub(crate) struct Lookup(Arc<Inner>);

struct Inner {
    stored: Stored,
    /// Where found responses are published; it owns this.
    challenges: Weak<Challenges>,
    state: Mutex<State>,
    /// The number of the last completed read.
    done: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The number of reads begun.
    begun: u64,
    begun_at: Option<Instant>,
    /// The number of the read that requests wait for.
    wanted: u64,
    is_at_work: bool,
}

impl Lookup {
    pub(crate) fn new(stored: Stored, challenges: &Arc<Challenges>) -> Self {
        let (state, done) = (Mutex::default(), watch::Sender::new(0));
        Self(Arc::new(Inner { stored, challenges: Arc::downgrade(challenges), state, done }))
    }
}

impl LooksElsewhere for Lookup {
    fn look(&self) -> Looking {
        let inner = &self.0;
        if inner.done.receiver_count() >= WAITING_MAX {
            return Box::pin(ready(()));
        }
        let mut state = lock(&inner.state);
        let number = state.begun + 1;
        state.wanted = number;
        if !state.is_at_work {
            let worker = Arc::clone(inner);
            let begun = thread::Builder::new()
                .name("peregrine-answers".to_owned())
                .spawn(move || worker.work());
            if let Err(error) = begun {
                tracing::error!(target: "peregrine", %error,
                    "the challenge responses of other instances cannot be looked up");
                return Box::pin(ready(()));
            }
            state.is_at_work = true;
        }
        drop(state);
        let mut done = inner.done.subscribe();
        Box::pin(async move { drop(done.wait_for(|done| *done >= number).await) })
    }
}

impl Inner {
    /// Reads as long as requests wait.
    fn work(&self) {
        loop {
            let begun_at = lock(&self.state).begun_at;
            let next = begun_at.map(|at| at + LOOK_PAUSE);
            thread::sleep(
                next.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now())),
            );
            let number = {
                let mut state = lock(&self.state);
                state.begun_at = Some(Instant::now());
                state.begun += 1;
                state.begun
            };
            // Waiting requests are always notified.
            let looked = catch_unwind(AssertUnwindSafe(|| self.look()));
            let cause = match looked {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panic) => Some(caught::text(panic.as_ref()).to_owned()),
            };
            if let Some(cause) = cause {
                tracing::error!(target: "peregrine", cause,
                    "the challenge responses of other instances cannot be read");
            }
            self.done.send_replace(number);
            let mut state = lock(&self.state);
            if state.wanted <= number {
                state.is_at_work = false;
                return;
            }
        }
    }

    fn look(&self) -> io::Result<()> {
        let Some(challenges) = self.challenges.upgrade() else { return Ok(()) };
        let found = self.stored.answers(SystemTime::now())?;
        let shown = |answer: &Answer| {
            let (chain, key) = certificate(&answer.name, &answer.text).ok()?;
            Some((answer.name.clone(), chain, key))
        };
        let names = found.iter().filter(|answer| answer.is_by_connection).filter_map(shown);
        let by_request = found.iter().filter(|answer| !answer.is_by_connection);
        let told = |answer: &Answer| (answer.token.clone(), answer.text.clone());
        challenges.find(names, by_request.map(told));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarded::Guarded;
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
        let stored = Stored::new(Guarded::new(Arc::new(storage)), "https://ca.test/");
        let challenges = Challenges::new().expect("the challenges can be created");
        let lookup = Lookup::new(stored.clone(), &challenges);
        challenges.look_at(Box::new(lookup), true, true);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let ask = |token: &str| runtime.block_on(challenges.token_elsewhere(token));
        // A storage that panics yields nothing, and is read again the next time.
        assert_eq!(ask("token"), None);
        let answer = Answer::by_request("a.test", "token", "token.thumb");
        stored.put_answer(answer, SystemTime::now()).expect("the storage accepts all values");
        let begun = reads.load(Ordering::Relaxed);
        assert_eq!(ask("token").as_deref(), Some("token.thumb"));
        assert_eq!(reads.load(Ordering::Relaxed), begun + 1);
        let crowd = (0..200).map(|number| {
            let challenges = Arc::clone(&challenges);
            async move { challenges.token_elsewhere(&format!("garbage-{number}")).await }
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
        stored.forget_answer("token", SystemTime::now()).expect("the storage accepts all values");
        assert_eq!(ask("token"), None);
    }
}
