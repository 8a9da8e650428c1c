//! The responses to clients when no upstream has responded.

use crate::attempt::Failure;
use crate::proxy::Proxy;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use peregrine_web::panics::contained;
use peregrine_web::{BodyError, Parts, Problem};

/// Why a request got no response from an upstream.
pub(crate) struct Why {
    pub(crate) failure: Failure,
    /// The error that ended the client's content.
    pub(crate) error: Option<BodyError>,
}

impl Proxy {
    pub(crate) fn explain(&self, why: Why, number: usize, parts: &Parts) -> Problem {
        if let Some(error) = why.error {
            return error.into();
        }
        if matches!(why.failure, Failure::Target) {
            let detail = "the path or the query has characters that are invalid in a URL";
            return Problem::new(StatusCode::BAD_REQUEST, "invalid-target", detail);
        }
        let upstream = &self.upstreams.shared().all[number];
        contained(|| {
            tracing::warn!(
                target: "peregrine",
                upstream = %upstream,
                why = %why.failure,
                path = parts.head.path(),
                "a request could not be forwarded"
            );
        });
        match why.failure {
            Failure::Late | Failure::ConnectLate => {
                let detail = "the server behind this one did not respond in time; try again later";
                Problem::new(StatusCode::GATEWAY_TIMEOUT, "upstream-late", detail)
            }
            Failure::Crowded | Failure::Exhausted(_) => {
                let detail =
                    "there is no free connection to the server behind this one; try again later";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "upstream-busy", detail)
                    .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
            }
            Failure::Unreachable(_) => {
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
