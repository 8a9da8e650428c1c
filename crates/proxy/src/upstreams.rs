//! The upstream servers: their health, and the choice of the next one.

#[cfg(feature = "tls")]
use crate::error::UpstreamError;
use crate::tls::{Tls, of_system};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use peregrine_web::panics::contained;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The default number of consecutive failures after which an upstream is skipped.
const FAILURES_MAX: u32 = 3;
/// The default time for which a failing upstream is skipped.
const DOWN_FOR: Duration = Duration::from_secs(10);

/// Servers that serve the same content. A clone is the same set: create it outside of the
/// application's closure and clone it into the closure, so that the workers share its health state.
///
/// ```
/// use peregrine::proxy::{Balance, Upstreams};
/// use std::time::Duration;
///
/// let upstreams = Upstreams::new(["http://10.0.0.7:8080", "http://10.0.0.8:8080"])?
///     .balance(Balance::LeastConnections)
///     .check("/health", Duration::from_secs(5));
/// # let _ = upstreams;
/// # Ok::<(), peregrine::proxy::UpstreamError>(())
/// ```
#[derive(Clone)]
pub struct Upstreams(Arc<Set>);

pub(crate) struct Set {
    pub(crate) all: Vec<Upstream>,
    balance: Balance,
    turn: AtomicUsize,
    failures_max: u32,
    down_for: Duration,
    pub(crate) check: Option<Check>,
}

/// How the next upstream is chosen among those that are up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The one with the fewest requests in progress on all workers; among equals, each in turn.
    LeastConnections,
}

/// The health check of upstreams.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) path: Uri,
    pub(crate) every: Duration,
}

/// One server.
pub(crate) struct Upstream {
    /// The host to connect to.
    pub(crate) host: String,
    pub(crate) port: u16,
    is_secure: bool,
    /// The value of `Host`.
    pub(crate) authority: HeaderValue,
    /// The prefix of every path, without a trailing slash.
    pub(crate) base: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    /// Whether it speaks HTTP/2 without negotiation.
    #[cfg(feature = "tls")]
    pub(crate) is_http2: bool,
    pub(crate) busy: AtomicUsize,
    failures: AtomicU32,
    /// Milliseconds of [`now`]; 0 while it is up.
    down_until: AtomicU64,
    checked_at: AtomicU64,
    is_checked: AtomicBool,
    /// Consecutive failed checks, whatever the results of requests.
    failed_checks: AtomicU32,
    is_failing: AtomicBool,
}

/// The current state of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamState {
    /// Host and port.
    pub authority: String,
    /// Whether requests are sent to it.
    pub is_up: bool,
    /// Requests in progress.
    pub busy: usize,
    /// Failures since its last response.
    pub failures: u32,
}

