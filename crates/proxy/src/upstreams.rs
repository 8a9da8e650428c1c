//! The servers that answer: which of them are well, and whose turn it is.

#[cfg(feature = "tls")]
use crate::tls::{Tls, of_system};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use peregrine_web::panics::contained;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// After so many failures in a row an upstream is left out, unless set otherwise.
const FAILURES_MAX: u32 = 3;
/// For so long, unless set otherwise: 10 s.
const DOWN_FOR: Duration = Duration::from_secs(10);

/// Servers that answer alike. A clone is the same set: make it outside of the application's closure, and clone it in, so that workers
/// share what is known of their health.
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

/// How the next upstream is chosen among those that are well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest requests in progress, of all workers; of those with as few, one after the other.
    LeastConnections,
}

/// How upstreams are asked whether they are well.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    pub(crate) path: Uri,
    pub(crate) every: Duration,
}

/// One server.
pub(crate) struct Upstream {
    /// Host and port, as they are connected to.
    pub(crate) host: String,
    pub(crate) port: u16,
    is_secure: bool,
    /// As `Host` has them.
    pub(crate) authority: HeaderValue,
    /// What stands before every path, without a slash at its end.
    pub(crate) base: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
    /// Is it known to speak HTTP/2 where nothing can be agreed on?
    #[cfg(feature = "tls")]
    pub(crate) is_http2: bool,
    pub(crate) busy: AtomicUsize,
    failures: AtomicU32,
    /// Milliseconds on the clock of this process; 0: it is well.
    down_until: AtomicU64,
    checked_at: AtomicU64,
    is_checked: AtomicBool,
    /// Checks that failed in a row, whatever requests came to.
    failed_checks: AtomicU32,
    is_failing: AtomicBool,
}

/// What is known of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamState {
    /// Host and port.
    pub authority: String,
    /// Is it asked?
    pub is_up: bool,
    /// Requests in progress.
    pub busy: usize,
    /// Failures since it last answered.
    pub failures: u32,
}

/// Why a text is no upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpstreamError {
    /// There is none.
    None,
    /// This is no URL of a server.
    Invalid(String),
    /// This is the URL of another protocol than HTTP, or of HTTP over TLS without the feature for that.
    Scheme(String),
    /// There are servers over TLS, and nobody whom the system trusts.
    Roots(String),
}

