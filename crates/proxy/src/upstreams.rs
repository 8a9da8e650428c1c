//! The upstream servers: their health, and the choice of the next one.

use crate::error::UpstreamError;
#[cfg(feature = "tls")]
use crate::upstream_tls::{UpstreamTls, native_roots_config};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use peregrine_web::panic::catch_subscriber_panic;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The default number of consecutive failures after which an upstream is skipped.
const FAILURES_MAX: u32 = 3;
/// The default time for which a failing upstream is skipped.
const FAIL_TIMEOUT: Duration = Duration::from_secs(10);

/// Servers that serve the same content. Clones share one set: create it outside the application's
/// closure and clone it into the closure, so that the workers share its health state.
///
/// ```
/// use peregrine::proxy::{LoadBalancing, Upstreams};
/// use std::time::Duration;
///
/// let upstreams = Upstreams::new(["http://10.0.0.7:8080", "http://10.0.0.8:8080"])?
///     .load_balancing(LoadBalancing::LeastRequests)
///     .health_check("/health", Duration::from_secs(5));
/// # let _ = upstreams;
/// # Ok::<(), peregrine::proxy::UpstreamError>(())
/// ```
#[doc(alias = "backends")]
#[doc(alias = "upstream")]
#[derive(Clone)]
pub struct Upstreams(Arc<UpstreamSet>);

pub(crate) struct UpstreamSet {
    pub(crate) upstreams: Vec<Upstream>,
    load_balancing: LoadBalancing,
    /// Incremented with each selection; the upstream at which the next rotation starts.
    next: AtomicUsize,
    failures_max: u32,
    fail_timeout: Duration,
    pub(crate) health_check: Option<HealthCheck>,
}

/// How the next upstream is chosen among those that are up.
#[doc(alias = "balance")]
#[doc(alias = "Balancer")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadBalancing {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The one with the fewest requests in progress on all workers; among equals, each in turn.
    #[doc(alias = "least_conn")]
    LeastRequests,
}

/// The health check of upstreams.
#[derive(Clone, Debug)]
pub(crate) struct HealthCheck {
    pub(crate) path: Uri,
    pub(crate) interval: Duration,
}

/// One server.
pub(crate) struct Upstream {
    /// The host to connect to.
    pub(crate) host: String,
    pub(crate) port: u16,
    is_secure: bool,
    /// The value of `Host`, if it is not the client's.
    pub(crate) authority: HeaderValue,
    /// The prefix of every path, without a trailing slash.
    pub(crate) base_path: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<UpstreamTls>,
    /// Whether it speaks HTTP/2 without negotiation.
    #[cfg(feature = "tls")]
    pub(crate) http2_prior_knowledge: bool,
    pub(crate) in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Until when requests skip it after failures, in the milliseconds of [`now`]; 0 while it is
    /// up.
    unhealthy_until: AtomicU64,
    /// When its last health check ended, in the milliseconds of [`now`].
    checked_at: AtomicU64,
    check_in_progress: AtomicBool,
    /// Consecutive failed checks. The results of requests do not change it.
    check_failures: AtomicU32,
    /// Whether it has failed too many consecutive checks. It is then skipped until it passes one.
    is_failing_checks: AtomicBool,
}

