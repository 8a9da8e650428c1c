//! Fetches and caches the keys that a token issuer publishes.

use super::keys::KeySet;
use bytes::Bytes;
use peregrine_web::clock;
use peregrine_web::panics::contained;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// How long fetched keys count as fresh.
const FRESH_FOR: Duration = Duration::from_secs(10 * 60);
/// How long stale keys are still used while the issuer does not answer.
const STALE_FOR: Duration = Duration::from_secs(60 * 60);
/// The pause between two attempts to fetch the keys.
const PAUSE: Duration = Duration::from_secs(30);
/// The time limit of one attempt.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The size limit of the fetched document, in bytes.
const BYTES_MAX: usize = 512 * 1024;

type Fetching = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

/// The keys that an issuer publishes as a JWKS document (RFC 7517) and rotates from time to time.
///
/// The application supplies the function that fetches the document, with whatever HTTP client it
/// already has. The function should use an `https:` URL and must not follow redirects to other
/// hosts. Clones share the fetched keys: create one `Jwks` outside the closure passed to `serve`
/// and clone it in there.
///
/// ```
/// use peregrine::auth::{Jwks, JwtKeys, JwtVerifier};
///
/// let keys = Jwks::new(async || {
///     // For example: client.get("https://id.example/jwks.json").send().await?.bytes().await
///     Ok::<_, std::io::Error>(r#"{"keys":[]}"#)
/// });
/// let verifier = JwtVerifier::new(JwtKeys::published(keys), "https://id.example", "my-api");
/// # let _ = verifier;
/// ```
///
/// | setting | default |
/// |---|---|
/// | [`fresh_for`](Self::fresh_for): after this time, the next request fetches again | 10 minutes |
/// | [`stale_for`](Self::stale_for): extra time while the issuer does not answer | 1 hour |
/// | [`pause`](Self::pause) between two attempts | 30 s |
/// | [`timeout`](Self::timeout) of one attempt | 5 s |
///
/// While one request refreshes stale keys, concurrent requests use the stale ones.
///
/// A token with an unknown key ID triggers a fetch, because the issuer may have rotated its keys.
/// All waiting requests share one fetch, and fetches are at least one pause apart, however many
/// such tokens arrive. If every waiting request is cancelled, the next request resumes the fetch,
/// or starts a new one if the timeout has passed.
///
/// The document may have at most 512 KiB, and only its first 100 keys are used. The size is checked
/// after the fetch: let the function stop reading at that size to bound memory.
#[derive(Clone)]
pub struct Jwks(Arc<Inner>);

struct Inner {
    settings: Settings,
    kept: RwLock<Kept>,
    /// The holder of the lock starts a fetch or resumes one that a cancelled request left behind.
    asking: Mutex<Option<Attempt>>,
}

/// A fetch in progress. It survives cancellation of the request that started it: the next request
/// resumes it until its timeout. There is therefore one fetch at a time, even if clients
/// disconnect.
struct Attempt {
    fetching: Fetching,
    began_at: Duration,
}

#[derive(Clone)]
struct Settings {
    fetch: Arc<dyn Fn() -> Fetching + Send + Sync>,
    fresh_for: Duration,
    stale_for: Duration,
    pause: Duration,
    timeout: Duration,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// The cached keys and their age.
#[derive(Clone, Debug, Default)]
struct Kept {
    keys: Arc<KeySet>,
    /// When the keys were fetched; `None` if never.
    fetched_at: Option<Duration>,
    /// The earliest time of the next attempt.
    asks_again_at: Duration,
}

/// No usable keys: there are none, or they are too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoKeys;

impl Jwks {
    /// Keys from the document that `fetch` returns. Nothing is fetched until the first token
    /// arrives.
    pub fn new<F, T, E>(fetch: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Bytes>,
        E: fmt::Display,
    {
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let fetch = move || -> Fetching {
            let fetching = fetch();
            Box::pin(
                async move { fetching.await.map(Into::into).map_err(|error| error.to_string()) },
            )
        };
        Self::of(Settings {
            fetch: Arc::new(fetch),
            fresh_for: FRESH_FOR,
            stale_for: STALE_FOR,
            pause: PAUSE,
            timeout: TIMEOUT,
            clock: Arc::new(|| BEGUN.elapsed()),
        })
    }

    fn of(settings: Settings) -> Self {
        let (kept, asking) = (RwLock::default(), Mutex::default());
        Self(Arc::new(Inner { settings, kept, asking }))
    }

    fn set(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.0.settings.clone();
        set(&mut settings);
        Self::of(settings)
    }

    /// Sets how long fetched keys count as fresh. The default is 10 minutes.
    #[must_use]
    pub fn fresh_for(self, time: Duration) -> Self {
        self.set(|settings| settings.fresh_for = time)
    }

    /// Sets how long stale keys are still used while the issuer does not answer, in addition to
    /// [`fresh_for`](Self::fresh_for). The default is 1 hour. A withdrawn key is accepted for just
    /// as long.
    #[must_use]
    pub fn stale_for(self, time: Duration) -> Self {
        self.set(|settings| settings.stale_for = time)
    }

    /// Sets the minimum time between two attempts. The default is 30 s.
    #[must_use]
    pub fn pause(self, time: Duration) -> Self {
        self.set(|settings| settings.pause = time)
    }

    /// Sets the time limit of one attempt. The default is 5 s.
    #[must_use]
    pub fn timeout(self, time: Duration) -> Self {
        self.set(|settings| settings.timeout = time)
    }

    /// Replaces the system clock, for tests. The function returns the time since an arbitrary fixed
    /// point.
    #[must_use]
    pub fn clock(self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.clock = Arc::new(clock))
    }

