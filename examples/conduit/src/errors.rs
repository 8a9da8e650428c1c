//! What went wrong, in the form that the specification wants: `{"errors": {"title": ["can't be blank"]}}`.
//!
//! Handlers fail with an [`Error`], extractors of the framework with a [`Problem`]; [`render`] gives both their form, and
//! the server's own answers too.

use crate::pages;
use peregrine::multipart::StoreError;
use peregrine::openapi::{DescribeResponse, Responses};
use peregrine::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The member of a problem that has the specification's errors.
const ERRORS: &str = "errors";
/// What the documents of this API wrap their values in.
const WRAPPERS: [&str; 3] = ["user", "article", "comment"];

/// What is wrong, by what it is wrong with.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Errors {
    errors: BTreeMap<String, Vec<String>>,
}

/// A handler could not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Error(pub(crate) Problem);

/// A problem about something, in the specification's words.
pub(crate) fn about(status: StatusCode, subject: &str, text: &str) -> Problem {
    let kind = format!("{subject}-{}", text.replace(' ', "-"));
    Problem::new(status, kind, format!("{subject} {text}")).with(ERRORS, json!({ subject: [text] }))
}

/// There is no such thing, or none of that name.
pub(crate) fn not_found(subject: &'static str) -> Error {
    Error(about(StatusCode::NOT_FOUND, subject, "not found"))
}

/// It is somebody else's.
pub(crate) fn forbidden(subject: &'static str) -> Error {
    Error(about(StatusCode::FORBIDDEN, subject, "forbidden"))
}

/// What must be unique is not.
pub(crate) fn taken(subject: &'static str) -> Error {
    Error(about(StatusCode::CONFLICT, subject, "has already been taken"))
}

/// It breaks a rule that needs more than the value.
pub(crate) fn invalid(subject: &str, text: &str) -> Error {
    Error(about(StatusCode::UNPROCESSABLE_ENTITY, subject, text))
}

/// The server failed; the log has the cause, and the client nothing of it.
pub(crate) fn internal(what: &'static str, cause: &dyn std::fmt::Display) -> Error {
    tracing::error!(%cause, "{what}");
    let detail = "The server failed while it worked on this request.";
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
            // All connections are busy for longer than a request should wait, or somebody else writes for so long.
            sqlx::Error::PoolTimedOut => Self(Problem::overloaded(1)),
            sqlx::Error::Database(error) if is_busy(&*error) => Self(Problem::overloaded(1)),
            error => internal("the data base did not do what it should", &error),
        }
    }
}

/// SQLITE_BUSY, of whatever kind: <https://sqlite.org/rescode.html#busy>.
fn is_busy(error: &dyn sqlx::error::DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<u32>().ok());
    code.is_some_and(|code| code & 0xff == 5)
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self(error.into())
    }
}

impl From<askama::Error> for Error {
    fn from(error: askama::Error) -> Self {
        internal("a page could not be made", &error)
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// Which statuses, the routes tell.
impl DescribeResponse for Error {
    fn describe(responses: &mut Responses) {
        responses.any_problem();
    }
}

/// Gives every problem its form: below `/api` that of the specification, elsewhere a page for who wants one.
pub(crate) fn render(problem: Problem, head: &Head) -> Response {
    if head.path().starts_with("/api/") {
        return (problem.status, Json(errors(&problem))).into_response();
    }
    let accept = head.field_text("accept").unwrap_or_default();
    if accept.contains("text/html") {
        return pages::of_problem(&problem);
    }
    problem.into_response()
}

/// The problem in the specification's words.
fn errors(problem: &Problem) -> Errors {
    let member = |name: &str| {
        problem.members.iter().find(|(present, _)| present == name).map(|(_, value)| value)
    };
    let mut errors = Errors::default();
    match (member(ERRORS), member("path")) {
        // Of ours.
        (Some(Value::Object(known)), _) => {
            for (subject, texts) in known {
                let texts = texts.as_array().into_iter().flatten().filter_map(Value::as_str);
                errors.errors.insert(subject.clone(), texts.map(str::to_owned).collect());
            }
        }
        // Of `Valid`: a list of pointers.
        (Some(Value::Array(broken)), _) => {
            for one in broken {
                let text = |name: &str| one[name].as_str().unwrap_or_default();
                let subject = subject(text("pointer").split('/'));
                errors.errors.entry(subject).or_default().push(text("detail").to_owned());
            }
        }
        // Of `Json` and `Query`: one place whose value has the wrong shape.
        (_, Some(Value::String(path))) => {
            // The detail begins with the path.
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

/// The field that a path leads to, or into.
fn subject<'p>(path: impl Iterator<Item = &'p str>) -> String {
    let mut names = path.filter(|name| !name.is_empty()).peekable();
    let first = names.next().unwrap_or("body");
    let inner = names.next().filter(|_| WRAPPERS.contains(&first));
    // `tagList[3]`, as the path of a value of the wrong shape has it.
    inner.unwrap_or(first).split('[').next().unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine::validate::Invalid;

    #[test]
    fn every_kind_of_problem_is_told_in_the_form_of_the_specification() {
        let many = Invalid::in_body().and("/user/email", "can't be blank");
        let many = many.and("/user/email", "too short").and("/article/tagList/3", "too long");
        let of_shape = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "x", "user.bio: a number: 7");
        for (problem, expected) in [
            (not_found("article").0, json!({ "article": ["not found"] })),
            (
                many.into(),
                json!({ "email": ["can't be blank", "too short"], "tagList": ["too long"] }),
            ),
            (of_shape.with("path", "user.bio"), json!({ "bio": ["a number: 7"] })),
            (Problem::overloaded(1), json!({ "overloaded": [Problem::overloaded(1).detail] })),
        ] {
            let found = serde_json::to_value(errors(&problem)).expect("a document");
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
