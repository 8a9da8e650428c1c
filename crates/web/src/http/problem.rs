//! Errors that are sent to clients, as RFC 9457 problems.

use crate::http::body::{BodyError, pool};
use crate::http::panic::catch_subscriber_panic;
use crate::http::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_proto::RequestError;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;
use std::fmt;

/// The media type of a problem. RFC 9457 §3: `application/problem+json` names the JSON form.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The members that are derived from the fields of [`Problem`]. Further members with these names
/// are omitted.
const STANDARD_MEMBERS: [&str; 4] = ["type", "title", "status", "detail"];

/// The kind of the problem of an overloaded server.
const KIND_OVERLOADED: &str = "overloaded";

/// The kind of the problem of a body that exceeds its limit.
const KIND_BODY_TOO_LARGE: &str = "body-too-large";

/// Why a request failed: the one error type of extractors, middleware and handlers.
///
/// By default it is sent as `application/problem+json`; the application can set one function that
/// renders all problems in another form. A response made from a problem carries the problem in its
/// extensions, where middleware finds it.
///
/// ```
/// use peregrine::http::StatusCode;
/// use peregrine::web::Problem;
///
/// let problem = Problem::new(StatusCode::CONFLICT, "name-taken", "choose another name")
///     .with_member("name", "lanner");
/// assert_eq!(
///     problem.to_json(),
///     r#"{"type":"/problems/name-taken","title":"Conflict","status":409,"#.to_owned()
///         + r#""detail":"choose another name","name":"lanner"}"#
/// );
/// ```
#[doc(alias = "ProblemDetails")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The status of the response.
    pub status: StatusCode,
    /// A short, stable name for the kind of problem, such as `invalid-json`, unique in this
    /// application. It becomes the `type` member; see [`Problem::type_uri`].
    pub kind: Cow<'static, str>,
    /// What is wrong with this request and how to fix it, in one or two sentences for the developer
    /// of the client. It must not contain secrets.
    pub detail: Cow<'static, str>,
    /// Further members, such as the position of an error. A member called `type`, `title`, `status`
    /// or `detail` is omitted.
    pub members: Vec<(Cow<'static, str>, serde_json::Value)>,
    /// Header fields that the response must have, such as `Allow` with a 405.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// Creates a problem without further members or fields.
    pub fn new(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (kind, detail) = (kind.into(), detail.into());
        Self { status, kind, detail, members: Vec::new(), headers: Vec::new() }
    }

    /// The response to a request that failed through a fault of the server, for example because a
    /// handler panicked or upgraded the connection although the client had not requested that:
    /// status 500, kind `internal-error`. It does not reveal the cause.
    #[must_use]
    pub fn internal_error() -> Self {
        let detail = "The server failed while handling this request.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", detail)
    }

    /// The response if a handler takes longer than its route allows: status 503, kind
    /// `handler-timeout`.
    #[doc(alias = "503")]
    #[must_use]
    pub fn handler_timeout() -> Self {
        let detail = "The server did not produce the response in time. Try again later.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "handler-timeout", detail)
    }

    /// The response if the head of a request takes too long to arrive: status 408, kind
    /// `head-timeout`.
    #[doc(alias = "408")]
    #[must_use]
    pub fn head_timeout() -> Self {
        let detail = "The request's head was not complete in time.";
        Self::new(StatusCode::REQUEST_TIMEOUT, "head-timeout", detail)
    }

    /// The response to a request that an overloaded server refuses: status 503, kind `overloaded`,
    /// with `Retry-After` in seconds.
    #[must_use]
    pub fn overloaded(retry_after: u64) -> Self {
        let detail = "The server is overloaded at present. Try again later.";
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, KIND_OVERLOADED, detail);
        problem.with_header(RETRY_AFTER, HeaderValue::from(retry_after))
    }

    /// The response to a request from a client that has too many in progress: status 429, kind
    /// `too-many-requests`, with `Retry-After` in seconds.
    #[must_use]
    pub fn too_many_requests(retry_after: u64) -> Self {
        let detail =
            "Too many requests from this client are in progress. Wait for some of them to finish.";
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail);
        problem.with_header(RETRY_AFTER, HeaderValue::from(retry_after))
    }

    /// Adds one more member.
    #[must_use]
    pub fn with_member(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<serde_json::Value>,
    ) -> Self {
        self.members.push((name.into(), value.into()));
        self
    }

    /// Adds a header field to the response. If the application's `on_problem` function sets the
    /// same field, that value replaces this one.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The `type` member: `/problems/` and the kind.
    ///
    /// A kind that is already a URI (it has a colon) or a path (it begins with a slash) is used as
    /// it is. An empty kind becomes `about:blank`, which means no more than the status does.
    #[doc(alias = "type")]
    #[must_use]
    pub fn type_uri(&self) -> Cow<'_, str> {
        // RFC 9457 §4.2.1: "about:blank" has no semantics beyond those of the status.
        if self.kind.is_empty() {
            return "about:blank".into();
        }
        if self.kind.starts_with('/') || self.kind.contains(':') {
            return self.kind.as_ref().into();
        }
        // RFC 9457 §3.1.1: a relative type should be a full path. It is resolved against the URI of
        // the request, and its meaning must not depend on that URI.
        format!("/problems/{}", self.kind).into()
    }

    /// The problem as a JSON document.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a problem's members are JSON values already")
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.type_uri())?;
        // RFC 9457 §3.1.4: the title should not change from occurrence to occurrence.
        if let Some(title) = self.status.canonical_reason() {
            map.serialize_entry("title", title)?;
        }
        map.serialize_entry("status", &self.status.as_u16())?;
        map.serialize_entry("detail", &self.detail)?;
        for (name, value) in &self.members {
            if !STANDARD_MEMBERS.contains(&name.as_ref()) {
                map.serialize_entry(name, value)?;
            }
        }
        map.end()
    }
}

