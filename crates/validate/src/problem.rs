//! The problem that lists every rule that is broken.

use http::StatusCode;
use peregrine_web::respond::IntoResponse;
use peregrine_web::{Problem, Response};
use serde_json::json;

/// The most rules that one problem lists; how many more there were is its member `more`.
pub const ERRORS_MAX: usize = 64;

/// The most bytes of a pointer or a text: both may hold what the peer sent.
const TEXT_BYTES_MAX: usize = 200;

/// Values that break rules: the problem that [`Valid`](crate::Valid) answers with. A handler may make one of its own,
/// for rules that need more than the value, such as a name that is taken.
///
/// It has status 422, the kind `validation-failed`, a member `in` (`body`, `query` or `path`), and a member
/// `errors`, a list of objects with a `pointer` (RFC 6901; the empty one is the whole value) and a `detail`.
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
    /// Nothing yet, in the body.
    #[must_use]
    pub fn in_body() -> Self {
        Self::of("body")
    }

    /// Nothing yet, in the query.
    #[must_use]
    pub fn in_query() -> Self {
        Self::of("query")
    }

    /// Nothing yet, in the path.
    #[must_use]
    pub fn in_path() -> Self {
        Self::of("path")
    }

    pub(crate) fn of(place: &'static str) -> Self {
        Self { place, errors: Vec::new(), more: 0 }
    }

    /// Adds what is wrong with the value that `pointer` leads to.
    #[must_use]
    pub fn and(mut self, pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push((shortened(pointer.into()), shortened(detail.into())));
        } else {
            self.more += 1;
        }
        self
    }

    /// Says that there are so many beside those that were added.
    pub(crate) fn more(self, more: usize) -> Self {
        Self { more: self.more + more, ..self }
    }

    /// Was anything added? For handlers that check several rules.
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
            _ => format!("{place}: {count} values break a rule; `errors` has them"),
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
