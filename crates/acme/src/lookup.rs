//! Looks up what other instances answer: an authority's request may reach any of those that share a storage, whichever
//! has ordered.

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

/// How far apart two looks into the storage begin. So anybody's questions cost one small file a second, and whoever
/// asks waits for no longer than that.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// How many may wait for a look; more are told at once that nothing is known.
const WAITING_MAX: usize = 4096;

/// The answers of other instances. All are in one place of the storage, so it does not matter what is asked for: each
/// look is for all who wait, and nothing of a question gets as far as the storage. A look counts for those only who
/// asked before it began, so what was stored before a question is found.
pub(crate) struct Lookup(Arc<Inner>);

struct Inner {
    stored: Stored,
    /// What is told of what was found; it has this.
    challenges: Weak<Challenges>,
    state: Mutex<State>,
    /// The number of the last look that is done.
    done: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// How many looks have begun.
    begun: u64,
    begun_at: Option<Instant>,
    /// The look that somebody waits for.
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
                    "what other instances answer to an authority cannot be looked up");
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
    /// Looks as long as anybody waits.
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
            // Whoever waits is told in any case.
            let looked = catch_unwind(AssertUnwindSafe(|| self.look()));
            let cause = match looked {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(panic) => Some(caught::text(panic.as_ref()).to_owned()),
            };
            if let Some(cause) = cause {
                tracing::error!(target: "peregrine", cause,
                    "what other instances answer to an authority cannot be read");
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

    /// A storage with one answer, which counts how often it is read.
    struct Counting {
        value: Mutex<Vec<u8>>,
        reads: Arc<AtomicUsize>,
    }

    impl Storage for Counting {
        fn load(&self, _: &str) -> io::Result<Option<Vec<u8>>> {
            assert!(self.reads.fetch_add(1, Ordering::Relaxed) > 0, "on purpose, the first time");
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
        let challenges = Challenges::new().expect("it can be made");
        let lookup = Lookup::new(stored.clone(), &challenges);
        challenges.look_at(Box::new(lookup), true, true);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let ask = |token: &str| runtime.block_on(challenges.token_elsewhere(token));
        // A storage that panics has nothing, and is asked again the next time.
        assert_eq!(ask("token"), None);
        let answer = Answer::by_request("a.test", "token", "token.thumb");
        stored.put_answer(answer, SystemTime::now()).expect("it takes all");
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
                assert_eq!(one.await.expect("it does not panic"), None);
            }
        }));
        // All have asked before the first look for them began, since one a second begins.
        assert_eq!(reads.load(Ordering::Relaxed), begun + 2);
        // What is no longer stored is no longer answered.
        stored.forget_answer("token", SystemTime::now()).expect("it takes all");
        assert_eq!(ask("token"), None);
    }
}
