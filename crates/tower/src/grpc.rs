//! Enforces the deadlines of gRPC calls. tonic enforces them in its own server, not in the services
//! that can be mounted here.

use crate::timer::new_timer;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::timer::Timer;
use peregrine_web::{RequestHead, Response};
use std::task::{Context, Poll};
use std::time::Duration;

/// The time within which the response to a gRPC call must begin.
pub(crate) struct GrpcDeadline {
    timeout: Duration,
    /// Created at the first poll, so that calls with an immediate response need no timer.
    timer: Option<Box<dyn Timer>>,
    /// The request's `Content-Type`, which the response repeats.
    content_type: HeaderValue,
}

impl GrpcDeadline {
    /// Returns the deadline in `grpc-timeout`, if the request is a gRPC call and the field is
    /// valid.
    pub(crate) fn from_head(head: &RequestHead) -> Option<Box<Self>> {
        let content_type = head.grpc_content_type()?;
        let timeout = parse_timeout(head.header_bytes("grpc-timeout")?)?;
        let content_type = HeaderValue::from_bytes(content_type).ok()?;
        Some(Box::new(Self { timeout, timer: None, content_type }))
    }

    /// Waits for the deadline and returns the `DEADLINE_EXCEEDED` response.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Response> {
        if self.timer.is_none() {
            self.timer = new_timer(self.timeout);
        }
        let Some(timer) = &mut self.timer else { return Poll::Pending };
        timer.poll_elapsed(cx).map(|()| self.deadline_exceeded())
    }

    /// The status is in the head of a response without content. The gRPC protocol calls this form
    /// Trailers-Only.
    fn deadline_exceeded(&self) -> Response {
        let field = |name, value| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let mut response = Response::new(StatusCode::OK);
        response.headers.append(CONTENT_TYPE, self.content_type.clone());
        response.headers.extend([
            field("grpc-status", "4"),
            field("grpc-message", "the deadline of the call has passed"),
        ]);
        response
    }
}

/// Parses a `grpc-timeout`: one to eight digits and a unit.
fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::parse_timeout;
    use std::time::Duration;

    #[test]
    fn a_timeout_is_up_to_eight_digits_and_a_unit() {
        for (text, expected) in [
            ("3H", Some(Duration::from_secs(10_800))),
            ("2M", Some(Duration::from_secs(120))),
            ("42S", Some(Duration::from_secs(42))),
            ("13m", Some(Duration::from_millis(13))),
            ("2u", Some(Duration::from_micros(2))),
            ("82n", Some(Duration::from_nanos(82))),
            ("99999999H", Some(Duration::from_secs(359_999_996_400))),
            ("999999999n", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("+1S", None),
            ("1f", None),
        ] {
            assert_eq!(parse_timeout(text.as_bytes()), expected, "{text}");
        }
    }
}
