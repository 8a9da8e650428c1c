//! Responses from the values that handlers return.

mod content;
mod fields;
mod redirect;
mod tuples;

pub use content::{Form, Html, Json};
pub use fields::AppendHeaders;
pub(crate) use fields::only;
pub use redirect::Redirect;

use crate::problem::Problem;
use crate::response::Response;

/// A value that a handler can return.
///
/// ```
/// use http::{StatusCode, header::RETRY_AFTER};
/// use peregrine_web::respond::{IntoResponse, Json};
///
/// async fn text() -> &'static str {
///     "hello"
/// }
///
/// async fn more() -> impl IntoResponse {
///     (StatusCode::ACCEPTED, [(RETRY_AFTER, "5")], Json(["soon"]))
/// }
/// # let response = (StatusCode::ACCEPTED, [(RETRY_AFTER, "5")], Json(["soon"])).into_response();
/// # assert_eq!((response.status.as_u16(), response.fields.len()), (202, 2));
/// # let _ = (text, more);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be returned from a handler",
    label = "not a response",
    note = "return `Response`, text, bytes, `StatusCode`, `Html<_>`, `Redirect`, `Result<_, Problem>`, or a tuple `(StatusCode, headers, body)`",
    note = "to send it as JSON, derive `serde::Serialize` and return `Json<{Self}>`"
)]
pub trait IntoResponse {
    /// Makes the response.
    fn into_response(self) -> Response;
}

/// A value that changes a response: a status, header fields, cookies. It stands before the last
/// place of a tuple; the parts are applied from left to right to the response of the last.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand before the body in a tuple that a handler returns",
    label = "not a part of a response",
    note = "parts are `StatusCode`, `HeaderMap`, `[(name, value); N]`, `AppendHeaders`, `TypedHeader`, `Cookies` and `Extension`; the body comes last"
)]
pub trait IntoResponseParts {
    /// Changes `response`.
    ///
    /// # Errors
    /// The value is none that a response may have, such as a header value with a line break. The
    /// problem is sent in the response's place.
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem>;
}

/// Marks a response as one of the framework's own failures to make a response. A status before it
/// in a tuple must not cover that up.
#[derive(Clone, Copy)]
pub(crate) struct Failed;

/// The response in place of one that could not be made. `error` goes to the log.
pub(crate) fn failed(kind: &'static str, error: &dyn std::fmt::Display) -> Response {
    tracing::error!(kind, %error, "a response could not be made");
    failed_by(Problem::new(
        http::StatusCode::INTERNAL_SERVER_ERROR,
        kind,
        "the server could not make the response; its log says why",
    ))
}

pub(crate) fn failed_by(problem: Problem) -> Response {
    let mut response = problem.into_response();
    response.extensions_mut().insert(Failed);
    response
}

pub(crate) fn is_failed(response: &Response) -> bool {
    response.extensions().is_some_and(|extensions| extensions.get::<Failed>().is_some())
}