impl Upstreams {
    /// Servers by their URLs, such as `http://10.0.0.7:8080`. A path in it stands before the paths of requests.
    ///
    /// With the feature `proxy-tls` they may be `https`: then their certificates are those of the URLs' hosts, whatever host is asked for, from
    /// authorities that the system trusts; and HTTP/2 is spoken with those that want it.
    ///
    /// # Errors
    /// There is none, or one is no URL of a server.
    pub fn new(urls: impl IntoIterator<Item: AsRef<str>>) -> Result<Self, UpstreamError> {
        let all: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Upstream::read(url.as_ref())).collect();
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "nothing is added to them"))]
        let mut all = all?;
        #[cfg(feature = "tls")]
        if all.iter().any(Upstream::is_secure) {
            let config = of_system()?;
            secure(&mut all, &config)?;
        }
        Self::of(all)
    }

    /// The same with whom to trust, and who this side is, of your own: authorities of a company, a certificate of the client's. What `config` says of
    /// ALPN does not count.
    ///
    /// # Errors
    /// There is none, or one is no URL of a server.
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

    /// All of them that are `http` speak HTTP/2 without being asked, as gRPC services without TLS do. Upgrades are still of HTTP/1.1.
    ///
    /// # Panics
    /// There is a clone already.
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
        set(Arc::get_mut(&mut self.0).expect("settings come before the first clone"));
        self
    }

    /// How the next one is chosen. The default is one after the other.
    ///
    /// # Panics
    /// There is a clone already; so it is with all settings.
    #[must_use]
    pub fn balance(self, balance: Balance) -> Self {
        self.set(|set| set.balance = balance)
    }

    /// After how many failures in a row one is left out: connections that fail, answers that do not come, or are none. The default is 3.
    ///
    /// # Panics
    /// There is a clone already.
    #[must_use]
    pub fn failures_max(self, failures: u32) -> Self {
        self.set(|set| set.failures_max = failures.max(1))
    }

    /// How long it is left out. After that one request tries it; until that has an answer, it is left out by the others for as long again. The default is 10 s.
    ///
    /// # Panics
    /// There is a clone already.
    #[must_use]
    pub fn down_for(self, time: Duration) -> Self {
        self.set(|set| set.down_for = time)
    }

    /// Asks each upstream with a GET of `path` whether it is well, which is a status below 400. One that fails as often as [`Upstreams::failures_max`] says
    /// is left out until it passes. This happens beside requests, at most once
    /// in `every` (which is also how long an answer may take), and not where nobody asks for anything.
    ///
    /// # Panics
    /// `path` does not begin with a slash, or there is a clone already.
    #[must_use]
    pub fn check(self, path: &str, every: Duration) -> Self {
        let uri = path.parse::<Uri>().ok().filter(|_| path.starts_with('/'));
        let path =
            uri.unwrap_or_else(|| panic!("`{path}` is no path to check: it begins with a slash"));
        self.set(|set| set.check = Some(Check { path, every }))
    }

    /// What is known of each, for pages and metrics of your own.
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
    /// The number of the next one, which is none of those that were `tried`. If none is well, whoever is left is asked
    /// nevertheless: one that is down may be up again, and a refusal helps nobody.
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
        // One that was down is tried by this request alone, which may wait for long: to the others it is down until that has an
        // answer, or for as long again.
        let until = &self.all[chosen?].down_until;
        let before = until.load(Ordering::Relaxed);
        let is_trial = before != 0 && before <= now;
        let order = Ordering::Relaxed;
        if is_trial && until.compare_exchange(before, self.down_until(now), order, order).is_err() {
            // Another worker's request has begun to.
            return self.choose(tried);
        }
        chosen
    }

    /// Did it fail so often that it is left out, unless it is tried?
    pub(crate) fn is_down(&self, number: usize) -> bool {
        self.all[number].down_until.load(Ordering::Relaxed) != 0
    }

    /// Until when one that fails now is left out.
    fn down_until(&self, now: u64) -> u64 {
        now.saturating_add(millis(self.down_for)).max(1)
    }

    /// An upstream answered.
    pub(crate) fn well(&self, number: usize) {
        let upstream = &self.all[number];
        upstream.failures.store(0, Ordering::Relaxed);
        if upstream.down_until.swap(0, Ordering::Relaxed) != 0 {
            contained(
                || tracing::info!(target: "peregrine", upstream = %upstream, "an upstream is up again"),
            );
        }
    }

    /// An upstream did not answer.
    pub(crate) fn ill(&self, number: usize, why: &dyn fmt::Display) {
        let upstream = &self.all[number];
        let failures = upstream.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.failures_max {
            return;
        }
        let until = self.down_until(now());
        if upstream.down_until.swap(until, Ordering::Relaxed) == 0 {
            contained(
                || tracing::warn!(target: "peregrine", upstream = %upstream, why = %why, failures, "an upstream is down"),
            );
        }
    }

    /// The upstream that it is time to check.
    pub(crate) fn due(self: &Arc<Self>) -> Option<Checking> {
        let every = millis(self.check.as_ref()?.every);
        let now = now();
        let number = self.all.iter().position(|upstream| {
            let is_due = upstream.checked_at.load(Ordering::Relaxed).saturating_add(every) <= now;
            is_due && !upstream.is_checked.swap(true, Ordering::Relaxed)
        });
        number.map(|number| Checking(Arc::clone(self), number))
    }

    /// What a check came to.
    pub(crate) fn checked(&self, number: usize, outcome: Result<(), String>) {
        let upstream = &self.all[number];
        upstream.checked_at.store(now(), Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                upstream.failed_checks.store(0, Ordering::Relaxed);
                if upstream.is_failing.swap(false, Ordering::Relaxed) {
                    contained(
                        || tracing::info!(target: "peregrine", upstream = %upstream, "an upstream passes its check again"),
                    );
                }
                self.well(number);
            }
            Err(why) => {
                let failed =
                    upstream.failed_checks.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if failed >= self.failures_max && !upstream.is_failing.swap(true, Ordering::Relaxed)
                {
                    contained(
                        || tracing::warn!(target: "peregrine", upstream = %upstream, why, failed, "an upstream fails its check"),
                    );
                }
            }
        }
    }
}

/// A check that is under way. Dropped with its worker it leaves the upstream to the others.
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

/// Milliseconds since the process first asked, and a day: so that nothing was ever checked at 0.
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

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => {
                f.write_str("there is no upstream: name at least one, such as http://10.0.0.7:8080")
            }
            Self::Invalid(text) => write!(
                f,
                "`{text}` is no upstream: write scheme, host and port, such as http://10.0.0.7:8080, without a query or a user"
            ),
            Self::Scheme(text) => write!(
                f,
                "`{text}` cannot be an upstream: only http:// can, and https:// with the feature `proxy-tls`"
            ),
            Self::Roots(why) => write!(
                f,
                "whom to trust over TLS is not known: {why}; install the system's certificates, or name yours by `Upstreams::with_tls`"
            ),
        }
    }
}

impl std::error::Error for UpstreamError {}

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
        let upstreams = Upstreams::new(urls).expect("they are valid");
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
            let error = Upstreams::new([url]).expect_err("it is none");
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
        assert!(turns(&[]).contains(&1), "one failure is none");
        set.well(1);
        set.ill(1, &"refused");
        assert!(turns(&[]).contains(&1), "not in a row");
        set.ill(1, &"refused");
        assert!(!turns(&[]).contains(&1) && !upstreams.states()[1].is_up);
        assert_eq!(set.choose(&[0, 2]), Some(1), "who else?");
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
            // Its time is over.
            set.all[1].down_until.store(1, Ordering::Relaxed);
            let turns = |count| (0..count).map(|_| set.choose(&[]).expect("one"));
            assert_eq!(turns(6).filter(|number| *number == 1).count(), 1, "{balance:?}");
            assert!(!upstreams.states()[1].is_up, "that one has no answer yet");
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
        let upstreams = Upstreams::new(["http://a", "http://b"]).expect("valid");
        let upstreams = upstreams.check("/health", Duration::from_secs(3600)).failures_max(1);
        let set = upstreams.shared();
        let due = || set.due().as_ref().map(Checking::number);
        let (first, second) = (set.due().expect("it is time"), set.due().expect("it is time"));
        assert_eq!([first.number(), second.number()], [0, 1]);
        assert_eq!(due(), None);
        // One that is given up is due still.
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
