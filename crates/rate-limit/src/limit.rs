//! The middleware and its settings.

use crate::check::ResolvedKeys;
use crate::gcra::Quota;
use crate::headers;
use crate::key::{KeyExtractor, RateLimitKey};
#[cfg(feature = "redis")]
use crate::redis::RedisStore;
use crate::spec::LimitSpec;
use crate::stats::{AtomicStats, RateLimitStats};
use crate::table::Table;
use http::{HeaderValue, StatusCode};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Parts, Problem};
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

/// The default number of keys per limit.
const KEYS_MAX: usize = 65_536;
/// The maximum number of limits in one value.
pub(crate) const LIMITS_MAX: usize = 8;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Limits how often a client can call the routes inside.
///
/// ```
/// use peregrine::rate_limit::RateLimit;
/// use peregrine::App;
///
/// // 10 a second, bursts of 20, and 1000 an hour.
/// let limit = RateLimit::per_second(10).burst(20).and(RateLimit::per_hour(1000).name("hourly"));
/// // Each worker builds its application from the same value, so that all of them count together.
/// let make = move || App::new().wrap(limit.clone()).get("/", || "hello");
///
/// let client = make().test();
/// for _ in 0..20 {
///     assert_eq!(client.get("/").send_blocking().status(), 200);
/// }
/// let refused = client.get("/").send_blocking();
/// assert_eq!((refused.status().as_u16(), refused.header("retry-after")), (429, Some("1")));
/// ```
///
/// Clones share their counters: create the value outside the closure passed to `serve` and clone it
/// in there. A limit around a scope counts the requests to all routes of the scope; to limit one
/// route, wrap it in a scope. Changing a setting of a clone starts new counters.
///
/// | setting | default |
/// |---|---|
/// | [`burst`](Self::burst): requests allowed in immediate succession | the rate's count |
/// | the key | the client's address |
/// | [`ipv6_prefix`](Self::ipv6_prefix), [`ipv4_prefix`](Self::ipv4_prefix) | 64 bits, 32 bits |
/// | [`name`](Self::name) | `default` |
/// | [`keys_max`](Self::keys_max): number of keys | 65,536, which takes 1 MiB per limit |
///
/// Set the key with [`key_by`](Self::key_by), [`key_by_header`](Self::key_by_header),
/// [`key_by_cookie`](Self::key_by_cookie) or [`global`](Self::global). Behind trusted proxies, the
/// client's address is the one that they report. All settings but `keys_max` apply to the most
/// recently added limit; [`and`](Self::and) adds another one. A request must conform to all limits,
/// and a rejected request is charged to none of them.
///
/// A request over a limit gets a problem with status 429 with `Retry-After`. Responses describe all
/// limits in `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10), unless
/// [`without_headers`](Self::without_headers) is set.
///
/// **When the table is full** of recently active keys, a new key replaces the one with the least
/// debt in its set and inherits that debt. A key is therefore never allowed because it was
/// evicted, but during a flood of keys, new clients may be rejected although they have sent
/// nothing before. [`stats`](Self::stats) reports how often this happens.
#[doc(alias = "Governor")]
#[doc(alias = "throttle")]
#[doc(alias = "limit_req")]
#[derive(Clone)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct RateLimit(Arc<Inner>);

struct Inner {
    settings: RateLimitSettings,
    /// Built on first use, so that settings can be chained.
    compiled: OnceLock<Option<CompiledLimits>>,
}

type ExemptFn = dyn Fn(&Parts) -> bool + Send + Sync;
type Clock = dyn Fn() -> Duration + Send + Sync;

#[derive(Clone)]
struct RateLimitSettings {
    limits: Vec<LimitSpec>,
    keys_max: usize,
    sends_headers: bool,
    exempt: Option<Arc<ExemptFn>>,
    clock: Option<Arc<Clock>>,
    #[cfg(feature = "redis")]
    redis: Option<RedisStore>,
}

/// The validated limits and their counters.
#[derive(Debug)]
pub(crate) struct CompiledLimits {
    pub(crate) limits: Vec<CompiledLimit>,
    pub(crate) counts: AtomicStats,
}

#[derive(Debug)]
pub(crate) struct CompiledLimit {
    pub(crate) name: String,
    /// The name as a quoted string.
    pub(crate) quoted_name: String,
    pub(crate) policy: HeaderValue,
    pub(crate) quota: Quota,
    pub(crate) is_global: bool,
    pub(crate) table: Table,
}

impl RateLimit {
    /// Allows `count` requests per second.
    pub fn per_second(count: u32) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// Allows `count` requests per minute.
    pub fn per_minute(count: u32) -> Self {
        Self::new(count, MINUTE)
    }

    /// Allows `count` requests per hour.
    pub fn per_hour(count: u32) -> Self {
        Self::new(count, HOUR)
    }

    /// Allows `count` requests per day.
    pub fn per_day(count: u32) -> Self {
        Self::new(count, DAY)
    }