impl Upstreams {
    /// Creates a set of servers from their URLs, such as `http://10.0.0.7:8080`. A path in a URL is
    /// prepended to the paths of requests.
    ///
    /// With the feature `proxy-tls` the URLs may be `https`. Their certificates must match the
    /// hosts of the URLs, whatever `Host` a request has, and come from authorities that the system
    /// trusts. Servers that negotiate HTTP/2 get HTTP/2.
    ///
    /// # Errors
    /// There are no URLs, one is not the URL of a server, or the system has no root certificates.
    pub fn new(urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, UpstreamError> {
        let all: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Upstream::read(url.as_ref())).collect();
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "only TLS changes them"))]
        let mut all = all?;
        #[cfg(feature = "tls")]
        if all.iter().any(Upstream::is_secure) {
            let config = of_system()?;
            secure(&mut all, &config)?;
        }
        Self::of(all)
    }

    /// Like [`Upstreams::new`], with a TLS configuration of your own, for example with a private
    /// authority or a client certificate. The ALPN protocols in `config` are ignored.
    ///
    /// # Errors
    /// There are no URLs, or one is not the URL of a server.
    #[cfg(feature = "tls")]
    pub fn with_tls(
        urls: impl IntoIterator<Item: AsRef<str>>,
        config: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, UpstreamError> {
        let all: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Upstream::read(url.as_ref())).collect();
        let mut all = all?;
        secure(&mut all, config)?;
        Self::of(all)
    }

    /// Uses HTTP/2 without negotiation with all `http` upstreams, which gRPC services without TLS
    /// require. Upgrades still use HTTP/1.1.
    ///
    /// # Panics
    /// The set was already cloned.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn http2(self) -> Self {
        self.set(|set| set.all.iter_mut().for_each(|upstream| upstream.is_http2 = true))
    }

    fn of(all: Vec<Upstream>) -> Result<Self, UpstreamError> {
        if all.is_empty() {
            return Err(UpstreamError::None);
        }
        Ok(Self(Arc::new(Set {
            all,
            balance: Balance::default(),
            turn: AtomicUsize::new(0),
            failures_max: FAILURES_MAX,
            down_for: DOWN_FOR,
            check: None,
        })))
    }

    fn set(mut self, set: impl FnOnce(&mut Set)) -> Self {
        set(Arc::get_mut(&mut self.0).expect("upstreams are configured before the first clone"));
        self
    }

    /// Sets how the next upstream is chosen. Default: [`Balance::RoundRobin`].
    ///
    /// # Panics
    /// The set was already cloned.
    #[must_use]
    pub fn balance(self, balance: Balance) -> Self {
        self.set(|set| set.balance = balance)
    }

    /// Sets the number of consecutive failures after which an upstream is skipped: failed
    /// connections, missing responses, and invalid ones. Default: 3.
    ///
    /// # Panics
    /// The set was already cloned.
    #[must_use]
    pub fn failures_max(self, failures: u32) -> Self {
        self.set(|set| set.failures_max = failures.max(1))
    }

    /// Sets how long a failing upstream is skipped. After that, a single request is sent to it as a
    /// trial. All other requests still skip the upstream until it has responded to the trial, or
    /// until the same time has passed again. Default: 10 s.
    ///
    /// # Panics
    /// The set was already cloned.
    #[must_use]
    pub fn down_for(self, time: Duration) -> Self {
        self.set(|set| set.down_for = time)
    }

    /// Checks the health of each upstream with a GET of `path`. A status below 400 is healthy. An
    /// upstream that fails as many consecutive checks as [`Upstreams::failures_max`] is skipped
    /// until it passes one. Checks run beside requests, at most once in `every`, which is also
    /// their time limit. Without requests, no checks are sent.
    ///
    /// # Panics
    /// `path` does not begin with a slash, or the set was already cloned.
    #[must_use]
    pub fn check(self, path: &str, every: Duration) -> Self {
        let uri = path.parse::<Uri>().ok().filter(|_| path.starts_with('/'));
        let path = uri.unwrap_or_else(|| {
            panic!("`{path}` is not a path to check: it must begin with a slash")
        });
        self.set(|set| set.check = Some(Check { path, every }))
    }

    /// The current state of each upstream, for your own pages and metrics.
    #[must_use]
    pub fn states(&self) -> Vec<UpstreamState> {
        let now = now();
        let state = |it: &Upstream| UpstreamState {
            authority: format!("{}:{}", it.host, it.port),
            is_up: it.is_up(now),
            busy: it.busy.load(Ordering::Relaxed),
            failures: it.failures.load(Ordering::Relaxed),
        };
        self.0.all.iter().map(state).collect()
    }

    pub(crate) fn shared(&self) -> &Arc<Set> {
        &self.0
    }
}

