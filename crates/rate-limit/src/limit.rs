//! The middleware and its settings.

use crate::check::Subjects;
use crate::counts::{Counts, RateLimitCounts};
use crate::fields;
use crate::gcra::Rate;
use crate::key::{By, Key};
#[cfg(feature = "redis")]
use crate::redis::RedisStore;
use crate::rule::Rule;
use crate::table::Table;
use http::{HeaderValue, StatusCode};
use peregrine_web::panics::contained;
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

/// Limits how often a client may call the routes inside.
///
/// ```
/// use peregrine::rate_limit::RateLimit;
/// use peregrine::App;
///
/// // 10 a second, bursts of 20, and 1000 an hour.
/// let limit = RateLimit::per_second(10).burst(20).and(RateLimit::per_hour(1000).named("hourly"));
/// // Each worker builds its application from the same value, so that all of them count together.
/// let make = move || App::new().with(limit.clone()).get("/", || "hello");
///
/// let client = make().test();
/// for _ in 0..20 {
///     assert_eq!(client.get("/").send_now().status(), 200);
/// }
/// let refused = client.get("/").send_now();
/// assert_eq!((refused.status().as_u16(), refused.header("retry-after")), (429, Some("1")));
/// ```
///
/// Clones count together: create the value outside the closure passed to `serve` and clone it in
/// there. A limit around a scope counts the requests to all routes of the scope; to limit one
/// route, wrap it in a scope. Changing a setting of a clone starts new counters.
///
/// | setting | default |
/// |---|---|
/// | [`burst`](Self::burst): requests allowed at once | the rate's count |
/// | the key | the client's address |
/// | [`ipv6_prefix`](Self::ipv6_prefix), [`ipv4_prefix`](Self::ipv4_prefix) | 64 bits, 32 bits |
/// | [`named`](Self::named) | `default` |
/// | [`keys_max`](Self::keys_max): number of keys | 65,536, which takes 1 MiB per limit |
///
/// Set the key with [`by`](Self::by), [`by_header`](Self::by_header),
/// [`by_cookie`](Self::by_cookie) or [`for_everybody`](Self::for_everybody). Behind trusted
/// proxies, the client's address is the one that they report. All settings but `keys_max` apply to
/// the most recently added limit; [`and`](Self::and) adds another one. A request must conform to
/// all limits, and a rejected request is charged to none of them.
///
/// A request over a limit gets a problem of status 429 with `Retry-After`. Responses describe all
/// limits in `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10), unless
/// [`without_fields`](Self::without_fields) is set.
///
/// **When the table is full** of recently active keys, a new key replaces the one with the least
/// debt in its set and inherits that debt. A key is therefore never let through because it was
/// forgotten, but during a flood of keys, new clients may be rejected although they have sent
/// nothing before. [`counts`](Self::counts) reports how often this happens.
#[derive(Clone)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct RateLimit(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// Built on first use, so that settings can be chained.
    ready: OnceLock<Option<Ready>>,
}

type Exempt = dyn Fn(&Parts) -> bool + Send + Sync;
type Clock = dyn Fn() -> Duration + Send + Sync;

#[derive(Clone)]
struct Settings {
    rules: Vec<Rule>,
    keys_max: usize,
    has_fields: bool,
    exempt: Option<Arc<Exempt>>,
    clock: Option<Arc<Clock>>,
    #[cfg(feature = "redis")]
    redis: Option<RedisStore>,
}

/// The validated limits and their counters.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) limits: Vec<Limit>,
    pub(crate) counts: Counts,
}