    /// Allows `count` requests per period, evenly: after a burst, one more is allowed every
    /// `period / count`, rounded up to a nanosecond.
    pub fn new(count: u32, period: Duration) -> Self {
        Self::from_settings(RateLimitSettings {
            limits: vec![LimitSpec::new(count, period)],
            keys_max: KEYS_MAX,
            sends_headers: true,
            exempt: None,
            clock: None,
            #[cfg(feature = "redis")]
            redis: None,
        })
    }

    fn from_settings(settings: RateLimitSettings) -> Self {
        Self(Arc::new(Inner { settings, compiled: OnceLock::new() }))
    }

    fn configure(self, update: impl FnOnce(&mut RateLimitSettings)) -> Self {
        let mut settings = self.0.settings.clone();
        update(&mut settings);
        Self::from_settings(settings)
    }

    fn configure_limit(self, update: impl FnOnce(&mut LimitSpec)) -> Self {
        self.configure(|settings| settings.limits.last_mut().map(update).unwrap_or_default())
    }

    /// Sets how many requests are allowed in immediate succession after a pause. The default is the
    /// rate's count.
    pub fn burst(self, count: u32) -> Self {
        self.configure_limit(|spec| spec.burst = Some(count))
    }

    /// Names the limit in header fields and problems. Give each of several limits a different name;
    /// in Redis, limits with the same name, rate and burst share their counters.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.configure_limit(|spec| spec.name = name.into())
    }

    /// Sets the key to a function of the request, such as the user that an outer middleware
    /// authenticated or the plan of a customer.
    ///
    /// ```
    /// use peregrine::rate_limit::{RateLimitKey, RateLimit};
    ///
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// // Users by ID, all other clients by address.
    /// let limit = RateLimit::per_minute(100).key_by(|request| {
    ///     let user = request.extensions().get::<UserId>();
    ///     let by_user = |user: &UserId| RateLimitKey::from_value(user.0.to_be_bytes());
    ///     user.map_or_else(RateLimitKey::client_ip, by_user)
    /// });
    /// # let _ = limit;
    /// ```
    #[doc(alias = "key_extractor")]
    #[doc(alias = "keyGenerator")]
    pub fn key_by(self, key: impl Fn(&Parts) -> RateLimitKey + Send + Sync + 'static) -> Self {
        self.configure_limit(|spec| spec.key = KeyExtractor::Function(Arc::new(key)))
    }

    /// Sets the key to a header field, or the client's address if it is absent. Clients choose what
    /// they send: an outer middleware must have verified the value, or each new value is a new
    /// client. Values of `Authorization` that differ only in the case of the scheme or in the
    /// spaces after it are equal.
    pub fn key_by_header(self, name: impl Into<String>) -> Self {
        self.configure_limit(|spec| spec.key = KeyExtractor::Header(name.into()))
    }

    /// Sets the key to the decoded value of a cookie, or the client's address if it is absent. The
    /// warning of [`RateLimit::key_by_header`] applies here too.
    pub fn key_by_cookie(self, name: impl Into<String>) -> Self {
        self.configure_limit(|spec| spec.key = KeyExtractor::Cookie(name.into()))
    }

    /// Counts all requests together.
    #[doc(alias = "GlobalKeyExtractor")]
    pub fn global(self) -> Self {
        self.configure_limit(|spec| spec.key = KeyExtractor::Global)
    }

    /// Sets how many bits of an IPv6 address identify a client. The default is 64, because a client
    /// with one address of a /64 network can usually use all of them. If providers assign larger
    /// networks, use 56 or 48.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        self.configure_limit(|spec| spec.prefix_lengths.v6 = bits)
    }

    /// Sets how many bits of an IPv4 address identify a client. The default is 32.
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        self.configure_limit(|spec| spec.prefix_lengths.v4 = bits)
    }

    /// Adds the limits of `other`, up to eight in all; a request must conform to each. Settings
    /// that do not belong to a single limit are those of `self`.
    pub fn and(self, other: Self) -> Self {
        self.configure(|settings| settings.limits.extend(other.0.settings.limits.iter().cloned()))
    }

    /// Exempts requests for which the function returns `true`.
    #[doc(alias = "skip")]
    pub fn exempt_if(self, is_exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.configure(|settings| settings.exempt = Some(Arc::new(is_exempt)))
    }

    /// Sets how many keys each limit tracks, at 17 bytes each. The default is 65,536. With twice as
    /// many keys as are active within the time that a burst takes to refill, the table is
    /// practically never full.
    pub fn keys_max(self, keys: usize) -> Self {
        self.configure(|settings| settings.keys_max = keys)
    }

    /// Omits all header fields except `Retry-After`.
    pub fn without_headers(self) -> Self {
        self.configure(|settings| settings.sends_headers = false)
    }

    /// Counts in Redis, so that several machines share the limits. Limits with the same name, rate
    /// and burst are one limit there: name them.
    #[cfg(feature = "redis")]
    pub fn redis_store(self, store: RedisStore) -> Self {
        self.configure(|settings| settings.redis = Some(store))
    }

    /// Replaces the system clock, for tests. The function returns the time since an arbitrary fixed
    /// point.
    ///
    /// ```
    /// use peregrine::App;
    /// use peregrine::rate_limit::RateLimit;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::time::Duration;
    ///
    /// let seconds = Arc::new(AtomicU64::new(0));
    /// let shared = Arc::clone(&seconds);
    /// let clock = move || Duration::from_secs(shared.load(Relaxed));
    /// let limit = RateLimit::per_minute(1).clock(clock);
    /// let client = App::new().wrap(limit).get("/", || "hello").test();
    /// assert_eq!(client.get("/").send_blocking().status(), 200);
    /// assert_eq!(client.get("/").send_blocking().status(), 429);
    /// seconds.store(60, Relaxed);
    /// assert_eq!(client.get("/").send_blocking().status(), 200);
    /// ```
    pub fn clock(self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.configure(|settings| settings.clock = Some(Arc::new(clock)))
    }

    /// Returns the statistics of the limits since this value was created.
    #[must_use]
    pub fn stats(&self) -> RateLimitStats {
        self.compiled().map(|compiled| compiled.counts.snapshot()).unwrap_or_default()
    }

    /// The validated limits, built on first use.
    pub(crate) fn compiled(&self) -> Result<&CompiledLimits, Problem> {
        let compiled = self.0.compiled.get_or_init(|| {
            let settings = &self.0.settings;
            let limits =
                settings.limits.iter().map(|spec| CompiledLimit::new(spec, settings.keys_max));
            let is_valid = settings.config_errors().is_empty();
            let limits: Vec<_> = limits.collect::<Option<_>>().filter(|_| is_valid)?;
            Some(CompiledLimits { limits, counts: AtomicStats::default() })
        });
        compiled.as_ref().ok_or_else(|| {
            let errors = self.config_errors().join("; ");
            catch_subscriber_panic(
                || tracing::error!(target: "peregrine", "a rate limit has invalid settings: {errors}"),
            );
            let detail = "A rate limit of the server has invalid settings; the log has details.";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "rate-limit-invalid", detail)
        })
    }

    pub(crate) fn resolve_keys<'r>(&self, parts: &'r Parts) -> ResolvedKeys<'r> {
        let specs = self.0.settings.limits.iter();
        specs.map(|spec| spec.key.resolve(parts, spec.prefix_lengths)).collect()
    }

    pub(crate) fn is_exempt(&self, parts: &Parts) -> bool {
        self.0.settings.exempt.as_ref().is_some_and(|is_exempt| is_exempt(parts))
    }

    pub(crate) fn sends_headers(&self) -> bool {
        self.0.settings.sends_headers
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis(&self) -> Option<&RedisStore> {
        self.0.settings.redis.as_ref()
    }

    /// The time in nanoseconds since an arbitrary fixed point.
    pub(crate) fn now(&self) -> u64 {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let now = match &self.0.settings.clock {
            Some(clock) => clock(),
            None => START.elapsed(),
        };
        // Saturates at half the range, 292 years, so that adding a burst cannot overflow.
        u64::try_from(now.as_nanos()).map_or(u64::MAX / 2, |now| now.min(u64::MAX / 2))
    }

    pub(crate) fn config_errors(&self) -> Vec<String> {
        self.0.settings.config_errors()
    }
}

