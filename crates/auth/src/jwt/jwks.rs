//! Fetches and caches the keys that a token issuer publishes.

use super::keys::KeySet;
use bytes::Bytes;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::timer;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard};

/// How long fetched keys count as fresh.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);
/// How long stale keys are still used while the issuer does not respond.
const STALE_IF_ERROR: Duration = Duration::from_secs(60 * 60);
/// The minimum time between two attempts to fetch the keys.
const COOLDOWN: Duration = Duration::from_secs(30);
/// The time limit of one attempt.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The size limit of the fetched document, in bytes.
const BYTES_MAX: usize = 512 * 1024;

type FetchFuture = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

/// The keys that an issuer publishes as a JWKS document (RFC 7517) and rotates from time to time.
///
/// The application supplies the function that fetches the document, with whatever HTTP client it
/// already has. The function should use an `https:` URL and must not follow redirects to other
/// hosts. Clones share the fetched keys: create one `RemoteJwks` outside the closure passed to
/// `serve` and clone it in there.
///
/// ```
/// use peregrine::auth::{RemoteJwks, JwtKeys, JwtVerifier};
///
/// let keys = RemoteJwks::new(async || {
///     // For example: client.get("https://id.example/jwks.json").send().await?.bytes().await
///     Ok::<_, std::io::Error>(r#"{"keys":[]}"#)
/// });
/// let verifier = JwtVerifier::new(JwtKeys::remote(keys), "https://id.example", "my-api");
/// # let _ = verifier;
/// ```
///
/// | setting | default |
/// |---|---|
/// | [`max_age`](Self::max_age): after this time, the next request fetches again | 10 minutes |
/// | [`stale_if_error`](Self::stale_if_error): extra time while the issuer is down | 1 hour |
/// | [`cooldown`](Self::cooldown) between two attempts | 30 s |
/// | [`fetch_timeout`](Self::fetch_timeout) of one attempt | 5 s |
///
/// While one request refreshes stale keys, concurrent requests use the stale ones.
///
/// A token with an unknown key ID triggers a fetch, because the issuer may have rotated its keys.
/// All waiting requests share one fetch, and fetches are at least one cooldown apart, however many
/// such tokens arrive. If every waiting request is cancelled, the next request resumes the fetch,
/// or starts a new one if the timeout has passed.
///
/// The document may have at most 512 KiB, and only its first 100 keys are used. The size is checked
/// after the fetch: let the function stop reading at that size to bound memory.
#[doc(alias = "createRemoteJWKSet")]
#[derive(Clone)]
pub struct RemoteJwks(Arc<Inner>);

struct Inner {
    settings: JwksSettings,
    cached: RwLock<CachedKeys>,
    /// The holder of the lock starts a fetch or resumes one that a cancelled request left behind.
    in_flight: Mutex<Option<InFlightFetch>>,
}

/// A fetch in progress. It survives cancellation of the request that started it: the next request
/// resumes it until its timeout. There is therefore one fetch at a time, even if clients
/// disconnect.
struct InFlightFetch {
    future: FetchFuture,
    started_at: Duration,
}