/// Marks the response to a request that was refused because of overload, in whichever form it is
/// sent. The server counts such responses separately.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct LoadShed;

impl Problem {
    fn is_overloaded(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE && self.kind == KIND_OVERLOADED
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut buffer = pool::get();
        serde_json::to_writer(&mut buffer, &self)
            .expect("a problem's members are JSON values already");
        let mut response = Response::new(self.status).with_body(buffer);
        response.headers.append(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        response.headers.extend(self.headers.iter().cloned());
        if self.is_overloaded() {
            response.extensions_mut().insert(LoadShed);
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// The response to a request that violates the protocol: kind `invalid-request`, or
/// `body-too-large` if its content exceeds the limit. The member `rule` is the section of the RFC.
impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
        let kind = match error {
            RequestError::BodyTooLarge => KIND_BODY_TOO_LARGE,
            _ => "invalid-request",
        };
        Self::new(status, kind, format!("{}.", error.rule())).with_member("rule", error.section())
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::Disconnected => Self::new(
                StatusCode::BAD_REQUEST,
                "incomplete-body",
                "the connection ended before the body was complete",
            ),
            BodyError::TooLarge { limit } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                KIND_BODY_TOO_LARGE,
                format!("the body is larger than the limit of {limit} bytes; send less at a time"),
            )
            .with_member("limit", limit),
            BodyError::TooSlow => Self::new(
                StatusCode::REQUEST_TIMEOUT,
                "body-too-slow",
                "the body arrived more slowly than this server permits; send the request again",
            ),
            BodyError::Overloaded => Self::overloaded(1),
            BodyError::DecompressedTooLarge { ratio_max } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "body-decompressed-too-large",
                format!(
                    "the body decompresses to more than {ratio_max} times its size, which this \
                     server does not accept; send it without a content coding"
                ),
            )
            .with_member("ratio_max", ratio_max),
            BodyError::DecodeFailed { coding } => Self::new(
                StatusCode::BAD_REQUEST,
                "invalid-content-coding",
                format!(
                    "the body is not valid {coding}, or is truncated; its Content-Encoding is \
                     {coding}"
                ),
            )
            .with_member("coding", coding),
            BodyError::Protocol(error) => error.into(),
            BodyError::Stream(error) => {
                // The text may reveal internals of the server, so it is only logged.
                catch_subscriber_panic(
                    || tracing::error!(%error, "the source of a request's body failed"),
                );
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "body-failed",
                    "the body could not be read",
                )
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_uri_is_a_full_path_unless_the_kind_is_already_a_uri_or_path() {
        for (kind, type_uri) in [
            ("", "about:blank"),
            ("invalid-json", "/problems/invalid-json"),
            ("/errors/7", "/errors/7"),
            ("https://example.org/errors/7", "https://example.org/errors/7"),
        ] {
            let problem = Problem::new(StatusCode::BAD_REQUEST, kind, "");
            assert_eq!(problem.type_uri(), type_uri);
        }
    }

    #[test]
    fn a_problem_response_is_problem_json_and_has_the_problem_as_an_extension() {
        let problem = Problem::new(StatusCode::NOT_FOUND, "no-such-bird", "look at /birds")
            .with_member("bird", "dodo")
            .with_member("status", 200);
        let response = problem.clone().into_response();
        assert_eq!(response.status, 404);
        assert_eq!(response.headers.get(&CONTENT_TYPE).expect("a content type"), PROBLEM_JSON);
        let json: serde_json::Value =
            serde_json::from_slice(response.body.as_slice().expect("the body is complete"))
                .expect("JSON");
        let expected = serde_json::json!({
            "type": "/problems/no-such-bird", "title": "Not Found", "status": 404,
            "detail": "look at /birds", "bird": "dodo",
        });
        assert_eq!(json, expected);
        let attached = response.extensions().and_then(|extensions| extensions.get::<Problem>());
        assert_eq!(attached, Some(&problem));
    }

    #[test]
    fn each_body_error_has_its_status_kind_and_detail() {
        for (error, status, kind, hint) in [
            (BodyError::Disconnected, 400, "incomplete-body", "connection ended"),
            (BodyError::TooLarge { limit: 9 }, 413, "body-too-large", "limit of 9 bytes"),
            (BodyError::TooSlow, 408, "body-too-slow", "again"),
            (
                BodyError::DecompressedTooLarge { ratio_max: 7 },
                413,
                "body-decompressed-too-large",
                "more than 7 times",
            ),
            (
                BodyError::DecodeFailed { coding: "gzip" },
                400,
                "invalid-content-coding",
                "valid gzip",
            ),
            (
                BodyError::Protocol(RequestError::ChunkSizeInvalid),
                400,
                "invalid-request",
                "chunk size",
            ),
            (BodyError::Protocol(RequestError::TrailersTooLong), 431, "invalid-request", "trailer"),
            (BodyError::Protocol(RequestError::BodyTooLarge), 413, "body-too-large", "larger"),
            (BodyError::Stream("secret".into()), 500, "body-failed", "could not be read"),
        ] {
            let problem = Problem::from(error);
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (status, kind));
            assert!(problem.detail.contains(hint), "{}", problem.detail);
            assert!(!problem.detail.contains("secret"));
        }
    }
}
