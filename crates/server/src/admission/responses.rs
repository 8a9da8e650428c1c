//! The responses to rejected requests. Each kind of response is rendered only once, because a
//! worker under overload sends very many.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::built::BuiltApp;
use peregrine_web::head::RequestHead;
use peregrine_web::{IntoResponse, Problem, Response};
use std::cell::{Cell, OnceCell};
use std::fmt;

/// The responses of one worker, in the application's format for problems.
#[derive(Debug, Default)]
pub(crate) struct ShedResponses {
    overloaded: OnceCell<CachedResponse>,
    too_many_requests: OnceCell<CachedResponse>,
    /// How many responses were sent.
    sent: Cell<u64>,
}

struct CachedResponse {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    /// The index of the `Retry-After` field. `None` if the application removed the field, or set
    /// another value, which is then sent unchanged.
    retry_after_index: Option<usize>,
}

impl ShedResponses {
    /// Returns the response to a rejected request. `is_clients_fault` is true if the client
    /// exceeded its own limit. The `Retry-After` of the response is `retry_after` seconds or
    /// more ([`jittered_retry_after`]).
    pub(crate) fn response(
        &self,
        is_clients_fault: bool,
        retry_after: u64,
        application: &BuiltApp,
    ) -> Response {
        let (cached, new_problem): (_, fn(u64) -> Problem) = if is_clients_fault {
            (&self.too_many_requests, Problem::too_many_requests)
        } else {
            (&self.overloaded, Problem::overloaded)
        };
        let cached = cached.get_or_init(|| {
            CachedResponse::render(|| new_problem(retry_after), retry_after, application)
        });
        let number = self.sent.replace(self.sent.get().wrapping_add(1));
        cached.response(jittered_retry_after(retry_after, number))
    }
}

/// The `Retry-After` value of the response with this number: `seconds`, plus up to half of that or
/// up to one second, whichever is more.
///
/// The golden ratio spreads consecutive responses as evenly as possible without random numbers.
fn jittered_retry_after(seconds: u64, number: u64) -> u64 {
    let choices = u128::from((seconds / 2).max(1)) + 1;
    // The fractional part of `number` times the golden ratio, in units of 2^-64.
    let fraction_units = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    // The result is less than `choices`, so the conversion cannot fail.
    let jitter = u64::try_from((fraction_units * choices) >> 64).unwrap_or(0);
    seconds.saturating_add(jitter)
}

impl CachedResponse {
    fn render(new_problem: impl Fn() -> Problem, retry_after: u64, application: &BuiltApp) -> Self {
        // The response serves all requests, so the application gets an empty head.
        let rendered = application.render_problem(new_problem(), &RequestHead::from_pool());
        // If the application streams the body, it cannot be cached: use the default format.
        let response = match rendered.body.as_slice() {
            Some(_) => rendered,
            None => new_problem().into_response(),
        };
        let fields = response.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        let fields: Vec<_> = fields.collect();
        let retry_after_field = (RETRY_AFTER, HeaderValue::from(retry_after));
        Self {
            status: response.status,
            retry_after_index: fields.iter().position(|field| *field == retry_after_field),
            fields,
            body: Bytes::copy_from_slice(response.body.as_slice().unwrap_or_default()),
        }
    }

    fn response(&self, retry_after: u64) -> Response {
        let mut response = Response::new(self.status).with_body(self.body.clone());
        let fields = self.fields.iter().cloned().enumerate();
        response.headers.extend(fields.map(|(index, (name, value))| {
            let is_retry_after = self.retry_after_index == Some(index);
            (name, if is_retry_after { HeaderValue::from(retry_after) } else { value })
        }));
        response
    }
}

impl fmt::Debug for CachedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::jittered_retry_after;

    #[test]
    fn retry_after_values_are_spread_evenly() {
        for (seconds, max) in [(1, 2), (2, 3), (10, 15), (61, 91)] {
            let all: Vec<_> =
                (0..300).map(|number| jittered_retry_after(seconds, number)).collect();
            let (choices, values) = (max - seconds + 1, seconds..=max);
            assert!(all.iter().all(|value| values.contains(value)), "{seconds}: {all:?}");
            let expected = 300 / choices;
            for value in values {
                let count = all.iter().filter(|other| **other == value).count() as u64;
                assert!(
                    count.abs_diff(expected) <= expected / 5 + 2,
                    "{seconds}: {count} of {expected} at {value}"
                );
            }
            assert!(all.windows(4).all(|some| some.iter().any(|value| *value != some[0])));
        }
        assert!(jittered_retry_after(u64::MAX, 7) == u64::MAX);
    }
}
