//! What clients are told: draft-ietf-httpapi-ratelimit-headers-10, and `Retry-After`.

use crate::check::Verdict;
use crate::limit::{LIMITS_MAX, Ready};
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::{Problem, Response};
use std::fmt::Write as _;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

const SECOND: u64 = 1_000_000_000;

/// `"name";q=100;w=60`: an item of `RateLimit-Policy`. RFC 9651 §4.1.6: quotes and backslashes have a backslash before them.
pub(crate) fn policy(name: &str, (quota, window): (u64, u64)) -> (String, HeaderValue) {
    let name = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    let value = HeaderValue::try_from(format!("{name};q={quota};w={window}"));
    (name, value.unwrap_or(HeaderValue::from_static("\"default\"")))
}

/// Tells of each limit that counted the request. What is further in may have told of its own: both are lists, whose members may
/// stand in several fields.
pub(crate) fn tell(ready: &Ready, verdict: &Verdict, response: &mut Response) {
    debug_assert!(ready.limits.len() <= LIMITS_MAX);
    for (limit, decision) in ready.limits.iter().zip(&verdict.decisions) {
        let Some(decision) = decision else { continue };
        let mut text = String::with_capacity(limit.quoted.len() + 24);
        // Intervals are rounded up to a nanosecond, which must not make a second more of a burst.
        let full_in = decision.full_in.saturating_sub(u64::from(limit.rate.burst));
        let seconds = full_in.div_ceil(SECOND);
        let written = write!(text, "{};r={};t={seconds}", limit.quoted, decision.remaining);
        if written.is_ok()
            && let Ok(value) = HeaderValue::try_from(text)
        {
            response.fields.append(POLICY, limit.policy.clone());
            response.fields.append(LIMIT, value);
        }
    }
}

/// The answer to a request that comes too early.
pub(crate) fn refusal(ready: &Ready, verdict: &Verdict) -> Problem {
    let broken = || {
        let all = ready.limits.iter().zip(&verdict.decisions);
        all.filter_map(|(limit, decision)| Some((limit, decision.as_ref()?)))
            .filter(|(_, decision)| !decision.conforms())
    };
    let wait = broken().map(|(_, decision)| decision.wait).max().unwrap_or(0);
    let seconds = wait.div_ceil(SECOND).max(1);
    let names: Vec<_> = broken().map(|(limit, _)| limit.name.clone()).collect();
    let detail = format!("There were too many requests. The next is answered in {seconds} s.");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", detail)
        .with("violated-policies", names)
        .with_header(RETRY_AFTER, HeaderValue::from(seconds))
}
