//! Data formats besides JSON, each behind a feature: `MessagePack`, `Cbor` and `Protobuf`; and
//! `SimdJson`, a faster JSON reader.

#[cfg(feature = "cbor")]
mod cbor;
#[cfg(feature = "message-pack")]
mod message_pack;
#[cfg(feature = "message-pack")]
mod message_pack_depth;
#[cfg(feature = "protobuf")]
mod protobuf;
#[cfg(feature = "fast-json")]
mod simd_json;

#[cfg(feature = "fast-json")]
pub use self::simd_json::SimdJson;
#[cfg(feature = "cbor")]
pub use cbor::Cbor;
#[cfg(feature = "message-pack")]
pub use message_pack::MessagePack;
#[cfg(feature = "protobuf")]
pub use protobuf::Protobuf;

#[cfg(any(feature = "cbor", feature = "message-pack", feature = "protobuf"))]
mod shared {
    use crate::extract::body::has_no_body;
    use crate::extract::content_type;
    use crate::http::problem::Problem;
    use crate::http::request::Request;
    use crate::http::response::Response;
    use http::header::CONTENT_TYPE;
    use http::{HeaderValue, StatusCode};

    /// The maximum nesting depth, about the same as for JSON (127).
    #[cfg(any(feature = "cbor", feature = "message-pack"))]
    pub(super) const DEPTH_MAX: usize = 128;

    /// Rejects a request without a body, and one whose `Content-Type` is absent or not accepted.
    pub(super) fn check_content_type(
        request: &Request,
        expected: &'static str,
        accepts: fn(&[u8]) -> bool,
    ) -> Result<(), Problem> {
        if has_no_body(request) {
            return Err(empty_body(expected));
        }
        content_type::check_content_type(&request.parts.head, expected, accepts)
    }

    pub(super) fn empty_body(expected: &str) -> Problem {
        let detail = format!("the body is empty, but {expected} is expected");
        Problem::new(StatusCode::BAD_REQUEST, "empty-body", detail)
    }

    /// The problem for content with invalid syntax.
    pub(super) fn syntax_problem(kind: &'static str, detail: String) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, kind, detail)
    }

    pub(super) fn respond(media_type: &'static str, content: Vec<u8>) -> Response {
        let mut response = Response::new(StatusCode::OK).with_body(content);
        response.headers.append(CONTENT_TYPE, HeaderValue::from_static(media_type));
        response
    }

    /// Whether a media type is one of `names`, or has this suffix (RFC 6838 §4.2.8).
    pub(super) fn is_one_of(essence: &[u8], names: &[&str], suffix: &str) -> bool {
        let tail = &essence[essence.len().saturating_sub(suffix.len())..];
        names.iter().any(|name| essence.eq_ignore_ascii_case(name.as_bytes()))
            || !suffix.is_empty()
                && tail.eq_ignore_ascii_case(suffix.as_bytes())
                && essence.contains(&b'/')
    }
}
