//! The keys that an issuer publishes.

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

/// How long keys are taken for new.
const FRESH_FOR: Duration = Duration::from_secs(10 * 60);
/// How long they count beyond that, where there are no newer ones to be had.
const STALE_FOR: Duration = Duration::from_secs(60 * 60);
/// How long nobody asks again.
const PAUSE: Duration = Duration::from_secs(30);
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest document that is read, in bytes.
const BYTES_MAX: usize = 512 * 1024;

type Fetching = Pin<Box<dyn Future<Output = Result<Bytes, String>> + Send>>;

/// The keys that an issuer publishes as a document (a JWKS, RFC 7517), and changes from time to time.
///
/// The document is fetched by a function of the application's, with the client of HTTP that it has anyway. The function must follow no redirects to elsewhere,
/// and is best given a URL with `https:`. Clones share what was fetched: make one outside of what `serve` is given, and clone it in.
///
/// ```
/// use peregrine::auth::{Jwks, JwtKeys, JwtVerifier};
///
/// let keys = Jwks::new(async || {
///     // For example: client.get("https://id.example/jwks.json").send().await?.error_for_status()?.bytes().await
///     Ok::<_, std::io::Error>(r#"{"keys":[]}"#)
/// });
/// let verifier = JwtVerifier::new(JwtKeys::published(keys), "https://id.example", "my-api");
/// # let _ = verifier;
/// ```
///
/// | setting | default |
/// |---|---|
/// | [`fresh_for`](Self::fresh_for): after that the next request fetches again, and others go on with what there is | 10 minutes |
/// | [`stale_for`](Self::stale_for): how long keys count beyond that while the issuer does not answer | an hour |
/// | [`pause`](Self::pause): between two attempts | 30 s |
/// | [`timeout`](Self::timeout) of one | 5 s |
///
/// A token whose key is not known is a reason to ask the issuer, who may have changed keys: once for all requests that wait for it, and not sooner than the
/// pause after the attempt before, however many such tokens come. An attempt that all who wait for have left is gone on with, or made again when its time is over.
/// Documents have at most 512 KiB, of which 100 keys count; a function that reads no further than that keeps one of any length out of memory.
#[derive(Clone)]
pub struct Jwks(Arc<Inner>);

struct Inner {
    settings: Settings,
    kept: RwLock<Kept>,
    /// Who has it asks the issuer, or goes on with what somebody else began to ask.
    asking: Mutex<Option<Attempt>>,
}

/// A question that is under way. It stays where it is when the request that asked is given up, and the next one goes on with it, as long as
/// an answer may take: so there is one at a time, however many clients come and go.
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

/// What is known, and since when.
#[derive(Clone, Debug, Default)]
struct Kept {
    keys: Arc<KeySet>,
    /// When they were fetched; `None`: never.
    fetched_at: Option<Duration>,
    /// Nobody asks again before that.
    asks_again_at: Duration,
}

/// There are no keys to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoKeys;

impl Jwks {
    /// The document that this function fetches.
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

    /// How long keys are taken for new. The default is 10 minutes.
    #[must_use]
    pub fn fresh_for(self, time: Duration) -> Self {
        self.set(|settings| settings.fresh_for = time)
    }

    /// How long keys count beyond that while the issuer does not answer. The default is an hour. A key that the issuer has withdrawn counts as long.
    #[must_use]
    pub fn stale_for(self, time: Duration) -> Self {
        self.set(|settings| settings.stale_for = time)
    }

    /// How long nobody asks the issuer again. The default is 30 s.
    #[must_use]
    pub fn pause(self, time: Duration) -> Self {
        self.set(|settings| settings.pause = time)
    }

    /// How long an attempt may take. The default is 5 s.
    #[must_use]
    pub fn timeout(self, time: Duration) -> Self {
        self.set(|settings| settings.timeout = time)
    }

    /// Another clock than the machine's, for tests: the time since some moment.
    #[must_use]
    pub fn clock(self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.clock = Arc::new(clock))
    }

    /// The keys, asked for again where the one with this id is missing, or where all are old.
    pub(super) async fn keys(&self, id: Option<&str>) -> Result<Arc<KeySet>, NoKeys> {
        let inner = &*self.0;
        let kept = inner.kept();
        let state = inner.state(&kept, id);
        match state {
            State::Good => return Ok(kept.keys),
            // Whoever comes first asks, and is the only one that waits.
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
                    // Somebody else may have asked meanwhile.
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
    /// They are new, and what is looked for is there.
    Good,
    /// They count, but not for long.
    Old,
    /// There are none any more, or the one that is looked for is not among them.
    Missing,
}

impl Inner {
    fn now(&self) -> Duration {
        (self.settings.clock)()
    }

    fn kept(&self) -> Kept {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Do the keys not count any more?
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

    /// Was there a pause since the last attempt?
    fn may_ask(&self, kept: &Kept) -> bool {
        self.now() >= kept.asks_again_at
    }

    /// One attempt.
    async fn ask(&self, asking: MutexGuard<'_, Option<Attempt>>) {
        let mut turn = Turn::new(asking, |left| {
            // One that nobody has looked at since its time was over says nothing about the issuer.
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
        let read =
            answer.unwrap_or(Err("there was no answer in time".to_owned())).and_then(|document| {
                if document.len() > BYTES_MAX {
                    return Err(format!(
                        "the document has {} bytes, and may have {BYTES_MAX}",
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
                    || tracing::error!(target: "peregrine", error, "the keys of an issuer of tokens could not be fetched"),
                );
            }
        }
    }
}

/// The right to go on with an attempt.
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

/// What the future gives, or nothing if it takes longer, by the clock of this thread.
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