/// The current state of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamStatus {
    /// Host and port.
    pub authority: String,
    /// Whether requests are sent to it.
    pub is_healthy: bool,
    /// Requests in progress.
    pub in_flight: usize,
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
        let upstreams: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Upstream::parse(url.as_ref())).collect();
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "only TLS changes them"))]
        let mut upstreams = upstreams?;
        #[cfg(feature = "tls")]
        if upstreams.iter().any(Upstream::is_secure) {
            let config = native_roots_config()?;
            configure_tls(&mut upstreams, &config)?;
        }
        Self::from_list(upstreams)
    }

    /// Like [`Upstreams::new`], with your own TLS configuration, for example with a private
    /// authority or a client certificate. The ALPN protocols in `config` are ignored.
    ///
    /// # Errors
    /// There are no URLs, or one is not the URL of a server.
    #[cfg(feature = "tls")]
    pub fn with_tls_config(
        urls: impl IntoIterator<Item: AsRef<str>>,
        config: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, UpstreamError> {
        let upstreams: Result<Vec<_>, _> =
            urls.into_iter().map(|url| Upstream::parse(url.as_ref())).collect();
        let mut upstreams = upstreams?;
        configure_tls(&mut upstreams, config)?;
        Self::from_list(upstreams)
    }

    /// Uses HTTP/2 without negotiation with all `http` upstreams, which gRPC services without TLS
    /// require. Upgrades still use HTTP/1.1.
    ///
    /// # Panics
    /// The set was already cloned.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn http2_prior_knowledge(self) -> Self {
        self.configure(|set| {
            set.upstreams.iter_mut().for_each(|upstream| upstream.http2_prior_knowledge = true)
        })
    }

    fn from_list(upstreams: Vec<Upstream>) -> Result<Self, UpstreamError> {
        if upstreams.is_empty() {
            return Err(UpstreamError::Empty);
        }
        Ok(Self(Arc::new(UpstreamSet {
            upstreams,
            load_balancing: LoadBalancing::default(),
            next: AtomicUsize::new(0),
            failures_max: FAILURES_MAX,
            fail_timeout: FAIL_TIMEOUT,
            health_check: None,
        })))
    }

    fn configure(mut self, set: impl FnOnce(&mut UpstreamSet)) -> Self {
        set(Arc::get_mut(&mut self.0).expect("upstreams are configured before the first clone"));
        self
    }

    /// Sets how the next upstream is chosen. Default: [`LoadBalancing::RoundRobin`].
    ///
    /// # Panics
    /// The set was already cloned.
    #[doc(alias = "lb_policy")]
    #[must_use]
    pub fn load_balancing(self, load_balancing: LoadBalancing) -> Self {
        self.configure(|set| set.load_balancing = load_balancing)
    }

    /// Sets the number of consecutive failures after which an upstream is skipped. Failed
    /// connections, missing responses and invalid responses are failures. Default: 3.
    ///
    /// # Panics
    /// The set was already cloned.
    #[must_use]
    pub fn failures_max(self, failures: u32) -> Self {
        self.configure(|set| set.failures_max = failures.max(1))
    }

    /// Sets how long a failing upstream is skipped. After that, a single request is sent to it as a
    /// trial. All other requests still skip the upstream until it has responded to the trial, or
    /// until the same time has passed again. Default: 10 s.
    ///
    /// # Panics
    /// The set was already cloned.
    #[must_use]
    pub fn fail_timeout(self, time: Duration) -> Self {
        self.configure(|set| set.fail_timeout = time)
    }

    /// Checks the health of each upstream with a GET of `path`. A response with a status below 400
    /// passes. An upstream that fails as many consecutive checks as [`Upstreams::failures_max`] is
    /// skipped until it passes one. Checks run concurrently with requests, at most once per
    /// `interval`, which is also their time limit. Requests start them, so an idle proxy sends no
    /// checks.
    ///
    /// # Panics
    /// `path` does not begin with a slash, or the set was already cloned.
    #[doc(alias = "active_health_check")]
    #[must_use]
    pub fn health_check(self, path: &str, interval: Duration) -> Self {
        let uri = path.parse::<Uri>().ok().filter(|_| path.starts_with('/'));
        let path = uri.unwrap_or_else(|| {
            panic!("`{path}` is not a path to check: it must begin with a slash")
        });
        self.configure(|set| set.health_check = Some(HealthCheck { path, interval }))
    }

    /// Returns the current state of each upstream, for your own pages and metrics.
    #[must_use]
    pub fn statuses(&self) -> Vec<UpstreamStatus> {
        let now = now();
        let status = |upstream: &Upstream| UpstreamStatus {
            authority: format!("{}:{}", upstream.host, upstream.port),
            is_healthy: upstream.is_healthy(now),
            in_flight: upstream.in_flight.load(Ordering::Relaxed),
            failures: upstream.failures.load(Ordering::Relaxed),
        };
        self.0.upstreams.iter().map(status).collect()
    }

    pub(crate) fn set(&self) -> &Arc<UpstreamSet> {
        &self.0
    }
}

