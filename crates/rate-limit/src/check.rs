//! Checks a request against the limits.

use crate::gcra::GcraDecision;
use crate::headers;
use crate::key::ResolvedKey;
use crate::limit::{CompiledLimit, CompiledLimits, RateLimit};
use peregrine_web::extract::Requirements;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use smallvec::{SmallVec, smallvec};

/// Up to this many limits, a request needs no allocation.
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
    /// No limit counts the request.
    pub(crate) fn none(limits: &[CompiledLimit]) -> Self {
        Self { decisions: smallvec![None; limits.len()], is_allowed: true }
    }
}

/// Counts a request in the tables of this process.
pub(crate) fn check_local(
    ready: &CompiledLimits,
    subjects: &ResolvedKeys<'_>,
    now: u64,
) -> CheckResult {
    let mut verdict = CheckResult::none(&ready.limits);
    verdict.is_allowed = check_and_charge(ready, subjects, 0, now, true, &mut verdict.decisions);
    verdict
}

/// Judges the limits from `index` on, and charges either all or none: a request that one limit
/// rejects costs nothing with the others. The entries stay locked meanwhile. This cannot deadlock,
/// because every request locks in the order of the limits, each of which has its own table.
fn check_and_charge(
    ready: &CompiledLimits,
    subjects: &ResolvedKeys<'_>,
    index: usize,
    now: u64,
    is_let_in: bool,
    decisions: &mut [Option<GcraDecision>],
) -> bool {
    let Some(limit) = ready.limits.get(index) else { return is_let_in };
    let Some(subject) = &subjects[index] else {
        return check_and_charge(ready, subjects, index + 1, now, is_let_in, decisions);
    };
    let mut place = limit.table.lock_entry(subject, now);
    place.clamp(limit.rate.clamp_tat(place.tat(), now));
    let (decision, next) = limit.rate.check(place.tat(), now);
    let is_let_in = check_and_charge(
        ready,
        subjects,
        index + 1,
        now,
        is_let_in && decision.conforms(),
        decisions,
    );
    let is_told_as_judged = is_let_in || !decision.conforms();
    decisions[index] = Some(match is_told_as_judged {
        true => decision,
        false => limit.rate.peek(place.tat(), now),
    });
    if is_let_in {
        place.store(next);
    }
    if place.evicted_other {
        drop(place);
        ready.counts.record_eviction(&limit.name);
    }
    is_let_in
}

impl RateLimit {
    /// Counts a request under `key` with all limits of this value, whatever key they are set to,
    /// except those for everybody. Use it for keys that only a handler knows, such as the user name
    /// in a login form.
    ///
    /// ```
    /// use peregrine::prelude::*;
    /// use peregrine::rate_limit::RateLimit;
    ///
    /// type Answer = Result<String, Problem>;
    ///
    /// async fn login(limit: StateRef<RateLimit>, Path(name): Path<String>) -> Answer {
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
    /// If the request is over a limit, a problem of status 429 with `Retry-After`. Invalid
    /// settings, which [`App::build`](peregrine_web::App::build) reports for middleware, are a
    /// problem of status 500 here.
    #[doc(alias = "check")]
    pub async fn check_key(&self, key: impl AsRef<[u8]>) -> Result<(), Problem> {
        let ready = self.compiled()?;
        let key = key.as_ref();
        let subject = |limit: &CompiledLimit| match limit.is_global {
            true => ResolvedKey::Global,
            false => ResolvedKey::Value(key.into()),
        };
        let subjects = ready.limits.iter().map(|limit| Some(subject(limit))).collect();
        let verdict = self.check(ready, &subjects).await?;
        if verdict.is_allowed { Ok(()) } else { Err(headers::too_many_requests(ready, &verdict)) }
    }

    async fn check(
        &self,
        ready: &CompiledLimits,
        subjects: &ResolvedKeys<'_>,
    ) -> Result<CheckResult, Problem> {
        #[cfg(feature = "redis")]
        let verdict = match self.redis() {
            Some(store) => store.check(ready, subjects, self.now()).await?,
            None => check_local(ready, subjects, self.now()),
        };
        #[cfg(not(feature = "redis"))]
        let verdict = check_local(ready, subjects, self.now());
        if !verdict.is_allowed {
            ready.counts.record_refusal();
        }
        Ok(verdict)
    }
}

impl Middleware for RateLimit {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let ready = match self.compiled() {
            Ok(ready) => ready,
            Err(problem) => return problem.into_response(),
        };
        if self.is_exempt(&request.parts) {
            return next.call(request).await;
        }
        let verdict = {
            let subjects = self.resolve_keys(&request.parts);
            self.check(ready, &subjects).await
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(problem) => return problem.into_response(),
        };
        let mut response = match verdict.is_allowed {
            true => next.call(request).await,
            false => headers::too_many_requests(ready, &verdict).into_response(),
        };
        if self.sends_headers() {
            headers::add_headers(ready, &verdict, &mut response);
        }
        response
    }

    fn require(&self, requirements: &mut Requirements) {
        requirements.problem(429, "Too many requests; `Retry-After` says when to retry.");
        for fault in self.config_errors() {
            requirements.config_error(format!("RateLimit: {fault}"));
        }
    }
}
