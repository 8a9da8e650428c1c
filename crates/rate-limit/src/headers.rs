//! The response fields of draft-ietf-httpapi-ratelimit-headers-10, and `Retry-After`.

use crate::check::CheckResult;
use crate::limit::CompiledLimits;
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::{Problem, Response};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

const SECOND: u64 = 1_000_000_000;

/// `"name";q=100;w=60`: an item of `RateLimit-Policy`. Quotes and backslashes are escaped with a
/// backslash (RFC 9651, section 4.1.6).
pub(crate) fn policy_header(name: &str, (quota, window): (u64, u64)) -> (String, HeaderValue) {
    let name = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    let value = HeaderValue::try_from(format!("{name};q={quota};w={window}"));
    (name, value.unwrap_or(HeaderValue::from_static("\"default\"")))
}

/// Adds a member for each limit that counted the request. An inner limit may have added members
/// already: both fields are lists, whose members may be spread over several fields.
pub(crate) fn add_headers(
    compiled: &CompiledLimits,
    result: &CheckResult,
    response: &mut Response,
) {
    for (limit, decision) in compiled.limits.iter().zip(&result.decisions) {
        let Some(decision) = decision else { continue };
        // Each interval of the burst was rounded up by less than a nanosecond. Subtract that, so
        // that it does not add a second.
        let full_in = decision.reset_after.saturating_sub(u64::from(limit.quota.burst));
        let seconds = full_in.div_ceil(SECOND);
        let remaining = u64::from(decision.remaining);
        // A `Vec` filled to its capacity becomes a value without a copy.
        let bytes = limit.quoted_name.len() + 6 + digits(remaining) + digits(seconds);
        let mut text = Vec::with_capacity(bytes);
        text.extend_from_slice(limit.quoted_name.as_bytes());
        text.extend_from_slice(b";r=");
        push_decimal(remaining, &mut text);
        text.extend_from_slice(b";t=");
        push_decimal(seconds, &mut text);
        if let Ok(value) = HeaderValue::try_from(text) {
            response.headers.append(POLICY, limit.policy.clone());
            response.headers.append(LIMIT, value);
        }
    }
}

/// Returns the number of decimal digits.
fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |power| power as usize + 1)
}

fn push_decimal(number: u64, text: &mut Vec<u8>) {
    let start = text.len();
    let mut remaining = number;
    loop {
        // The remainder is below ten.
        text.push(b'0' + u8::try_from(remaining % 10).unwrap_or(0));
        remaining /= 10;
        if remaining == 0 {
            break;
        }
    }
    text[start..].reverse();
}

/// The response to a request over a limit.
pub(crate) fn too_many_requests(compiled: &CompiledLimits, result: &CheckResult) -> Problem {
    let violated = || {
        let pairs = compiled.limits.iter().zip(&result.decisions);
        pairs
            .filter_map(|(limit, decision)| Some((limit, decision.as_ref()?)))
            .filter(|(_, decision)| !decision.conforms())
    };
    let retry_after = violated().map(|(_, decision)| decision.retry_after).max().unwrap_or(0);
    let seconds = retry_after.div_ceil(SECOND).max(1);
    let names: Vec<_> = violated().map(|(limit, _)| limit.name.clone()).collect();
    let detail = format!("Too many requests. The next one is allowed in {seconds} s.");
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate-limited", detail)
        .with_member("violated-policies", names)
        .with_header(RETRY_AFTER, HeaderValue::from(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_and_their_digit_counts_are_correct() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, 999_999, 1_000_000, u64::MAX] {
            let mut text = b"r=".to_vec();
            push_decimal(number, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), format!("r={number}"));
            assert_eq!(text.len() - 2, digits(number));
        }
    }
}
