//! The problem that lists all broken rules.

use http::StatusCode;
use peregrine_web::respond::IntoResponse;
use peregrine_web::{Problem, Response};
use serde_json::json;

/// The maximum number of rules in one problem; its member `more` counts the rest.
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
/// use peregrine::validate::Invalid;
///
/// async fn create(Json(name): Json<String>) -> Result<String, Problem> {
///     if name == "ada" {
///         return Err(Invalid::in_body().and("", "the name is taken").into());
///     }
///     Ok(name)
/// }
///
/// let client = App::new().post("/", create).test();
/// assert_eq!(client.post("/").json("ada").send_now().status(), 422);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    place: &'static str,
    errors: Vec<(String, String)>,
    more: usize,
}

impl Invalid {
    /// An empty list of errors in the body.
    #[must_use]
    pub fn in_body() -> Self {
        Self::of("body")
    }

    /// An empty list of errors in the query.
    #[must_use]
    pub fn in_query() -> Self {
        Self::of("query")
    }

    /// An empty list of errors in the path.
    #[must_use]
    pub fn in_path() -> Self {
        Self::of("path")
    }

    pub(crate) fn of(place: &'static str) -> Self {
        Self { place, errors: Vec::new(), more: 0 }
    }

    /// Adds an error at the value that `pointer` refers to.
    #[must_use]
    pub fn and(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push((shortened(pointer.into()), shortened(detail.into())));
        } else {
            self.more += 1;
        }
        self
    }

    /// Adds a number of errors that are not listed.
    pub(crate) fn more(self, more: usize) -> Self {
        Self { more: self.more + more, ..self }
    }

    /// Whether no error was added. For handlers that check several rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }
}

fn shortened(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push_str("...");
    }
    text
}

impl From<Invalid> for Problem {
    fn from(Invalid { place, errors, more }: Invalid) -> Self {
        let count = errors.len() + more;
        let detail = match &*errors {
            [(pointer, detail)] if pointer.is_empty() => format!("{place}: {detail}"),
            [(pointer, detail)] => format!("{place}: {pointer}: {detail}"),
            _ => format!("{place}: {count} values break a rule; see `errors`"),
        };
        let errors: Vec<_> = errors
            .into_iter()
            .map(|(pointer, detail)| json!({ "detail": detail, "pointer": pointer }))
            .collect();
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let problem = Self::new(status, "validation-failed", detail);
        let problem = problem.with("in", place).with("errors", errors);
        if more > 0 { problem.with("more", more) } else { problem }
    }
}

impl IntoResponse for Invalid {
    fn into_response(self) -> Response {
        Problem::from(self).into_response()
    }
}
