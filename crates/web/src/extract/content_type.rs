//! Checks that the body has the media type that an extractor reads.

use super::truncate;
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use http::StatusCode;

/// Rejects a request without a `Content-Type`, or with one that `accepts` rejects. `accepts`
/// receives the type and subtype without parameters. `expected` describes the accepted types.
pub(crate) fn check_content_type(
    head: &RequestHead,
    expected: &'static str,
    accepts: fn(&[u8]) -> bool,
) -> Result<(), Problem> {
    let Some(received) = head.header_bytes("content-type") else {
        let detail = format!("the request has no Content-Type; send one that is {expected}");
        return Err(unsupported(detail, expected));
    };
    // RFC 9110 §8.3.1: parameters follow a semicolon. None of them changes how extractors read a
    // body.
    let essence = received.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if accepts(essence) {
        return Ok(());
    }
    let received = String::from_utf8_lossy(received);
    let received = truncate(&received);
    let detail = format!("the Content-Type is `{received}`, but must be {expected}");
    Err(unsupported(detail, expected).with_member("sent", received.as_ref()))
}

fn unsupported(detail: String, expected: &'static str) -> Problem {
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail)
        .with_member("expected", expected)
}

/// `application/json`, or any type with the suffix `+json` (RFC 6839).
pub(super) fn is_json(essence: &[u8]) -> bool {
    const JSON: &[u8] = b"application/json";
    const SUFFIX: &[u8] = b"+json";
    if essence.eq_ignore_ascii_case(JSON) {
        return true;
    }
    let tail = &essence[essence.len().saturating_sub(SUFFIX.len())..];
    tail.eq_ignore_ascii_case(SUFFIX) && essence.contains(&b'/')
}

/// `application/x-www-form-urlencoded`.
pub(super) fn is_form(essence: &[u8]) -> bool {
    essence.eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_application_json_and_the_json_suffix() {
        for (essence, expected) in [
            ("application/json", true),
            ("Application/JSON", true),
            ("application/problem+json", true),
            ("application/vnd.birds.v2+JSON", true),
            ("text/json", false),
            ("+json", false),
            ("application/jsonp", false),
            ("", false),
        ] {
            assert_eq!(is_json(essence.as_bytes()), expected, "{essence}");
        }
    }
}