#[derive(Clone)]
struct JwksSettings {
    fetch: Arc<dyn Fn() -> FetchFuture + Send + Sync>,
    max_age: Duration,
    stale_if_error: Duration,
    cooldown: Duration,
    timeout: Duration,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// The cached keys and their age.
#[derive(Clone, Debug, Default)]
struct CachedKeys {
    keys: Arc<KeySet>,
    /// When the keys were fetched; `None` if never.
    fetched_at: Option<Duration>,
    /// The earliest time of the next attempt.
    next_fetch_at: Duration,
}

/// No usable keys: there are none, or they are too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeysUnavailable;

impl RemoteJwks {
    /// Uses the keys in the document that `fetch` returns. Nothing is fetched until the first token
    /// arrives.
    pub fn new<F, T, E>(fetch: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Into<Bytes>,
        E: fmt::Display,
    {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let fetch = move || -> FetchFuture {
            let future = fetch();
            Box::pin(async move { future.await.map(Into::into).map_err(|error| error.to_string()) })
        };
        Self::from_settings(JwksSettings {
            fetch: Arc::new(fetch),
            max_age: MAX_AGE,
            stale_if_error: STALE_IF_ERROR,
            cooldown: COOLDOWN,
            timeout: FETCH_TIMEOUT,
            clock: Arc::new(|| START.elapsed()),
        })
    }

    fn from_settings(settings: JwksSettings) -> Self {
        let (cached, in_flight) = (RwLock::default(), Mutex::default());
        Self(Arc::new(Inner { settings, cached, in_flight }))
    }

    fn configure(self, set: impl FnOnce(&mut JwksSettings)) -> Self {
        let mut settings = self.0.settings.clone();
        set(&mut settings);
        Self::from_settings(settings)
    }

    /// Sets how long fetched keys count as fresh. The default is 10 minutes.
    #[must_use]
    pub fn max_age(self, time: Duration) -> Self {
        self.configure(|settings| settings.max_age = time)
    }

    /// Sets how long stale keys are still used while the issuer does not respond, in addition to
    /// [`max_age`](Self::max_age). The default is 1 hour. A key that the issuer has withdrawn is
    /// accepted for just as long.
    #[must_use]
    pub fn stale_if_error(self, time: Duration) -> Self {
        self.configure(|settings| settings.stale_if_error = time)
    }

    /// Sets the minimum time between two attempts. The default is 30 s.
    #[must_use]
    pub fn cooldown(self, time: Duration) -> Self {
        self.configure(|settings| settings.cooldown = time)
    }

    /// Sets the time limit of one attempt. The default is 5 s.
    #[must_use]
    pub fn fetch_timeout(self, time: Duration) -> Self {
        self.configure(|settings| settings.timeout = time)
    }

    /// Replaces the system clock, for tests. The function returns the time since an arbitrary fixed
    /// point.
    #[must_use]
    pub fn clock(self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.configure(|settings| settings.clock = Arc::new(clock))
    }

    /// Returns the keys, after fetching them again if the one with this ID is missing or all are
    /// stale.
    pub(super) async fn keys(&self, id: Option<&str>) -> Result<Arc<KeySet>, KeysUnavailable> {
        let inner = &*self.0;
        let cached = inner.cached();
        let state = inner.cache_state(&cached, id);
        match state {
            CacheState::Fresh => return Ok(cached.keys),
            // The first request refreshes the keys and waits; concurrent requests use the stale
            // keys.
            CacheState::Stale => {
                if inner.may_fetch(&cached)
                    && let Ok(in_flight) = inner.in_flight.try_lock()
                {
                    inner.fetch(in_flight).await;
                }
            }
            CacheState::Missing => {
                if inner.may_fetch(&cached) {
                    let in_flight = inner.in_flight.lock().await;
                    // Another request may have refreshed the keys while this one waited for the
                    // lock.
                    if inner.may_fetch(&inner.cached()) {
                        inner.fetch(in_flight).await;
                    }
                }
            }
        }
        let cached = inner.cached();
        if inner.is_expired(&cached) { Err(KeysUnavailable) } else { Ok(cached.keys) }
    }
}

enum CacheState {
    /// The keys are fresh, and the requested one is among them.
    Fresh,
    /// The keys are usable but stale.
    Stale,
    /// There are no usable keys, or the requested one is not among them.
    Missing,
}

impl Inner {
    fn now(&self) -> Duration {
        (self.settings.clock)()
    }