    /// The keys, fetched again if the one with this ID is missing or all are stale.
    pub(super) async fn keys(&self, id: Option<&str>) -> Result<Arc<KeySet>, NoKeys> {
        let inner = &*self.0;
        let kept = inner.kept();
        let state = inner.state(&kept, id);
        match state {
            State::Good => return Ok(kept.keys),
            // The first request refreshes the keys and waits; concurrent requests use the stale
            // keys.
            State::Old => {
                if inner.may_ask(&kept)
                    && let Ok(asking) = inner.asking.try_lock()
                {
                    inner.ask(asking).await;
                }
            }
            State::Missing => {
                if inner.may_ask(&kept) {
                    let asking = inner.asking.lock().await;
                    // Another request may have refreshed the keys while this one waited for the
                    // lock.
                    if inner.may_ask(&inner.kept()) {
                        inner.ask(asking).await;
                    }
                }
            }
        }
        let kept = inner.kept();
        if inner.is_over(&kept) { Err(NoKeys) } else { Ok(kept.keys) }
    }
}

enum State {
    /// The keys are fresh, and the requested one is among them.
    Good,
    /// The keys are usable but stale.
    Old,
    /// There are no usable keys, or the requested one is not among them.
    Missing,
}

impl Inner {
    fn now(&self) -> Duration {
        (self.settings.clock)()
    }

    fn kept(&self) -> Kept {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the keys are too old to use.
    fn is_over(&self, kept: &Kept) -> bool {
        let longest = self.settings.fresh_for.saturating_add(self.settings.stale_for);
        kept.fetched_at.is_none_or(|at| self.now().saturating_sub(at) > longest)
    }

    fn state(&self, kept: &Kept, id: Option<&str>) -> State {
        let is_missing = self.is_over(kept) || id.is_some_and(|id| !kept.keys.knows(id));
        let age = kept.fetched_at.map(|at| self.now().saturating_sub(at));
        match age {
            _ if is_missing => State::Missing,
            Some(age) if age <= self.settings.fresh_for => State::Good,
            _ => State::Old,
        }
    }

    /// Whether the pause since the last attempt is over.
    fn may_ask(&self, kept: &Kept) -> bool {
        self.now() >= kept.asks_again_at
    }

    /// Makes one attempt, or resumes one.
    async fn ask(&self, asking: MutexGuard<'_, Option<Attempt>>) {
        let mut turn = Turn::new(asking, |left| {
            // A fetch that was left unpolled past its timeout says nothing about the issuer: start
            // a new one.
            let is_old =
                |left: &Attempt| self.now().saturating_sub(left.began_at) >= self.settings.timeout;
            left.filter(|left| !is_old(left)).unwrap_or_else(|| Attempt {
                fetching: (self.settings.fetch)(),
                began_at: self.now(),
            })
        });
        let answer = match &mut turn.attempt {
            Some(Attempt { fetching, began_at }) => {
                let gone = self.now().saturating_sub(*began_at);
                within(self.settings.timeout.saturating_sub(gone), fetching).await
            }
            None => None,
        };
        turn.attempt = None;
        let read = answer.unwrap_or(Err("the fetch timed out".to_owned())).and_then(|document| {
            if document.len() > BYTES_MAX {
                return Err(format!(
                    "the document has {} bytes; the limit is {BYTES_MAX}",
                    document.len()
                ));
            }
            KeySet::read(&document).map_err(|error| error.to_string())
        });
        let now = self.now();
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.asks_again_at = now.saturating_add(self.settings.pause);
        match read {
            Ok(keys) => {
                kept.keys = Arc::new(keys);
                kept.fetched_at = Some(now);
            }
            Err(error) => {
                contained(
                    || tracing::error!(target: "peregrine", error, "the keys of a token issuer could not be fetched"),
                );
            }
        }
    }
}

/// An attempt taken out of the lock, which goes back when this is dropped.
struct Turn<'a> {
    asking: MutexGuard<'a, Option<Attempt>>,
    attempt: Option<Attempt>,
}

impl<'a> Turn<'a> {
    fn new(
        mut asking: MutexGuard<'a, Option<Attempt>>,
        go_on: impl FnOnce(Option<Attempt>) -> Attempt,
    ) -> Self {
        let attempt = Some(go_on(asking.take()));
        Self { asking, attempt }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A future that has panicked must not be polled again.
        if !std::thread::panicking() {
            *self.asking = self.attempt.take();
        }
    }
}

/// The future's output, or `None` after `time` on this thread's clock.
async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    if time.is_zero() {
        return None;
    }
    let mut alarm = clock::alarm();
    if let Some(alarm) = &mut alarm {
        alarm.set(time);
    }
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        match &mut alarm {
            Some(alarm) => alarm.poll(context).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

impl fmt::Debug for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwks").field("kept", &self.0.kept()).finish_non_exhaustive()
    }
}
