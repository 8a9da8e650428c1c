//! Counters in Redis, shared by several machines.

use crate::check::{CheckResult, ResolvedKeys, check_local};
use crate::gcra::{GcraDecision, Quota};
use crate::key::ResolvedKey;
use crate::limit::{CompiledLimits, LIMITS_MAX};
use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, RedisError, Script};
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use peregrine_web::Problem;
use peregrine_web::panic::catch_subscriber_panic;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// The default time limit of a request to Redis.
const TIMEOUT: Duration = Duration::from_millis(100);
/// How long Redis is skipped after a failure, in nanoseconds.
const BACKOFF: u64 = 1_000_000_000;

/// Checks all limits of a request in one call, by the clock of Redis, in whole microseconds, which
/// Lua's numbers represent exactly for 280 years. An entry expires when its debt is zero, so idle
/// keys take no memory. A debt of more than a burst was written before the clock was set back or
/// the limit was changed. The script returns the previous debt of each key.
const SCRIPT: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function keep(i, debt)
    redis.call('SET', KEYS[i], string.format('%.0f', now + debt), 'PX', string.format('%.0f', math.ceil(debt / 1000)))
end
local debts, conform = {}, true
for i = 1, #KEYS do
    local interval, depth = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
    local debt = (tonumber(redis.call('GET', KEYS[i]) or '') or now) - now
    if debt > depth then
        debt = depth
        keep(i, debt)
    end
    debt = math.max(debt, 0)
    debts[i] = debt
    conform = conform and debt + interval <= depth
end
if conform then
    for i = 1, #KEYS do
        keep(i, debts[i] + tonumber(ARGV[2 * i - 1]))
    end
end
return debts
";

/// How requests are counted while Redis does not respond.
#[doc(alias = "failure_mode")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// Each process counts for itself, with the same limits. The default.
    #[default]
    Local,
    /// Allows every request.
    Allow,
    /// Rejects every request with a problem with status 503.
    Deny,
}

/// A Redis server, or a compatible one that runs its Lua scripts. Clusters are not supported.
///
/// Each request costs one round trip, on a connection that each worker keeps open. The names of
/// Redis keys contain the limit's name, rate and burst and a hash of the key; entries expire when
/// their debt is zero.
///
/// Machines share a limit if its name, rate and burst are equal. Two limits of one program for
/// which all three are equal, such as two unnamed ones, would therefore count together: give each
/// a different name.
///
/// ```no_run
/// use peregrine::prelude::*;
/// use peregrine::rate_limit::{RateLimit, RedisStore};
///
/// fn main() -> peregrine::Result<()> {
///     let store = RedisStore::from_url("redis://127.0.0.1/");
///     let limit = RateLimit::per_minute(100).redis_store(store);
///     let make = move || App::new().wrap(limit.clone()).get("/", || "hello");
///     Server::bind("127.0.0.1:8080").serve(make)
/// }
/// ```
///
/// | setting | default |
/// |---|---|
/// | [`key_prefix`](Self::key_prefix) of key names | `peregrine:limit:` |
/// | [`timeout`](Self::timeout) of a request to Redis | 100 ms |
/// | [`on_failure`](Self::on_failure) | each process counts for itself |
///
/// After a failure or timeout, Redis is skipped for a second, so that not every request waits.
#[derive(Clone)]
pub struct RedisStore {
    client: Result<Client, String>,
    prefix: String,
    timeout: Duration,
    when_down: OnStoreFailure,
    shared: Arc<StoreShared>,
}

/// The state that clones of a store share.
struct StoreShared {
    id: u64,
    script: Script,
    /// Redis is skipped until this time of the process, in nanoseconds.
    retry_at: AtomicU64,
}