impl RateLimitSettings {
    /// Describes the invalid settings.
    fn config_errors(&self) -> Vec<String> {
        let mut errors: Vec<_> = self.limits.iter().flat_map(LimitSpec::config_errors).collect();
        if self.limits.len() > LIMITS_MAX {
            errors.push(format!(
                "it has {} limits, and the maximum is {LIMITS_MAX}: move the rest to another RateLimit",
                self.limits.len()
            ));
        }
        let names = self.limits.iter().map(|spec| &spec.name);
        let duplicate = names.enumerate().find(|(index, name)| {
            self.limits[..*index].iter().any(|earlier| earlier.name == **name)
        });
        if let Some((_, name)) = duplicate {
            errors.push(format!("two limits are called \"{name}\": rename one with name(..)"));
        }
        if self.keys_max == 0 {
            errors.push("keys_max(0) has no room for any key: use 1 or more".to_owned());
        }
        #[cfg(feature = "redis")]
        errors.extend(self.redis.iter().flat_map(RedisStore::config_errors));
        errors
    }
}

impl CompiledLimit {
    fn new(spec: &LimitSpec, keys_max: usize) -> Option<Self> {
        let is_global = matches!(spec.key, KeyExtractor::Global);
        let table = Table::new(if is_global { 1 } else { keys_max });
        let (quoted_name, policy) = headers::policy_header(&spec.name, spec.policy_quota());
        let (name, quota) = (spec.name.clone(), spec.quota()?);
        Some(Self { name, quoted_name, policy, quota, is_global, table })
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.0.settings;
        f.debug_struct("RateLimit")
            .field("rules", &settings.limits)
            .field("keys_max", &settings.keys_max)
            .finish_non_exhaustive()
    }
}