impl Set {
    /// The number of the next upstream, excluding those in `tried`. If none is up, one of the
    /// others is chosen anyway: it may have recovered, and refusing the request would not help the
    /// client.
    pub(crate) fn choose(&self, tried: &[usize]) -> Option<usize> {
        let (now, count) = (now(), self.all.len());
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..count).map(|step| first.wrapping_add(step) % count);
        let mut left: Vec<_> = in_turn.filter(|number| !tried.contains(number)).collect();
        if left.iter().any(|number| self.all[*number].is_up(now)) {
            left.retain(|number| self.all[*number].is_up(now));
        }
        let chosen = match self.balance {
            Balance::RoundRobin => left.first().copied(),
            Balance::LeastConnections => {
                left.into_iter().min_by_key(|number| self.all[*number].busy.load(Ordering::Relaxed))
            }
        };
        // Only this request tries an upstream that was down, and it may wait for a long time. For
        // other requests the upstream stays down until it has responded to this one, or for the
        // same time again.
        let until = &self.all[chosen?].down_until;
        let before = until.load(Ordering::Relaxed);
        let is_trial = before != 0 && before <= now;
        let order = Ordering::Relaxed;
        if is_trial && until.compare_exchange(before, self.down_until(now), order, order).is_err() {
            // Another worker's request is already trying it.
            return self.choose(tried);
        }
        chosen
    }

    /// Whether it failed so often that it is skipped, except for a trial.
    pub(crate) fn is_down(&self, number: usize) -> bool {
        self.all[number].down_until.load(Ordering::Relaxed) != 0
    }

    /// The time until which an upstream that fails now is skipped.
    fn down_until(&self, now: u64) -> u64 {
        now.saturating_add(millis(self.down_for)).max(1)
    }

    /// Records that an upstream responded.
    pub(crate) fn well(&self, number: usize) {
        let upstream = &self.all[number];
        upstream.failures.store(0, Ordering::Relaxed);
        if upstream.down_until.swap(0, Ordering::Relaxed) != 0 {
            contained(|| {
                tracing::info!(
                    target: "peregrine",
                    upstream = %upstream,
                    "an upstream is up again"
                );
            });
        }
    }

    /// Records that an upstream failed.
    pub(crate) fn ill(&self, number: usize, why: &dyn fmt::Display) {
        let upstream = &self.all[number];
        let failures = upstream.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.failures_max {
            return;
        }
        let until = self.down_until(now());
        if upstream.down_until.swap(until, Ordering::Relaxed) == 0 {
            contained(|| {
                tracing::warn!(
                    target: "peregrine",
                    upstream = %upstream,
                    why = %why,
                    failures,
                    "an upstream is down"
                );
            });
        }
    }

    /// The next upstream whose check is due.
    pub(crate) fn due(self: &Arc<Self>) -> Option<Checking> {
        let every = millis(self.check.as_ref()?.every);
        let now = now();
        let number = self.all.iter().position(|upstream| {
            let is_due = upstream.checked_at.load(Ordering::Relaxed).saturating_add(every) <= now;
            is_due && !upstream.is_checked.swap(true, Ordering::Relaxed)
        });
        number.map(|number| Checking(Arc::clone(self), number))
    }

    /// Records the result of a check.
    pub(crate) fn checked(&self, number: usize, outcome: Result<(), String>) {
        let upstream = &self.all[number];
        upstream.checked_at.store(now(), Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                upstream.failed_checks.store(0, Ordering::Relaxed);
                if upstream.is_failing.swap(false, Ordering::Relaxed) {
                    contained(|| {
                        tracing::info!(
                            target: "peregrine",
                            upstream = %upstream,
                            "an upstream passes its check again"
                        );
                    });
                }
                self.well(number);
            }
            Err(why) => {
                let failed =
                    upstream.failed_checks.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if failed >= self.failures_max && !upstream.is_failing.swap(true, Ordering::Relaxed)
                {
                    contained(|| {
                        tracing::warn!(
                            target: "peregrine",
                            upstream = %upstream,
                            why,
                            failed,
                            "an upstream fails its check"
                        );
                    });
                }
            }
        }
    }
}

/// A check in progress. If its worker stops and drops it, other workers can check the upstream.
pub(crate) struct Checking(Arc<Set>, usize);

impl Checking {
    pub(crate) fn set(&self) -> &Set {
        &self.0
    }

    pub(crate) fn number(&self) -> usize {
        self.1
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.all[self.1].is_checked.store(false, Ordering::Relaxed);
    }
}

impl Upstream {
    fn read(text: &str) -> Result<Self, UpstreamError> {
        let invalid = || UpstreamError::Invalid(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => {}
            Some(scheme) if *scheme == Scheme::HTTPS && cfg!(feature = "tls") => {}
            Some(_) => return Err(UpstreamError::Scheme(text.to_owned())),
            None => return Err(invalid()),
        }
        let authority: &Authority = uri.authority().ok_or_else(invalid)?;
        if uri.query().is_some() || authority.as_str().contains('@') || authority.host().is_empty()
        {
            return Err(invalid());
        }
        let host = authority.host();
        let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
        let is_port_said = authority.as_str().len() > host.len() + 1;
        if is_port_said && authority.port_u16().is_none() {
            return Err(invalid());
        }
        Ok(Self {
            host: host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'))
                .unwrap_or(host)
                .to_owned(),
            port: authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 }),
            is_secure,
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "tls")]
            is_http2: false,
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| invalid())?,
            base: uri.path().trim_end_matches('/').to_owned(),
            busy: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            down_until: AtomicU64::new(0),
            checked_at: AtomicU64::new(0),
            is_checked: AtomicBool::new(false),
            failed_checks: AtomicU32::new(0),
            is_failing: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure
    }

    fn is_up(&self, now: u64) -> bool {
        !self.is_failing.load(Ordering::Relaxed) && self.down_until.load(Ordering::Relaxed) <= now
    }
}

#[cfg(feature = "tls")]
fn secure(all: &mut [Upstream], config: &Arc<rustls::ClientConfig>) -> Result<(), UpstreamError> {
    for upstream in all.iter_mut().filter(|upstream| upstream.is_secure) {
        let tls = Tls::new(&upstream.host, config);
        upstream.tls = Some(tls.ok_or_else(|| UpstreamError::Invalid(upstream.to_string()))?);
    }
    Ok(())
}

