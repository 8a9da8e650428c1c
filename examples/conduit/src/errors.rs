//! Errors in the format of the specification: `{"errors": {"title": ["can't be blank"]}}`.
//!
//! Handlers return an [`Error`], the framework's extractors a [`Problem`]; [`render`] formats both,
//! and the server's own error responses.

use crate::pages;
use peregrine::multipart::UploadError;
use peregrine::openapi::{OperationOutput, ResponsesBuilder};
use peregrine::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The member of a problem that contains the specification's errors.
const ERRORS: &str = "errors";
/// The names of the objects that wrap the values in this API's documents.
const WRAPPERS: [&str; 3] = ["user", "article", "comment"];

/// Error messages by field.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Errors {
    errors: BTreeMap<String, Vec<String>>,
}

/// The error type of the handlers.
#[derive(Debug)]
pub(crate) struct Error(pub(crate) Problem);

/// A problem with a field or an object, in the specification's wording.
pub(crate) fn about(status: StatusCode, subject: &str, text: &str) -> Problem {
    let kind = format!("{subject}-{}", text.replace(' ', "-"));
    Problem::new(status, kind, format!("{subject} {text}"))
        .with_member(ERRORS, json!({ subject: [text] }))
}

/// The object does not exist.
pub(crate) fn not_found(subject: &'static str) -> Error {
    Error(about(StatusCode::NOT_FOUND, subject, "not found"))
}

/// The object belongs to another user.
pub(crate) fn forbidden(subject: &'static str) -> Error {
    Error(about(StatusCode::FORBIDDEN, subject, "forbidden"))
}

/// The value must be unique, and another user has it.
pub(crate) fn taken(subject: &'static str) -> Error {
    Error(about(StatusCode::CONFLICT, subject, "has already been taken"))
}

/// The request violates a rule that cannot be checked on a single value.
pub(crate) fn invalid(subject: &str, text: &str) -> Error {
    Error(about(StatusCode::UNPROCESSABLE_ENTITY, subject, text))
}

/// The server failed. The cause is logged and not sent to the client.
pub(crate) fn internal(what: &'static str, cause: &dyn std::fmt::Display) -> Error {
    tracing::error!(%cause, "{what}");
    let detail = "The server failed to process this request.";
    Error(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal-error", detail))
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            // All connections were busy, or another connection was writing, for longer than
            // the acquire timeout.
            sqlx::Error::PoolTimedOut => Self(Problem::overloaded(1)),
            sqlx::Error::Database(error) if is_busy(&*error) => Self(Problem::overloaded(1)),
            error => internal("a database operation failed", &error),
        }
    }
}

/// SQLITE_BUSY or one of its extended codes: <https://sqlite.org/rescode.html#busy>.
fn is_busy(error: &dyn sqlx::error::DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| code & 0xff == 5)
}

impl From<UploadError> for Error {
    fn from(error: UploadError) -> Self {
        Self(error.into())
    }
}

impl From<askama::Error> for Error {
    fn from(error: askama::Error) -> Self {
        internal("a page could not be rendered", &error)
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// The routes document the statuses.
impl OperationOutput for Error {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.any_problem();
    }
}

/// Formats every problem: below `/api` as the specification requires, elsewhere as an HTML page for
/// clients that accept HTML.
pub(crate) fn render(problem: Problem, head: &RequestHead) -> Response {
    if head.path().starts_with("/api/") {
        return (problem.status, Json(errors(&problem))).into_response();
    }
    let accept = head.header("accept").unwrap_or_default();
    if accept.contains("text/html") {
        return pages::of_problem(&problem);
    }
    problem.into_response()
}

/// The problem in the specification's format.
fn errors(problem: &Problem) -> Errors {
    let member = |name: &str| {
        problem.members.iter().find(|(present, _)| present == name).map(|(_, value)| value)
    };
    let mut errors = Errors::default();
    match (member(ERRORS), member("path")) {
        // From `about`.
        (Some(Value::Object(known)), _) => {
            for (subject, texts) in known {
                let texts = texts.as_array().into_iter().flatten().filter_map(Value::as_str);
                errors.errors.insert(subject.clone(), texts.map(str::to_owned).collect());
            }
        }
        // From `Valid`: a list of JSON pointers.
        (Some(Value::Array(broken)), _) => {
            for one in broken {
                let text = |name: &str| one[name].as_str().unwrap_or_default();
                let subject = subject(text("pointer").split('/'));
                errors.errors.entry(subject).or_default().push(text("detail").to_owned());
            }
        }
        // From `Json` and `Query`: the path of a value of the wrong type.
        (_, Some(Value::String(path))) => {
            // The detail starts with the path.
            let text = problem.detail.strip_prefix(&**path).unwrap_or(&problem.detail);
            let text = text.strip_prefix(": ").unwrap_or(text);
            errors.errors.insert(subject(path.split('.')), vec![text.to_owned()]);
        }
        _ => {
            let (subject, text) = (problem.kind.clone().into_owned(), problem.detail.clone());
            errors.errors.insert(subject, vec![text.into_owned()]);
        }
    }
    errors
}

/// The field that contains the value at a path.
fn subject<'p>(path: impl Iterator<Item = &'p str>) -> String {
    let mut names = path.filter(|name| !name.is_empty()).peekable();
    let first = names.next().unwrap_or("body");
    let inner = names.next().filter(|_| WRAPPERS.contains(&first));
    // The path of a value of the wrong type may be `tagList[3]`.
    inner.unwrap_or(first).split('[').next().unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine::validate::ValidationErrors;

    #[test]
    fn every_kind_of_problem_is_told_in_the_form_of_the_specification() {
        let many = ValidationErrors::in_body().add("/user/email", "can't be blank");
        let many = many.add("/user/email", "too short").add("/article/tagList/3", "too long");
        let of_shape = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "x", "user.bio: a number: 7");
        for (problem, expected) in [
            (not_found("article").0, json!({ "article": ["not found"] })),
            (
                many.into(),
                json!({ "email": ["can't be blank", "too short"], "tagList": ["too long"] }),
            ),
            (of_shape.with_member("path", "user.bio"), json!({ "bio": ["a number: 7"] })),
            (Problem::overloaded(1), json!({ "overloaded": [Problem::overloaded(1).detail] })),
        ] {
            let found = serde_json::to_value(errors(&problem)).expect("valid JSON");
            assert_eq!(found["errors"], expected);
        }
    }

    #[test]
    fn what_the_data_base_says_stays_inside() {
        let Error(problem) = sqlx::Error::Protocol("a secret".to_owned()).into();
        assert_eq!(problem.status, 500);
        assert!(!problem.to_json().contains("secret"));
    }
}
