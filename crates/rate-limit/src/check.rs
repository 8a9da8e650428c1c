//! Checks a request against the limits.

use crate::gcra::GcraDecision;
use crate::headers;
use crate::key::ResolvedKey;
use crate::limit::{CompiledLimit, CompiledLimits, RateLimit};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use smallvec::{SmallVec, smallvec};

/// A request that is checked against at most this many limits needs no allocation.
const INLINE_LIMITS: usize = 2;

/// The key of a request for each limit.
pub(crate) type ResolvedKeys<'r> = SmallVec<[Option<ResolvedKey<'r>>; INLINE_LIMITS]>;

/// The results of the limits for a request.
#[derive(Clone, Debug)]
pub(crate) struct CheckResult {
    /// One for each limit; `None` if the limit does not count the request.
    pub(crate) decisions: SmallVec<[Option<GcraDecision>; INLINE_LIMITS]>,
    pub(crate) is_allowed: bool,
}

impl CheckResult {
    /// The result for a request that no limit counts.
    pub(crate) fn none(limits: &[CompiledLimit]) -> Self {
        Self { decisions: smallvec![None; limits.len()], is_allowed: true }
    }
}

/// Counts a request in the tables of this process.
pub(crate) fn check_local(
    compiled: &CompiledLimits,
    keys: &ResolvedKeys<'_>,
    now: u64,
) -> CheckResult {
    let mut result = CheckResult::none(&compiled.limits);
    result.is_allowed = check_and_charge(compiled, keys, 0, now, true, &mut result.decisions);
    result
}

/// Checks the limits from `index` on, and charges either all or none: a request that one limit
/// rejects is not charged to the others. The entries stay locked meanwhile. This cannot deadlock,
/// because every request locks in the order of the limits, each of which has its own table.
fn check_and_charge(
    compiled: &CompiledLimits,
    keys: &ResolvedKeys<'_>,
    index: usize,
    now: u64,
    is_allowed: bool,
    decisions: &mut [Option<GcraDecision>],
) -> bool {
    let Some(limit) = compiled.limits.get(index) else { return is_allowed };
    let Some(key) = &keys[index] else {
        return check_and_charge(compiled, keys, index + 1, now, is_allowed, decisions);
    };
    let mut entry = limit.table.lock_entry(key, now);
    entry.correct_tat(limit.quota.clamp_tat(entry.tat(), now));
    let (decision, next) = limit.quota.check(entry.tat(), now);
    let is_allowed = check_and_charge(
        compiled,
        keys,
        index + 1,
        now,
        is_allowed && decision.conforms(),
        decisions,
    );
    // The decision of a limit that the request conforms to assumes that it is charged.
    let reports_decision = is_allowed || !decision.conforms();
    decisions[index] = Some(match reports_decision {
        true => decision,
        false => limit.quota.peek(entry.tat(), now),
    });
    if is_allowed {
        entry.store(next);
    }
    if entry.evicted_other {
        drop(entry);
        compiled.counts.record_eviction(&limit.name);
    }
    is_allowed
}

impl RateLimit {
    /// Counts a request under `key` with all limits of this value, whatever key they are set to,
    /// except the global ones. Use it for keys that only a handler knows, such as the user name
    /// in a login form.
    ///
    /// ```
    /// use peregrine::prelude::*;
    /// use peregrine::rate_limit::RateLimit;
    ///
    /// type LoginResult = Result<String, Problem>;
    ///
    /// async fn login(limit: StateRef<RateLimit>, Path(name): Path<String>) -> LoginResult {
    ///     limit.check_key(&name).await?;
    ///     Ok(format!("the password of {name} is checked"))
    /// }
    ///
    /// let limit = RateLimit::per_hour(10).name("logins");
    /// let client = App::new().state(limit).post("/login/{name}", login).test();
    /// for _ in 0..10 {
    ///     assert_eq!(client.post("/login/alice").send_blocking().status(), 200);
    /// }
    /// assert_eq!(client.post("/login/alice").send_blocking().status(), 429);
    /// assert_eq!(client.post("/login/bob").send_blocking().status(), 200);
    /// ```
    ///
    /// # Errors
    /// If the request is over a limit, a problem with status 429 with `Retry-After`. Invalid
    /// settings, which [`App::build`](peregrine_web::App::build) reports for middleware, are a
    /// problem of status 500 here.
    #[doc(alias = "check")]
    pub async fn check_key(&self, key: impl AsRef<[u8]>) -> Result<(), Problem> {
        let compiled = self.compiled()?;
        let key = key.as_ref();
        let resolve = |limit: &CompiledLimit| match limit.is_global {
            true => ResolvedKey::Global,
            false => ResolvedKey::Value(key.into()),
        };
        let keys = compiled.limits.iter().map(|limit| Some(resolve(limit))).collect();
        let result = self.check(compiled, &keys).await?;
        if result.is_allowed { Ok(()) } else { Err(headers::too_many_requests(compiled, &result)) }
    }

    async fn check(
        &self,
        compiled: &CompiledLimits,
        keys: &ResolvedKeys<'_>,
    ) -> Result<CheckResult, Problem> {
        #[cfg(feature = "redis")]
        let result = match self.redis() {
            Some(store) => store.check(compiled, keys, self.now()).await?,
            None => check_local(compiled, keys, self.now()),
        };
        #[cfg(not(feature = "redis"))]
        let result = check_local(compiled, keys, self.now());
        if !result.is_allowed {
            compiled.counts.record_refusal();
        }
        Ok(result)
    }
}

impl Middleware for RateLimit {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let compiled = match self.compiled() {
            Ok(compiled) => compiled,
            Err(problem) => return problem.into_response(),
        };
        if self.is_exempt(&request.parts) {
            return next.call(request).await;
        }
        let result = {
            let keys = self.resolve_keys(&request.parts);
            self.check(compiled, &keys).await
        };
        let result = match result {
            Ok(result) => result,
            Err(problem) => return problem.into_response(),
        };
        let mut response = match result.is_allowed {
            true => next.call(request).await,
            false => headers::too_many_requests(compiled, &result).into_response(),
        };
        if self.sends_headers() {
            headers::add_headers(compiled, &result, &mut response);
        }
        response
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        requirements.problem(429, "Too many requests; `Retry-After` says when to retry.");
        for error in self.config_errors() {
            requirements.config_error(format!("RateLimit: {error}"));
        }
    }
}