/// Milliseconds since the first call, plus one day, so that a `checked_at` of 0 is long ago.
fn now() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    millis(BEGUN.get_or_init(Instant::now).elapsed()) + 24 * 60 * 60 * 1000
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Upstreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.states()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(balance: Balance) -> Upstreams {
        let urls = ["http://a:1", "http://b:2", "http://c:3"];
        let upstreams = Upstreams::new(urls).expect("valid URLs");
        upstreams.balance(balance).failures_max(2).down_for(Duration::from_secs(3600))
    }

    #[test]
    fn urls_are_read_and_what_is_none_is_named() {
        let upstreams = Upstreams::new(["http://a", "http://[::1]:8080/base/"]).expect("valid");
        let all = &upstreams.shared().all;
        assert_eq!((all[0].host.as_str(), all[0].port, all[0].base.as_str()), ("a", 80, ""));
        assert_eq!(
            (all[1].host.as_str(), all[1].port, all[1].base.as_str()),
            ("::1", 8080, "/base")
        );
        assert_eq!(all[1].authority, "[::1]:8080");
        assert_eq!(Upstreams::new([""; 0]).err(), Some(UpstreamError::None));
        for (url, is_scheme) in [
            ("ftp://a", true),
            ("a:80", false),
            ("/a", false),
            ("http://u@a", false),
            ("http://a/?b", false),
            ("http://a:65536", false),
            ("http://[::1]:99999/", false),
            ("", false),
        ] {
            let error = Upstreams::new([url]).expect_err("an invalid URL");
            assert_eq!(matches!(error, UpstreamError::Scheme(_)), is_scheme, "{url} {error}");
        }
    }

    #[test]
    fn all_have_their_turn_and_those_that_fail_are_left_out() {
        let upstreams = three(Balance::RoundRobin);
        let set = upstreams.shared();
        let turns =
            |tried: &[usize]| (0..6).map(|_| set.choose(tried).expect("one")).collect::<Vec<_>>();
        assert_eq!(turns(&[]), [0, 1, 2, 0, 1, 2]);
        assert!(turns(&[0, 2]).iter().all(|number| *number == 1));
        set.ill(1, &"refused");
        assert!(turns(&[]).contains(&1), "one failure is not enough");
        set.well(1);
        set.ill(1, &"refused");
        assert!(turns(&[]).contains(&1), "the failures are not consecutive");
        set.ill(1, &"refused");
        assert!(!turns(&[]).contains(&1) && !upstreams.states()[1].is_up);
        assert_eq!(set.choose(&[0, 2]), Some(1), "it is the only one left");
        assert_eq!(set.choose(&[0, 1, 2]), None);
        set.well(1);
        assert!(turns(&[]).contains(&1));
    }

    #[test]
    fn one_request_tries_who_was_down() {
        for balance in [Balance::RoundRobin, Balance::LeastConnections] {
            let upstreams = three(balance);
            let set = upstreams.shared();
            set.ill(1, &"refused");
            set.ill(1, &"refused");
            // The time for which it is skipped is over.
            set.all[1].down_until.store(1, Ordering::Relaxed);
            let turns = |count| (0..count).map(|_| set.choose(&[]).expect("one"));
            assert_eq!(turns(6).filter(|number| *number == 1).count(), 1, "{balance:?}");
            assert!(!upstreams.states()[1].is_up, "the trial has no response yet");
            set.well(1);
            assert!(turns(6).any(|number| number == 1), "{balance:?}");
        }
    }

    #[test]
    fn who_has_the_least_to_do_is_next() {
        let upstreams = three(Balance::LeastConnections);
        let set = upstreams.shared();
        for (number, busy) in [3, 1, 2].into_iter().enumerate() {
            set.all[number].busy.store(busy, Ordering::Relaxed);
        }
        assert_eq!(
            [set.choose(&[]), set.choose(&[1]), set.choose(&[1, 2])],
            [Some(1), Some(2), Some(0)]
        );
    }

    #[test]
    fn a_check_is_due_once_in_a_while() {
        let upstreams = Upstreams::new(["http://a", "http://b"]).expect("valid URLs");
        let upstreams = upstreams.check("/health", Duration::from_secs(3600)).failures_max(1);
        let set = upstreams.shared();
        let due = || set.due().as_ref().map(Checking::number);
        let (first, second) = (set.due().expect("a check"), set.due().expect("a check"));
        assert_eq!([first.number(), second.number()], [0, 1]);
        assert_eq!(due(), None);
        // A check that was dropped is due again.
        drop(first);
        assert_eq!((due(), due()), (Some(0), Some(0)));
        drop(second);
        set.checked(0, Err("500".to_owned()));
        set.checked(1, Ok(()));
        assert_eq!(due(), None);
        assert_eq!(
            upstreams.states().iter().map(|state| state.is_up).collect::<Vec<_>>(),
            [false, true]
        );
    }
}
