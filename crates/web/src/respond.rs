//! What handlers return, turned into responses.

use crate::problem::Problem;
use crate::response::Response;
use http::StatusCode;

/// A value that a handler may return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be returned by a handler",
    label = "no response can be made of this"
)]
pub trait IntoResponse {
    /// Makes a response of the value.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for &'static str {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK).with_body(self)
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK).with_body(self)
    }
}

impl IntoResponse for () {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK)
    }
}

impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.status).with_body(self.detail.to_string());
        response.extensions_mut().insert(self);
        response
    }
}

impl<T: IntoResponse, E: IntoResponse> IntoResponse for Result<T, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(value) => value.into_response(),
            Err(error) => error.into_response(),
        }
    }
}
