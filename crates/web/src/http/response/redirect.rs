//! Redirects.

use super::into_response::{IntoResponse, response_error};
use crate::http::response::Response;
use http::header::LOCATION;
use http::{HeaderValue, StatusCode};

/// A response that redirects the client.
///
/// The target is a URI reference. A target with a line break or another control character produces
/// a problem with status 500, so a target that is built from a request cannot add header fields.
///
/// ```
/// use peregrine::web::response::{IntoResponse, Redirect};
///
/// let response = Redirect::to("/birds/7").into_response();
/// assert_eq!(response.status, 303);
/// assert_eq!(response.headers.get(&peregrine::http::header::LOCATION).unwrap(), "/birds/7");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Redirect {
    status: StatusCode,
    /// `None` if the target is not a valid header value.
    location: Option<HeaderValue>,
}

impl Redirect {
    /// 303 (See Other): the client fetches the target with GET. The usual response to a submitted
    /// form.
    pub fn to(target: &str) -> Self {
        Self::new(StatusCode::SEE_OTHER, target)
    }

    /// 307 (Temporary Redirect): the client sends the same request to the target, this time only.
    pub fn temporary(target: &str) -> Self {
        Self::new(StatusCode::TEMPORARY_REDIRECT, target)
    }

    /// 308 (Permanent Redirect): the client sends the same request to the target, now and in
    /// future.
    pub fn permanent(target: &str) -> Self {
        Self::new(StatusCode::PERMANENT_REDIRECT, target)
    }

    fn new(status: StatusCode, target: &str) -> Self {
        Self { status, location: HeaderValue::from_str(target).ok() }
    }
}

impl IntoResponse for Redirect {
    fn into_response(self) -> Response {
        match self.location {
            Some(location) => Response::new(self.status).with_header(LOCATION, location),
            None => response_error("invalid-redirect", &"the target is not a valid header value"),
        }
    }
}
