//! The limits, and how they are set.

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

/// How many keys a limit tells apart.
const KEYS_MAX: usize = 65_536;
/// How many limits one value may have.
pub(crate) const LIMITS_MAX: usize = 8;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Lets a client's requests in only so often, for the routes inside.
///
/// ```
/// use peregrine::rate_limit::RateLimit;
/// use peregrine::App;
///
/// // Ten a second, twenty at once; and a thousand an hour.
/// let limit = RateLimit::per_second(10).burst(20).and(RateLimit::per_hour(1000).named("hourly"));
/// // Each worker makes its application of the same value, so that they count together.
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
/// Clones count together, wherever they are: make the value outside of what `serve` is given, and clone it in. One around a scope counts what all of its
/// routes are asked; for one route, give it a scope of its own. A change of a clone's settings begins new counts.
///
/// | setting | default |
/// |---|---|
/// | [`burst`](Self::burst): how many may come at once | as many as the rate has: `per_hour(1000)` lets a thousand come at once |
/// | whose requests count together: [`by`](Self::by), [`by_header`](Self::by_header), [`by_cookie`](Self::by_cookie), [`for_everybody`](Self::for_everybody) | the client's address, behind trusted proxies too |
/// | [`ipv6_prefix`](Self::ipv6_prefix), [`ipv4_prefix`](Self::ipv4_prefix): how much of it | 64 bits, 32 bits |
/// | [`named`](Self::named) | `default` |
/// | [`keys_max`](Self::keys_max): how many keys are told apart | 65,536, for which 1 MiB is taken for each limit when it first counts |
///
/// The first five are those of the limit that was named last, and [`and`](Self::and) names further ones. A request must keep all limits, and
/// one that is refused costs nothing with any of them.
///
/// A request that comes too early is a problem of status 429 with `Retry-After`. Responses tell of all limits by `RateLimit-Policy` and
/// `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10), unless [`without_fields`](Self::without_fields) says otherwise.
///
/// **When the table is full** of keys that have asked of late, a new key takes the place of the one in its part of the table that owes
/// least, together with what that owes. Nobody is let in for having been forgotten; under a flood of keys newcomers may be refused that have asked for
/// nothing. [`counts`](Self::counts) says how often there was no place.
#[derive(Clone)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct RateLimit(Arc<Inner>);

struct Inner {
    settings: Settings,
    /// Made when first asked for, so that settings may be made one after another.
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

/// What requests are judged by.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) limits: Vec<Limit>,
    pub(crate) counts: Counts,
}

#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) name: String,
    /// The name as fields have it.
    pub(crate) quoted: String,
    pub(crate) policy: HeaderValue,
    pub(crate) rate: Rate,
    pub(crate) is_for_everybody: bool,
    pub(crate) table: Table,
}

impl RateLimit {
    /// So many in each second.
    pub fn per_second(count: u32) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// So many in each minute.
    pub fn per_minute(count: u32) -> Self {
        Self::new(count, MINUTE)
    }

    /// So many in each hour.
    pub fn per_hour(count: u32) -> Self {
        Self::new(count, HOUR)
    }

    /// So many in each day.
    pub fn per_day(count: u32) -> Self {
        Self::new(count, DAY)
    }

    /// So many in each period, evenly: after a burst, one comes back in each `period / count`, rounded up to a nanosecond.
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

    /// How many may come at once. As many are let in after a pause, then the rate counts. The default is what the rate has for its period.
    pub fn burst(self, count: u32) -> Self {
        self.set_rule(|rule| rule.burst = Some(count))
    }

    /// What the limit is called in fields and problems. Each of several should have a name of its own; in Redis, those that have the same one
    /// and the same rate count together.
    pub fn named(self, name: impl Into<String>) -> Self {
        self.set_rule(|rule| rule.name = name.into())
    }

    /// Counts by what a function makes of the request: the user that a middleware further out found, the plan of a customer.
    ///
    /// ```
    /// use peregrine::rate_limit::{Key, RateLimit};
    ///
    /// #[derive(Clone)]
    /// struct UserId(u64);
    ///
    /// // Users by their number, and everybody else by address.
    /// let limit = RateLimit::per_minute(100).by(|request| match request.extensions().get::<UserId>() {
    ///     Some(user) => Key::of(user.0.to_be_bytes()),
    ///     None => Key::client(),
    /// });
    /// # let _ = limit;
    /// ```
    pub fn by(self, key: impl Fn(&Parts) -> Key + Send + Sync + 'static) -> Self {
        self.set_rule(|rule| rule.by = By::Function(Arc::new(key)))
    }

