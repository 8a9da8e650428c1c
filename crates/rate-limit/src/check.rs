//! Checks a request against the limits.

use crate::fields;
use crate::gcra::Decision;
use crate::key::Subject;
use crate::limit::{Limit, RateLimit, Ready};
use peregrine_web::requirements::Requirements;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use smallvec::{SmallVec, smallvec};

/// Up to this many limits, a request needs no allocation.
const LIMITS_USUAL: usize = 2;

/// The key of a request for each limit.
pub(crate) type Subjects<'r> = SmallVec<[Option<Subject<'r>>; LIMITS_USUAL]>;

/// The results of the limits for a request.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// One for each limit; `None` if the limit does not count the request.
    pub(crate) decisions: SmallVec<[Option<Decision>; LIMITS_USUAL]>,
    pub(crate) is_let_in: bool,
}

impl Verdict {
    /// No limit counts the request.
    pub(crate) fn none(limits: &[Limit]) -> Self {
        Self { decisions: smallvec![None; limits.len()], is_let_in: true }
    }
}

/// Counts a request in the tables of this process.
pub(crate) fn count_here(ready: &Ready, subjects: &Subjects<'_>, now: u64) -> Verdict {
    let mut verdict = Verdict::none(&ready.limits);
    verdict.is_let_in = charge(ready, subjects, 0, now, true, &mut verdict.decisions);
    verdict
}

/// Judges the limits from `index` on, and charges either all or none: a request that one limit
/// rejects costs nothing with the others. The entries stay locked meanwhile. This cannot deadlock,
/// because every request locks in the order of the limits, each of which has its own table.
fn charge(
    ready: &Ready,
    subjects: &Subjects<'_>,
    index: usize,
    now: u64,
    is_let_in: bool,
    decisions: &mut [Option<Decision>],
) -> bool {
    let Some(limit) = ready.limits.get(index) else { return is_let_in };
    let Some(subject) = &subjects[index] else {
        return charge(ready, subjects, index + 1, now, is_let_in, decisions);
    };
    let mut place = limit.table.place(subject, now);
    place.settle(limit.rate.settled(place.kept(), now));
    let (decision, next) = limit.rate.judge(place.kept(), now);
    let is_let_in =
        charge(ready, subjects, index + 1, now, is_let_in && decision.conforms(), decisions);
    let is_told_as_judged = is_let_in || !decision.conforms();
    decisions[index] = Some(match is_told_as_judged {
        true => decision,
        false => limit.rate.look(place.kept(), now),
    });
    if is_let_in {
        place.keep(next);
    }
    if place.is_crowded {
        drop(place);
        ready.counts.crowd(&limit.name);
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
    ///     limit.take(&name).await?;
    ///     Ok(format!("the password of {name} is checked"))
    /// }
    ///
    /// let limit = RateLimit::per_hour(10).named("logins");
    /// let client = App::new().state(limit).post("/login/{name}", login).test();
    /// for _ in 0..10 {
    ///     assert_eq!(client.post("/login/alice").send_now().status(), 200);
    /// }
    /// assert_eq!(client.post("/login/alice").send_now().status(), 429);
    /// assert_eq!(client.post("/login/bob").send_now().status(), 200);
    /// ```
    ///
    /// # Errors
    /// If the request is over a limit, a problem of status 429 with `Retry-After`. Invalid
    /// settings, which [`App::build`](peregrine_web::App::build) reports for middleware, are a
    /// problem of status 500 here.
    pub async fn take(&self, key: impl AsRef<[u8]>) -> Result<(), Problem> {
        let ready = self.ready()?;
        let key = key.as_ref();
        let subject = |limit: &Limit| match limit.is_for_everybody {
            true => Subject::Everybody,
            false => Subject::Of(key.into()),
        };
        let subjects = ready.limits.iter().map(|limit| Some(subject(limit))).collect();
        let verdict = self.judge(ready, &subjects).await?;
        if verdict.is_let_in { Ok(()) } else { Err(fields::refusal(ready, &verdict)) }
    }

    async fn judge(&self, ready: &Ready, subjects: &Subjects<'_>) -> Result<Verdict, Problem> {
        #[cfg(feature = "redis")]
        let verdict = match self.redis() {
            Some(store) => store.count(ready, subjects, self.now()).await?,
            None => count_here(ready, subjects, self.now()),
        };
        #[cfg(not(feature = "redis"))]
        let verdict = count_here(ready, subjects, self.now());
        if !verdict.is_let_in {
            ready.counts.refuse();
        }
        Ok(verdict)
    }
}

impl Middleware for RateLimit {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let ready = match self.ready() {
            Ok(ready) => ready,
            Err(problem) => return problem.into_response(),
        };
        if self.is_exempt(&request.parts) {
            return next.call(request).await;
        }
        let verdict = {
            let subjects = self.subjects(&request.parts);
            self.judge(ready, &subjects).await
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(problem) => return problem.into_response(),
        };
        let mut response = match verdict.is_let_in {
            true => next.call(request).await,
            false => fields::refusal(ready, &verdict).into_response(),
        };
        if self.has_fields() {
            fields::tell(ready, &verdict, &mut response);
        }
        response
    }

    fn require(&self, requirements: &mut Requirements) {
        requirements.refusal(429, "Too many requests; `Retry-After` says when to retry.");
        for fault in self.faults() {
            requirements.fault(format!("RateLimit: {fault}"));
        }
    }
}