    fn cached(&self) -> CachedKeys {
        self.cached.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the keys are too old to use.
    fn is_expired(&self, cached: &CachedKeys) -> bool {
        let age_max = self.settings.max_age.saturating_add(self.settings.stale_if_error);
        cached.fetched_at.is_none_or(|fetched_at| self.now().saturating_sub(fetched_at) > age_max)
    }

    fn cache_state(&self, cached: &CachedKeys, id: Option<&str>) -> CacheState {
        let is_missing =
            self.is_expired(cached) || id.is_some_and(|id| !cached.keys.has_key_id(id));
        let age = cached.fetched_at.map(|fetched_at| self.now().saturating_sub(fetched_at));
        match age {
            _ if is_missing => CacheState::Missing,
            Some(age) if age <= self.settings.max_age => CacheState::Fresh,
            _ => CacheState::Stale,
        }
    }

    /// Whether the cooldown since the last attempt is over.
    fn may_fetch(&self, cached: &CachedKeys) -> bool {
        self.now() >= cached.next_fetch_at
    }

    /// Makes one attempt to fetch the keys, or resumes one that was left behind.
    async fn fetch(&self, in_flight: MutexGuard<'_, Option<InFlightFetch>>) {
        let mut guard = FetchGuard::new(in_flight, |previous| {
            // A fetch that was left unpolled past its timeout says nothing about the issuer: start
            // a new one.
            let has_timed_out = |previous: &InFlightFetch| {
                self.now().saturating_sub(previous.started_at) >= self.settings.timeout
            };
            previous.filter(|previous| !has_timed_out(previous)).unwrap_or_else(|| InFlightFetch {
                future: (self.settings.fetch)(),
                started_at: self.now(),
            })
        });
        let result = match &mut guard.attempt {
            Some(InFlightFetch { future, started_at }) => {
                let elapsed = self.now().saturating_sub(*started_at);
                with_timeout(self.settings.timeout.saturating_sub(elapsed), future).await
            }
            None => None,
        };
        guard.attempt = None;
        let parsed = result.unwrap_or(Err("the fetch timed out".to_owned())).and_then(|document| {
            if document.len() > BYTES_MAX {
                return Err(format!(
                    "the document has {} bytes; the limit is {BYTES_MAX}",
                    document.len()
                ));
            }
            KeySet::parse(&document).map_err(|error| error.to_string())
        });
        let now = self.now();
        let mut cached = self.cached.write().unwrap_or_else(PoisonError::into_inner);
        cached.next_fetch_at = now.saturating_add(self.settings.cooldown);
        match parsed {
            Ok(keys) => {
                cached.keys = Arc::new(keys);
                cached.fetched_at = Some(now);
            }
            Err(error) => {
                catch_subscriber_panic(
                    || tracing::error!(target: "peregrine", error, "the keys of a token issuer could not be fetched"),
                );
            }
        }
    }
}

/// Holds an attempt taken out of the mutex, and puts it back on drop.
struct FetchGuard<'a> {
    in_flight: MutexGuard<'a, Option<InFlightFetch>>,
    attempt: Option<InFlightFetch>,
}

impl<'a> FetchGuard<'a> {
    fn new(
        mut in_flight: MutexGuard<'a, Option<InFlightFetch>>,
        resume_or_start: impl FnOnce(Option<InFlightFetch>) -> InFlightFetch,
    ) -> Self {
        let attempt = Some(resume_or_start(in_flight.take()));
        Self { in_flight, attempt }
    }
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        // A future that has panicked must not be polled again.
        if !std::thread::panicking() {
            *self.in_flight = self.attempt.take();
        }
    }
}

/// Returns the future's output, or `None` after `time` on this thread's clock. Without a clock,
/// waits for the output, however long that takes.
async fn with_timeout<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    if time.is_zero() {
        return None;
    }
    let mut timer = timer::new_timer();
    if let Some(timer) = &mut timer {
        timer.reset(time);
    }
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        match &mut timer {
            Some(timer) => timer.poll_elapsed(cx).map(|()| None),
            None => Poll::Pending,
        }
    })
    .await
}

impl fmt::Debug for RemoteJwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteJwks").field("cached", &self.0.cached()).finish_non_exhaustive()
    }
}