    /// Counts by the value of a header field, and requests without it by address. Clients choose what they send: it must have been checked
    /// further out, or every new value is a new client.
    pub fn by_header(self, name: impl Into<String>) -> Self {
        self.set_rule(|rule| rule.by = By::Header(name.into()))
    }

    /// Counts by the value of a cookie, and requests without it by address. As with [`RateLimit::by_header`], clients choose what they send.
    pub fn by_cookie(self, name: impl Into<String>) -> Self {
        self.set_rule(|rule| rule.by = By::Cookie(name.into()))
    }

    /// Counts all requests together.
    pub fn for_everybody(self) -> Self {
        self.set_rule(|rule| rule.by = By::Everybody)
    }

    /// How many bits of an IPv6 address stand for a client. The default is 64: who has one address of such a network mostly has all. Where providers
    /// give larger ones, 56 or 48.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        self.set_rule(|rule| rule.prefixes.v6 = bits)
    }

    /// How many bits of an IPv4 address stand for a client. The default is 32, all.
    pub fn ipv4_prefix(self, bits: u8) -> Self {
        self.set_rule(|rule| rule.prefixes.v4 = bits)
    }

    /// A request must keep the limits of `other` as well, of which there may be eight in all. Settings that are not of a single
    /// limit are those of `self`.
    pub fn and(self, other: Self) -> Self {
        self.set(|settings| settings.rules.extend(other.0.settings.rules.iter().cloned()))
    }

    /// Lets requests pass that are not to be counted.
    pub fn exempt(self, is_exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.exempt = Some(Arc::new(is_exempt)))
    }

    /// How many keys each limit tells apart. It takes 17 bytes for each, never more. The default is 65,536. Twice as many as ask within
    /// the time in which a burst comes back leave next to nobody without a place.
    pub fn keys_max(self, keys: usize) -> Self {
        self.set(|settings| settings.keys_max = keys)
    }

    /// Tells clients nothing of limits but `Retry-After`.
    pub fn without_fields(self) -> Self {
        self.set(|settings| settings.has_fields = false)
    }

    /// Counts in Redis, so that several machines count together. There, limits of the same name and rate are one: name them.
    #[cfg(feature = "redis")]
    pub fn in_redis(self, store: RedisStore) -> Self {
        self.set(|settings| settings.redis = Some(store))
    }

    /// Another clock than the machine's, for tests: the time since some moment.
    ///
    /// ```
    /// use peregrine::App;
    /// use peregrine::rate_limit::RateLimit;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    /// use std::time::Duration;
    ///
    /// let seconds = Arc::new(AtomicU64::new(0));
    /// let clock = { let seconds = Arc::clone(&seconds); move || Duration::from_secs(seconds.load(Relaxed)) };
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

    /// What the limits have done since this value was made.
    #[must_use]
    pub fn counts(&self) -> RateLimitCounts {
        self.ready().map(|ready| ready.counts.read()).unwrap_or_default()
    }

    /// What requests are judged by.
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
                || tracing::error!(target: "peregrine", "a rate limit cannot be kept: {faults}"),
            );
            let detail = "The server has a limit that it cannot keep; its log says more.";
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

    /// The time, in nanoseconds since some moment.
    pub(crate) fn now(&self) -> u64 {
        static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let now = match &self.0.settings.clock {
            Some(clock) => clock(),
            None => BEGUN.elapsed(),
        };
        // Half of what the number holds, 292 years, so that a burst still fits behind it.
        u64::try_from(now.as_nanos()).map_or(u64::MAX / 2, |now| now.min(u64::MAX / 2))
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.0.settings.faults()
    }
}

impl Settings {
    /// What cannot be kept.
    fn faults(&self) -> Vec<String> {
        let mut faults: Vec<_> = self.rules.iter().flat_map(Rule::faults).collect();
        if self.rules.len() > LIMITS_MAX {
            faults.push(format!(
                "it has {} limits, and may have {LIMITS_MAX}: put the others into another one",
                self.rules.len()
            ));
        }
        let names = self.rules.iter().map(|rule| &rule.name);
        let twice = names.enumerate().find(|(index, name)| {
            self.rules[..*index].iter().any(|earlier| earlier.name == **name)
        });
        if let Some((_, name)) = twice {
            faults.push(format!(
                "two limits are called \"{name}\": give one another name by named(..)"
            ));
        }
        if self.keys_max == 0 {
            faults.push("keys_max(0) has no place for anybody: make it 1 or more".to_owned());
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