#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) name: String,
    /// The name as a quoted string.
    pub(crate) quoted: String,
    pub(crate) policy: HeaderValue,
    pub(crate) rate: Rate,
    pub(crate) is_for_everybody: bool,
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
        Self::of(Settings {
            rules: vec![Rule::new(count, period)],
            keys_max: KEYS_MAX,
            has_fields: true,
            exempt: None,
            clock: None,
            #[cfg(feature = "redis")]
            redis: None,
        })
    }

    fn of(settings: Settings) -> Self {
        Self(Arc::new(Inner { settings, ready: OnceLock::new() }))
    }

    fn set(self, set: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.0.settings.clone();
        set(&mut settings);
        Self::of(settings)
    }

    fn set_rule(self, set: impl FnOnce(&mut Rule)) -> Self {
        self.set(|settings| settings.rules.last_mut().map(set).unwrap_or_default())
    }

    /// Sets how many requests may come at once after a pause. The default is the rate's count.
    pub fn burst(self, count: u32) -> Self {
        self.set_rule(|rule| rule.burst = Some(count))
    }

    /// Names the limit in header fields and problems. Give each of several limits a different name;
    /// in Redis, limits with the same name and rate share their counters.
    pub fn named(self, name: impl Into<String>) -> Self {
        self.set_rule(|rule| rule.name = name.into())
    }

    /// Sets the key to a function of the request, such as the user that an outer middleware
    /// authenticated or the plan of a customer.
    ///
    /// ```
    /// use peregrine::rate_limit::{Key, RateLimit};
    ///
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// // Users by ID, all other clients by address.
    /// let limit = RateLimit::per_minute(100).by(|request| {
    ///     let user = request.extensions().get::<UserId>();
    ///     user.map_or_else(Key::client, |user| Key::of(user.0.to_be_bytes()))
    /// });
    /// # let _ = limit;
    /// ```
    pub fn by(self, key: impl Fn(&Parts) -> Key + Send + Sync + 'static) -> Self {
        self.set_rule(|rule| rule.by = By::Function(Arc::new(key)))
    }

    /// Sets the key to a header field, or the client's address if it is absent. Clients choose what
    /// they send: an outer middleware must have verified the value, or each new value is a new
    /// client.
    pub fn by_header(self, name: impl Into<String>) -> Self {
        self.set_rule(|rule| rule.by = By::Header(name.into()))
    }

    /// Sets the key to a cookie, or the client's address if it is absent. The warning of
    /// [`RateLimit::by_header`] applies here too.
    pub fn by_cookie(self, name: impl Into<String>) -> Self {
        self.set_rule(|rule| rule.by = By::Cookie(name.into()))
    }

    /// Counts all requests together.
    pub fn for_everybody(self) -> Self {
        self.set_rule(|rule| rule.by = By::Everybody)
    }

    /// Sets how many bits of an IPv6 address identify a client. The default is 64, because a client
    /// with one address of a /64 network can usually use all of them. If providers assign larger
    /// networks, use 56 or 48.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        self.set_rule(|rule| rule.prefixes.v6 = bits)
    }

    /// Sets how many bits of an IPv4 address identify a client. The default is 32.
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        self.set_rule(|rule| rule.prefixes.v4 = bits)
    }

    /// Adds the limits of `other`, up to eight in all; a request must conform to each. Settings
    /// that do not belong to a single limit are those of `self`.
    pub fn and(self, other: Self) -> Self {
        self.set(|settings| settings.rules.extend(other.0.settings.rules.iter().cloned()))
    }

    /// Exempts requests for which the function returns `true`.
    pub fn exempt(self, is_exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.exempt = Some(Arc::new(is_exempt)))
    }

    /// Sets how many keys each limit tracks, at 17 bytes each. The default is 65,536. With twice as
    /// many keys as are active within the time that a burst takes to refill, the table is
    /// practically never full.
    pub fn keys_max(self, keys: usize) -> Self {
        self.set(|settings| settings.keys_max = keys)
    }

    /// Sends no header field but `Retry-After`.
    pub fn without_fields(self) -> Self {
        self.set(|settings| settings.has_fields = false)
    }

    /// Counts in Redis, so that several machines share the limits. Limits with the same name and
    /// rate are one limit there: name them.
    #[cfg(feature = "redis")]
    pub fn in_redis(self, store: RedisStore) -> Self {
        self.set(|settings| settings.redis = Some(store))
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
    /// let client = App::new().with(limit).get("/", || "hello").test();
    /// assert_eq!(client.get("/").send_now().status(), 200);
    /// assert_eq!(client.get("/").send_now().status(), 429);
    /// seconds.store(60, Relaxed);
    /// assert_eq!(client.get("/").send_now().status(), 200);
    /// ```
    pub fn clock(self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.clock = Some(Arc::new(clock)))
    }

    /// Statistics of the limits since this value was created.
    #[must_use]
    pub fn counts(&self) -> RateLimitCounts {
        self.ready().map(|ready| ready.counts.read()).unwrap_or_default()
    }

    /// The validated limits, built on first use.
    pub(crate) fn ready(&self) -> Result<&Ready, Problem> {
        let ready = self.0.ready.get_or_init(|| {
            let settings = &self.0.settings;
            let limits = settings.rules.iter().map(|rule| Limit::new(rule, settings.keys_max));
            let is_sound = settings.faults().is_empty();
            let limits: Vec<_> = limits.collect::<Option<_>>().filter(|_| is_sound)?;
            Some(Ready { limits, counts: Counts::default() })
        });
        ready.as_ref().ok_or_else(|| {
            let faults = self.faults().join("; ");
            contained(
                || tracing::error!(target: "peregrine", "a rate limit has invalid settings: {faults}"),
            );
            let detail = "A rate limit of the server has invalid settings; the log has details.";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "rate-limit-invalid", detail)
        })
    }

    pub(crate) fn subjects<'r>(&self, parts: &'r Parts) -> Subjects<'r> {
        let rules = self.0.settings.rules.iter();
        rules.map(|rule| rule.by.subject(parts, rule.prefixes)).collect()
    }

    pub(crate) fn is_exempt(&self, parts: &Parts) -> bool {
        self.0.settings.exempt.as_ref().is_some_and(|is_exempt| is_exempt(parts))
    }

    pub(crate) fn has_fields(&self) -> bool {
        self.0.settings.has_fields
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis(&self) -> Option<&RedisStore> {
        self.0.settings.redis.as_ref()
    }

    /// The time in nanoseconds since an arbitrary fixed point.
    pub(crate) fn now(&self) -> u64 {
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let now = match &self.0.settings.clock {
            Some(clock) => clock(),
            None => BEGUN.elapsed(),
        };
        // Saturates at half the range, 292 years, so that adding a burst cannot overflow.
        u64::try_from(now.as_nanos()).map_or(u64::MAX / 2, |now| now.min(u64::MAX / 2))
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.0.settings.faults()
    }
}