impl UpstreamSet {
    /// Selects the next upstream, excluding those in `tried`, and returns its index. If none is up,
    /// one that is down is selected: it may have recovered, and refusing the request would not help
    /// the client.
    pub(crate) fn select(&self, tried: &[usize]) -> Option<usize> {
        let (now, count) = (now(), self.upstreams.len());
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let rotated = (0..count).map(|step| first.wrapping_add(step) % count);
        let mut candidates: Vec<_> = rotated.filter(|index| !tried.contains(index)).collect();
        if candidates.iter().any(|index| self.upstreams[*index].is_healthy(now)) {
            candidates.retain(|index| self.upstreams[*index].is_healthy(now));
        }
        let selected = match self.load_balancing {
            LoadBalancing::RoundRobin => candidates.first().copied(),
            LoadBalancing::LeastRequests => candidates
                .into_iter()
                .min_by_key(|index| self.upstreams[*index].in_flight.load(Ordering::Relaxed)),
        };
        // An upstream whose time to be skipped is over gets one request as a trial. The response
        // may take long. Other requests skip the upstream until it has responded to the trial, or
        // for the same time again.
        let unhealthy_until = &self.upstreams[selected?].unhealthy_until;
        let previous = unhealthy_until.load(Ordering::Relaxed);
        let is_trial = previous != 0 && previous <= now;
        let relaxed = Ordering::Relaxed;
        if is_trial
            && unhealthy_until
                .compare_exchange(previous, self.unhealthy_until(now), relaxed, relaxed)
                .is_err()
        {
            // A request on another worker is already the trial.
            return self.select(tried);
        }
        selected
    }

    /// Whether requests failed so often that the upstream is skipped, except for a trial, until it
    /// responds.
    pub(crate) fn is_unhealthy(&self, index: usize) -> bool {
        self.upstreams[index].unhealthy_until.load(Ordering::Relaxed) != 0
    }

    /// Returns the time until which an upstream that fails now is skipped.
    fn unhealthy_until(&self, now: u64) -> u64 {
        now.saturating_add(millis(self.fail_timeout)).max(1)
    }

    /// Records that an upstream responded.
    pub(crate) fn record_success(&self, index: usize) {
        let upstream = &self.upstreams[index];
        upstream.failures.store(0, Ordering::Relaxed);
        if upstream.unhealthy_until.swap(0, Ordering::Relaxed) != 0 {
            catch_subscriber_panic(|| {
                tracing::info!(
                    target: "peregrine",
                    upstream = %upstream,
                    "an upstream is up again"
                );
            });
        }
    }

    /// Records that an upstream failed.
    pub(crate) fn record_failure(&self, index: usize, error: &dyn fmt::Display) {
        let upstream = &self.upstreams[index];
        let failures = upstream.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.failures_max {
            return;
        }
        let until = self.unhealthy_until(now());
        if upstream.unhealthy_until.swap(until, Ordering::Relaxed) == 0 {
            catch_subscriber_panic(|| {
                tracing::warn!(
                    target: "peregrine",
                    upstream = %upstream,
                    error = %error,
                    failures,
                    "an upstream is down"
                );
            });
        }
    }

    /// Claims the next upstream whose check is due.
    pub(crate) fn next_due_check(self: &Arc<Self>) -> Option<HealthCheckGuard> {
        let interval_millis = millis(self.health_check.as_ref()?.interval);
        let now = now();
        let index = self.upstreams.iter().position(|upstream| {
            let is_due =
                upstream.checked_at.load(Ordering::Relaxed).saturating_add(interval_millis) <= now;
            is_due && !upstream.check_in_progress.swap(true, Ordering::Relaxed)
        });
        index.map(|index| HealthCheckGuard(Arc::clone(self), index))
    }

