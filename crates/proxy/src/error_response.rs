//! The responses to clients when no upstream has responded.

use crate::attempt::AttemptError;
use crate::proxy::ReverseProxy;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{BodyError, Parts, Problem};

/// Why a request got no response from an upstream.
pub(crate) struct FailureDetail {
    pub(crate) attempt_error: AttemptError,
    /// The error that ended the client's content.
    pub(crate) body_error: Option<BodyError>,
}

impl ReverseProxy {
    /// Logs why no upstream responded, and returns the response for the client. `index` is the
    /// upstream that was tried last.
    pub(crate) fn to_problem(
        &self,
        failure: FailureDetail,
        index: usize,
        parts: &Parts,
    ) -> Problem {
        if let Some(error) = failure.body_error {
            return error.into();
        }
        if matches!(failure.attempt_error, AttemptError::InvalidTarget) {
            let detail = "the path or the query has characters that are invalid in a URL";
            return Problem::new(StatusCode::BAD_REQUEST, "invalid-target", detail);
        }
        let upstream = &self.upstreams.set().upstreams[index];
        catch_subscriber_panic(|| {
            tracing::warn!(
                target: "peregrine",
                upstream = %upstream,
                error = %failure.attempt_error,
                path = parts.head.path(),
                "a request could not be forwarded"
            );
        });
        match failure.attempt_error {
            AttemptError::ResponseTimeout | AttemptError::ConnectTimeout => {
                let detail = "the server behind this one did not respond in time; try again later";
                Problem::new(StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", detail)
            }
            AttemptError::NoFreeConnection | AttemptError::OutOfResources(_) => {
                let detail =
                    "there is no free connection to the server behind this one; try again later";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "upstream-busy", detail)
                    .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            AttemptError::Connect(_) => {
                let detail = "the server behind this one cannot be reached; try again later";
                Problem::new(StatusCode::BAD_GATEWAY, "upstream-unreachable", detail)
            }
            _ => {
                let detail = "the server behind this one sent no valid response; try again later";
                Problem::new(StatusCode::BAD_GATEWAY, "upstream-failed", detail)
            }
        }
    }
}
