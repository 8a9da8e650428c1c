//! The problem that lists all broken rules.

use http::StatusCode;
use peregrine_web::response::IntoResponse;
use peregrine_web::{Problem, Response};
use serde_json::json;

/// The maximum number of errors in one problem; its member `more` counts the rest.
pub const ERRORS_MAX: usize = 64;

/// The maximum length of a pointer or text in bytes: both may contain client data.
const TEXT_BYTES_MAX: usize = 200;

/// The values that break rules: the problem with which [`Valid`](crate::Valid) fails. Handlers can
/// create one too, for rules that need more than the value, such as unique names.
///
/// It has status 422, the kind `validation-failed`, a member `in` (`body`, `query` or `path`), and
/// a member `errors`, a list of objects with a `pointer` (RFC 6901; empty for the whole value) and
/// a `detail`.
///
/// ```
/// use peregrine::prelude::*;
/// use peregrine::validate::ValidationErrors;
///
/// async fn create(Json(name): Json<String>) -> Result<String, Problem> {
///     if name == "ada" {
///         return Err(ValidationErrors::in_body().add("", "the name is taken").into());
///     }
///     Ok(name)
/// }
///
/// let client = App::new().post("/", create).test();
/// assert_eq!(client.post("/").json("ada").send_blocking().status(), 422);
/// ```
#[doc(alias = "Report")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidationErrors {
    location: &'static str,
    errors: Vec<(String, String)>,
    omitted: usize,
}

impl ValidationErrors {
    /// Creates an empty list of errors in the body.
    #[must_use]
    pub fn in_body() -> Self {
        Self::new("body")
    }

    /// Creates an empty list of errors in the query.
    #[must_use]
    pub fn in_query() -> Self {
        Self::new("query")
    }

    /// Creates an empty list of errors in the path.
    #[must_use]
    pub fn in_path() -> Self {
        Self::new("path")
    }

    pub(crate) fn new(location: &'static str) -> Self {
        Self { location, errors: Vec::new(), omitted: 0 }
    }

    /// Adds an error at the value that `pointer` refers to.
    #[must_use]
    pub fn add(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push((truncated(pointer.into()), truncated(detail.into())));
        } else {
            self.omitted += 1;
        }
        self
    }

    /// Adds a number of errors that are not listed.
    pub(crate) fn with_omitted(self, omitted: usize) -> Self {
        Self { omitted: self.omitted + omitted, ..self }
    }

    /// Whether no error was added. For handlers that check several rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }
}

fn truncated(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push_str("...");
    }
    text
}

impl From<ValidationErrors> for Problem {
    fn from(ValidationErrors { location, errors, omitted }: ValidationErrors) -> Self {
        let count = errors.len() + omitted;
        let detail = match &*errors {
            [(pointer, detail)] if pointer.is_empty() => format!("{location}: {detail}"),
            [(pointer, detail)] => format!("{location}: {pointer}: {detail}"),
            _ => format!("{location}: {count} values break a rule; see `errors`"),
        };
        let errors: Vec<_> = errors
            .into_iter()
            .map(|(pointer, detail)| json!({ "detail": detail, "pointer": pointer }))
            .collect();
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let problem = Self::new(status, "validation-failed", detail);
        let problem = problem.with_member("in", location).with_member("errors", errors);
        if omitted > 0 { problem.with_member("more", omitted) } else { problem }
    }
}

impl IntoResponse for ValidationErrors {
    fn into_response(self) -> Response {
        Problem::from(self).into_response()
    }
}