impl RedisStore {
    /// Uses the Redis server at this URL: `redis://user:password@host:port/database` or
    /// `redis+unix:///path`. An invalid URL is an error when the application is built. `rediss://`
    /// (TLS) needs the crate `redis` 0.32 with its feature `tokio-rustls-comp` in the program.
    #[must_use]
    pub fn from_url(url: &str) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let shared = StoreShared { id, script: Script::new(SCRIPT), retry_at: AtomicU64::new(0) };
        Self {
            client: Client::open(url).map_err(|error| error.to_string()),
            prefix: "peregrine:limit:".to_owned(),
            timeout: TIMEOUT,
            when_down: OnStoreFailure::default(),
            shared: Arc::new(shared),
        }
    }

    /// Sets the prefix of key names. Applications that share a Redis but not their limits need
    /// different prefixes.
    #[must_use]
    pub fn key_prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Sets how long a request waits for Redis. The default is 100 ms.
    #[must_use]
    pub fn timeout(self, time: Duration) -> Self {
        Self { timeout: time, ..self }
    }

    /// Sets what the limit does while Redis does not respond.
    #[must_use]
    pub fn on_failure(self, when_down: OnStoreFailure) -> Self {
        Self { when_down, ..self }
    }

    /// Describes an invalid setting.
    pub(crate) fn config_errors(&self) -> Option<String> {
        let error = self.client.as_ref().err()?;
        // The URL is not shown: it may contain a password.
        Some(format!("the URL of RedisStore::from_url is invalid: {error}"))
    }

    /// Counts a request. `now` is this process's time.
    pub(crate) async fn check(
        &self,
        compiled: &CompiledLimits,
        keys: &ResolvedKeys<'_>,
        now: u64,
    ) -> Result<CheckResult, Problem> {
        if keys.iter().all(Option::is_none) {
            return Ok(CheckResult::none(&compiled.limits));
        }
        if now >= self.shared.retry_at.load(Relaxed) {
            match timeout(self.timeout, self.query(compiled, keys)).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(error)) => self.back_off(now, &error.to_string()),
                Err(_) => self.back_off(now, "no response in time"),
            }
        }
        compiled.counts.record_store_error();
        match self.when_down {
            OnStoreFailure::Local => Ok(check_local(compiled, keys, now)),
            OnStoreFailure::Allow => Ok(CheckResult::none(&compiled.limits)),
            OnStoreFailure::Deny => {
                let detail = "The server's rate limit is temporarily unavailable. Try again later.";
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let problem = Problem::new(status, "rate-limit-unavailable", detail);
                Err(problem.with_header(RETRY_AFTER, HeaderValue::from(1)))
            }
        }
    }

    /// Skips Redis for a while, and drops the worker's connection.
    fn back_off(&self, now: u64, error: &str) {
        CONNECTIONS.with_borrow_mut(|all| all.remove(&self.shared.id));
        self.shared.retry_at.store(now.saturating_add(BACKOFF), Relaxed);
        let when_down = self.when_down;
        catch_subscriber_panic(
            || tracing::warn!(target: "peregrine", error, ?when_down, "Redis failed to count a request for a rate limit"),
        );
    }

    async fn query(
        &self,
        compiled: &CompiledLimits,
        keys: &ResolvedKeys<'_>,
    ) -> Result<CheckResult, RedisError> {
        let mut connection = self.connection().await?;
        let mut call = self.shared.script.prepare_invoke();
        let limits_with_keys = || compiled.limits.iter().zip(keys).enumerate();
        for (_, (limit, key)) in limits_with_keys() {
            let Some(key) = key else { continue };
            let quota = in_microseconds(limit.quota);
            call.key(redis_key(&self.prefix, &limit.name, quota, key))
                .arg(quota.emission_interval)
                .arg(quota.emission_interval.saturating_mul(u64::from(quota.burst)));
        }
        let debts: Vec<u64> = call.invoke_async(&mut connection).await?;
        let mut debts = debts.into_iter();
        let mut result = CheckResult::none(&compiled.limits);
        let mut debt_of = [0; LIMITS_MAX];
        for (index, (limit, key)) in limits_with_keys() {
            if key.is_none() {
                continue;
            }
            debt_of[index] = debts.next().unwrap_or(0);
            let (decision, _) = in_microseconds(limit.quota).check(debt_of[index], 0);
            result.is_allowed &= decision.conforms();
            result.decisions[index] = Some(decision);
        }
        for (limit, (decision, debt)) in
            compiled.limits.iter().zip(result.decisions.iter_mut().zip(debt_of))
        {
            let Some(decision) = decision else { continue };
            if !result.is_allowed && decision.conforms() {
                *decision = in_microseconds(limit.quota).peek(debt, 0);
            }
            *decision = in_nanoseconds(*decision);
        }
        Ok(result)
    }

    /// Returns this worker's connection. While it is being opened, the worker's other requests wait
    /// for it.
    async fn connection(&self) -> Result<MultiplexedConnection, RedisError> {
        let id = self.shared.id;
        let cell = CONNECTIONS.with_borrow_mut(|all| Rc::clone(all.entry(id).or_default()));
        let connect = async || match &self.client {
            Ok(client) => client.get_multiplexed_async_connection().await,
            Err(_) => Err((::redis::ErrorKind::InvalidClientConfig, "no URL").into()),
        };
        cell.get_or_try_init(connect).await.cloned()
    }
}

type Connection = Rc<OnceCell<MultiplexedConnection>>;

thread_local! {
    /// The worker's connection to each store: connections belong to the worker's runtime.
    static CONNECTIONS: RefCell<HashMap<u64, Connection>> = RefCell::default();
}

/// Builds the name of a Redis key. It contains the rate and the burst, because a value stored under
/// another rate is not a debt at this one.
fn redis_key(prefix: &str, name: &str, quota: Quota, key: &ResolvedKey<'_>) -> String {
    let Quota { emission_interval: interval, burst } = quota;
    format!("{prefix}{name}:{burst}x{interval}us:{}", key.digest())
}

fn in_microseconds(quota: Quota) -> Quota {
    Quota { emission_interval: quota.emission_interval.div_ceil(1_000), ..quota }
}

fn in_nanoseconds(decision: GcraDecision) -> GcraDecision {
    let to_nanoseconds = |time: u64| time.saturating_mul(1_000);
    GcraDecision {
        retry_after: to_nanoseconds(decision.retry_after),
        reset_after: to_nanoseconds(decision.reset_after),
        ..decision
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may contain a password.
        f.debug_struct("RedisStore")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field("when_down", &self.when_down)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn different_limits_have_different_redis_keys() {
        let key = |name, count, seconds, burst| {
            let quota = Quota::new(count, Duration::from_secs(seconds)).expect("a rate");
            let quota = in_microseconds(Quota { burst, ..quota });
            redis_key("p:", name, quota, &ResolvedKey::Value(b"a"[..].into()))
        };
        let keys = [
            key("default", 50, 1, 50),
            key("default", 50, 1, 100),
            key("default", 10, 3600, 10),
            key("logins", 10, 3600, 10),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(key.starts_with("p:") && !keys[..index].contains(key), "{keys:?}");
        }
    }
}