    /// Records the result of a check.
    pub(crate) fn record_check(&self, index: usize, outcome: Result<(), String>) {
        let upstream = &self.upstreams[index];
        upstream.checked_at.store(now(), Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                upstream.check_failures.store(0, Ordering::Relaxed);
                if upstream.is_failing_checks.swap(false, Ordering::Relaxed) {
                    catch_subscriber_panic(|| {
                        tracing::info!(
                            target: "peregrine",
                            upstream = %upstream,
                            "an upstream passes its check again"
                        );
                    });
                }
                self.record_success(index);
            }
            Err(error) => {
                let failed =
                    upstream.check_failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if failed >= self.failures_max
                    && !upstream.is_failing_checks.swap(true, Ordering::Relaxed)
                {
                    catch_subscriber_panic(|| {
                        tracing::warn!(
                            target: "peregrine",
                            upstream = %upstream,
                            error,
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
pub(crate) struct HealthCheckGuard(Arc<UpstreamSet>, usize);

impl HealthCheckGuard {
    pub(crate) fn set(&self) -> &UpstreamSet {
        &self.0
    }

    pub(crate) fn index(&self) -> usize {
        self.1
    }
}

impl Drop for HealthCheckGuard {
    fn drop(&mut self) {
        self.0.upstreams[self.1].check_in_progress.store(false, Ordering::Relaxed);
    }
}

impl Upstream {
    fn parse(text: &str) -> Result<Self, UpstreamError> {
        let invalid = || UpstreamError::InvalidUrl(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => {}
            Some(scheme) if *scheme == Scheme::HTTPS && cfg!(feature = "tls") => {}
            Some(_) => return Err(UpstreamError::UnsupportedScheme(text.to_owned())),
            None => return Err(invalid()),
        }
        let authority: &Authority = uri.authority().ok_or_else(invalid)?;
        if uri.query().is_some() || authority.as_str().contains('@') || authority.host().is_empty()
        {
            return Err(invalid());
        }
        let host = authority.host();
        let is_secure = uri.scheme() == Some(&Scheme::HTTPS);
        let has_port = authority.as_str().len() > host.len() + 1;
        if has_port && authority.port_u16().is_none() {
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
            http2_prior_knowledge: false,
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| invalid())?,
            base_path: uri.path().trim_end_matches('/').to_owned(),
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            unhealthy_until: AtomicU64::new(0),
            checked_at: AtomicU64::new(0),
            check_in_progress: AtomicBool::new(false),
            check_failures: AtomicU32::new(0),
            is_failing_checks: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Whether requests may be sent to it: it passes its checks, and is not skipped after failures,
    /// or that time is over.
    fn is_healthy(&self, now: u64) -> bool {
        !self.is_failing_checks.load(Ordering::Relaxed)
            && self.unhealthy_until.load(Ordering::Relaxed) <= now
    }
}

#[cfg(feature = "tls")]
fn configure_tls(
    upstreams: &mut [Upstream],
    config: &Arc<rustls::ClientConfig>,
) -> Result<(), UpstreamError> {
    for upstream in upstreams.iter_mut().filter(|upstream| upstream.is_secure) {
        let tls = UpstreamTls::new(&upstream.host, config);
        upstream.tls = Some(tls.ok_or_else(|| UpstreamError::InvalidUrl(upstream.to_string()))?);
    }
    Ok(())
}

/// Returns the milliseconds since the first call, plus one day, so that a `checked_at` of 0 is long
/// ago.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    millis(START.get_or_init(Instant::now).elapsed()) + 24 * 60 * 60 * 1000
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
        f.debug_list().entries(self.statuses()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three(balance: LoadBalancing) -> Upstreams {
        let urls = ["http://a:1", "http://b:2", "http://c:3"];
        let upstreams = Upstreams::new(urls).expect("valid URLs");
        upstreams.load_balancing(balance).failures_max(2).fail_timeout(Duration::from_secs(3600))
    }

    #[test]
    fn parses_urls_and_rejects_invalid_ones() {
        let parsed = Upstreams::new(["http://a", "http://[::1]:8080/base/"]).expect("valid");
        let upstreams = &parsed.set().upstreams;
        assert_eq!(
            (upstreams[0].host.as_str(), upstreams[0].port, upstreams[0].base_path.as_str()),
            ("a", 80, "")
        );
        assert_eq!(
            (upstreams[1].host.as_str(), upstreams[1].port, upstreams[1].base_path.as_str()),
            ("::1", 8080, "/base")
        );
        assert_eq!(upstreams[1].authority, "[::1]:8080");
        assert_eq!(Upstreams::new([""; 0]).err(), Some(UpstreamError::Empty));
        for (url, is_scheme_error) in [
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
            assert_eq!(
                matches!(error, UpstreamError::UnsupportedScheme(_)),
                is_scheme_error,
                "{url} {error}"
            );
        }
    }

    #[test]
    fn round_robin_skips_failing_upstreams() {
        let upstreams = three(LoadBalancing::RoundRobin);
        let set = upstreams.set();
        let select_six =
            |tried: &[usize]| (0..6).map(|_| set.select(tried).expect("one")).collect::<Vec<_>>();
        assert_eq!(select_six(&[]), [0, 1, 2, 0, 1, 2]);
        assert!(select_six(&[0, 2]).iter().all(|index| *index == 1));
        set.record_failure(1, &"refused");
        assert!(select_six(&[]).contains(&1), "one failure is not enough");
        set.record_success(1);
        set.record_failure(1, &"refused");
        assert!(select_six(&[]).contains(&1), "the failures are not consecutive");
        set.record_failure(1, &"refused");
        assert!(!select_six(&[]).contains(&1) && !upstreams.statuses()[1].is_healthy);
        assert_eq!(set.select(&[0, 2]), Some(1), "it is the only one left");
        assert_eq!(set.select(&[0, 1, 2]), None);
        set.record_success(1);
        assert!(select_six(&[]).contains(&1));
    }

    #[test]
    fn only_one_trial_request_is_sent_to_an_upstream_that_was_down() {
        for balance in [LoadBalancing::RoundRobin, LoadBalancing::LeastRequests] {
            let upstreams = three(balance);
            let set = upstreams.set();
            set.record_failure(1, &"refused");
            set.record_failure(1, &"refused");
            // The time for which it is skipped is over.
            set.upstreams[1].unhealthy_until.store(1, Ordering::Relaxed);
            let select_many = |count| (0..count).map(|_| set.select(&[]).expect("one"));
            assert_eq!(select_many(6).filter(|index| *index == 1).count(), 1, "{balance:?}");
            assert!(!upstreams.statuses()[1].is_healthy, "the trial has no response yet");
            set.record_success(1);
            assert!(select_many(6).any(|index| index == 1), "{balance:?}");
        }
    }

    #[test]
    fn selects_the_upstream_with_the_fewest_requests() {
        let upstreams = three(LoadBalancing::LeastRequests);
        let set = upstreams.set();
        for (index, in_flight) in [3, 1, 2].into_iter().enumerate() {
            set.upstreams[index].in_flight.store(in_flight, Ordering::Relaxed);
        }
        assert_eq!(
            [set.select(&[]), set.select(&[1]), set.select(&[1, 2])],
            [Some(1), Some(2), Some(0)]
        );
    }

    #[test]
    fn a_check_is_due_once_per_interval() {
        let upstreams = Upstreams::new(["http://a", "http://b"]).expect("valid URLs");
        let upstreams =
            upstreams.health_check("/health", Duration::from_secs(3600)).failures_max(1);
        let set = upstreams.set();
        let due = || set.next_due_check().as_ref().map(HealthCheckGuard::index);
        let (first, second) =
            (set.next_due_check().expect("a check"), set.next_due_check().expect("a check"));
        assert_eq!([first.index(), second.index()], [0, 1]);
        assert_eq!(due(), None);
        // A check that was dropped is due again.
        drop(first);
        assert_eq!((due(), due()), (Some(0), Some(0)));
        drop(second);
        set.record_check(0, Err("500".to_owned()));
        set.record_check(1, Ok(()));
        assert_eq!(due(), None);
        assert_eq!(
            upstreams.statuses().iter().map(|state| state.is_healthy).collect::<Vec<_>>(),
            [false, true]
        );
    }
}