impl Settings {
    /// Invalid settings.
    fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> = self.rules.iter().flat_map(Rule::faults).collect();
        if self.rules.len() > LIMITS_MAX {
            faults.push(format!(
                "it has {} limits, and the maximum is {LIMITS_MAX}: move the rest to another RateLimit",
                self.rules.len()
            ));
        }
        let names = self.rules.iter().map(|rule| &rule.name);
        let twice = names.enumerate().find(|(index, name)| {
            self.rules[..*index].iter().any(|earlier| earlier.name == **name)
        });
        if let Some((_, name)) = twice {
            faults.push(format!("two limits are called \"{name}\": rename one with named(..)"));
        }
        if self.keys_max == 0 {
            faults.push("keys_max(0) has no room for any key: use 1 or more".to_owned());
        }
        #[cfg(feature = "redis")]
        faults.extend(self.redis.iter().flat_map(RedisStore::faults));
        faults
    }
}

impl Limit {
    fn new(rule: &Rule, keys_max: usize) -> Option<Self> {
        let is_for_everybody = matches!(rule.by, By::Everybody);
        let table = Table::new(if is_for_everybody { 1 } else { keys_max });
        let (quoted, policy) = fields::policy(&rule.name, rule.quota());
        let (name, rate) = (rule.name.clone(), rule.rate()?);
        Some(Self { name, quoted, policy, rate, is_for_everybody, table })
    }
}

impl fmt::Debug for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.0.settings;
        f.debug_struct("RateLimit")
            .field("rules", &settings.rules)
            .field("keys_max", &settings.keys_max)
            .finish_non_exhaustive()
    }
}
