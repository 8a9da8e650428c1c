//! JSON from the body.

use super::body::{has_no_body, optional_from_body, read_body};
use super::content_type::{check_content_type, is_json};
use super::{FromRequest, Json, truncate};
use crate::http::problem::Problem;
use crate::http::request::Request;
use http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use std::borrow::Cow;

/// See [`Json`]. The problems are: 415 for another `Content-Type`; 400 for an empty body, and for a
/// body that is not JSON, with `line` and `column`; 422 for JSON that cannot be read as a `T`, with
/// the `path` of the field; 413, 408 and 400 for a body that could not be received.
///
/// `Option<Json<T>>` is `None` for a request with neither a body nor a `Content-Type`.
impl<T: DeserializeOwned> FromRequest for Json<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        json_with(request, |value, _| Ok(Self(value))).await
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

/// Reads like [`Json`], then calls `then` with the value and the bytes from which it was read.
///
/// # Errors
/// Those of [`Json`], and those of `then`.
pub async fn json_with<T: DeserializeOwned, R>(
    request: Request,
    then: impl FnOnce(T, &[u8]) -> Result<R, Problem>,
) -> Result<R, Problem> {
    json_with_parser(request, |_| None, then).await
}

/// Like [`json_with`], but calls `parser` first. If `parser` returns `None`, parses with
/// `serde_json`.
pub(crate) async fn json_with_parser<T: DeserializeOwned, R>(
    request: Request,
    parser: impl FnOnce(&[u8]) -> Option<T>,
    then: impl FnOnce(T, &[u8]) -> Result<R, Problem>,
) -> Result<R, Problem> {
    if has_no_body(&request) {
        return Err(empty_body());
    }
    check_content_type(&request.parts.head, "application/json (or end in +json)", is_json)?;
    let deserialize = |bytes: &[u8]| parser(bytes).map_or_else(|| parse(bytes), Ok);
    read_body(request.body, |bytes| deserialize(bytes).and_then(|value| then(value, bytes))).await?
}

/// Reads a document from one line of a body. Problems contain the line's `number`.
pub(crate) fn json_from_line<T: DeserializeOwned>(line: &[u8], number: u64) -> Result<T, Problem> {
    parse(line).map_err(|mut problem| {
        // `parse` reports the line within the document, which is always 1.
        problem.members.retain(|(name, _)| name != "line");
        problem.detail = format!("line {number}: {}", problem.detail).into();
        problem.with_member("line", number)
    })
}

fn empty_body() -> Problem {
    Problem::new(
        StatusCode::BAD_REQUEST,
        "empty-body",
        "the body is empty, but a JSON document is expected",
    )
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Tracking the path costs time at every field. Therefore a document is first read without
    // tracking, and read again with tracking only if that fails.
    serde_json::from_slice(bytes).map_err(|error| json_error::<T>(bytes, &error))
}

#[cold]
fn json_error<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Problem {
    if bytes.trim_ascii().is_empty() {
        return empty_body();
    }
    let (line, column) = (error.line(), error.column());
    if error.classify() != Category::Data {
        return Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid-json",
            format!("the body is not valid JSON: {error}"),
        )
        .with_member("line", line)
        .with_member("column", column);
    }
    let deserializer = &mut serde_json::Deserializer::from_slice(bytes);
    let path = match serde_path_to_error::deserialize::<_, T>(deserializer) {
        Err(error) => error.path().to_string(),
        // `T::deserialize` may depend on more than the document, and so succeed this time.
        Ok(_) => String::from("."),
    };
    let text = error.to_string();
    // The problem has `line` and `column` members, so the reason need not contain the position.
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    field_problem(&path, reason).with_member("line", line).with_member("column", column)
}

/// The problem for a value with valid syntax but invalid content, at `path`. The path `.` stands
/// for the whole document.
#[must_use]
pub fn field_problem(path: &str, reason: &str) -> Problem {
    let reason = strip_type_names(reason);
    // The path may contain a key and the reason a value, both from the peer.
    let (path, reason) = (truncate(path), truncate(&reason));
    let (path, reason) = match missing_field_name(&reason) {
        Some(name) if path == "." => (name.to_owned(), "missing field"),
        Some(name) => (format!("{path}.{name}"), "missing field"),
        None => (path.into_owned(), &*reason),
    };
    let kind = "unexpected-value";
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    // Clients that display the reason next to a form field need a reason without the path.
    let (detail, path) = match &*path {
        "." => (reason.to_owned(), String::new()),
        _ => (format!("{path}: {reason}"), path),
    };
    Problem::new(status, kind, detail).with_member("path", path).with_member("reason", reason)
}

/// The field name in serde's message for a missing field. The path from `serde_path_to_error` ends
/// at the object that lacks the field, so it does not contain the name.
fn missing_field_name(reason: &str) -> Option<&str> {
    reason.strip_prefix("missing field `")?.strip_suffix('`')
}

/// The reason without the names of Rust types, which serde includes. The expected value is
/// described in JSON's terms instead.
fn strip_type_names(reason: &str) -> Cow<'_, str> {
    const DESCRIPTIONS: [(&str, &str); 7] = [
        ("tuple struct ", "a list"),
        ("tuple variant ", "a list"),
        ("unit struct ", "null"),
        ("struct variant ", "an object"),
        ("struct ", "an object"),
        ("internally tagged enum ", "an object with a tag"),
        ("enum ", "the name of a variant, or an object with one"),
    ];
    if reason.starts_with("data did not match any variant of untagged enum ") {
        return "the value matches none of the allowed forms".into();
    }
    // The peer's value may contain `, expected ` too, but it precedes the last occurrence.
    let Some((received, expected)) = reason.rsplit_once(", expected ") else {
        return reason.into();
    };
    for (prefix, description) in DESCRIPTIONS {
        if let Some(name) = expected.strip_prefix(prefix) {
            let rest = name.split_once(' ').map(|(_, rest)| format!(" {rest}")).unwrap_or_default();
            return format!("{received}, expected {description}{rest}").into();
        }
    }
    reason.into()
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_request, incoming, post};
    use super::*;
    use crate::http::body::Body;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Clone, Debug, Deserialize, PartialEq)]
    struct Bird {
        name: String,
        #[serde(default)]
        tags: Vec<Tag>,
    }

    #[derive(Clone, Debug, Deserialize, PartialEq)]
    struct Tag {
        name: String,
        weight: u8,
    }

    const JSON: &[(&str, &str)] = &[("content-type", "application/json; charset=utf-8")];

    fn problem(fields: &[(&str, &str)], body: &'static str) -> Problem {
        let full = assert_ready(from_request::<Json<Bird>>(post("/", fields, Body::from(body))));
        let streamed =
            assert_ready(from_request::<Json<Bird>>(post("/", fields, incoming(&[body], 9999))));
        assert_eq!(full, streamed, "full and streamed bodies cause the same problem");
        full.expect_err("a problem")
    }

    fn member<'p>(problem: &'p Problem, name: &str) -> &'p serde_json::Value {
        let entry = problem.members.iter().find(|(member, _)| member == name);
        &entry.unwrap_or_else(|| panic!("{name} in {problem:?}")).1
    }

    #[test]
    fn reads_json_from_a_full_body_and_from_a_streamed_body() {
        let tag = Tag { name: "fast".into(), weight: 7 };
        let bird = Bird { name: "lanner".into(), tags: vec![tag] };
        let text = r#"{"name":"lanner","tags":[{"name":"fast","weight":7}]}"#;
        let (left, right) = text.split_at(20);
        for body in [Body::from(text), incoming(&[left, right], 100)] {
            let request = post("/", &[("Content-Type", "application/vnd.bird+json")], body);
            assert_eq!(assert_ready(from_request::<Json<Bird>>(request)), Ok(Json(bird.clone())));
        }
    }

    #[test]
    fn returns_the_buffer_of_a_streamed_body_to_the_pool() {
        let buffer = crate::http::body::pool::get();
        let address = buffer.as_ptr();
        crate::http::body::pool::put(buffer);
        for chunks in [["[1,", "2]"], ["[1,", "oops"]] {
            let result =
                assert_ready(from_request::<Json<[u8; 2]>>(post("/", JSON, incoming(&chunks, 99))));
            assert_eq!(result.is_ok(), chunks[1] == "2]");
            let reused = crate::http::body::pool::get();
            assert_eq!(reused.as_ptr(), address);
            crate::http::body::pool::put(reused);
        }
    }

    #[test]
    fn a_wrong_content_type_is_a_415_that_names_the_expected_one() {
        let other = problem(&[("content-type", "text/plain")], "{}");
        assert_eq!((other.status.as_u16(), other.kind.as_ref()), (415, "unsupported-media-type"));
        assert!(other.detail.contains("`text/plain`") && other.detail.contains("application/json"));
        assert_eq!(member(&other, "sent"), "text/plain");
        let none = problem(&[], "{}");
        assert_eq!(none.status, 415);
        assert!(none.detail.contains("no Content-Type"), "{}", none.detail);
    }

    #[test]
    fn a_syntax_error_has_a_line_and_a_column() {
        let problem = problem(JSON, "{\n  \"name\": nope\n}");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-json"));
        assert!(problem.detail.contains("not valid JSON: expected"), "{}", problem.detail);
        assert_eq!((member(&problem, "line"), member(&problem, "column")), (&json!(2), &json!(12)));
    }

    #[test]
    fn a_truncated_document_or_extra_data_is_a_syntax_error() {
        for body in ["{\"name\":", "{\"name\":\"a\"} x"] {
            let problem = problem(JSON, body);
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-json"));
        }
    }

    #[test]
    fn an_unexpected_value_is_a_422_with_its_path() {
        for (body, path, detail) in [
            (r#"{"tags":[]}"#, "name", "name: missing field"),
            (
                r#"{"name":"a","tags":[{"name":"b","weight":1},{"name":"c","weight":1},{"weight":1}]}"#,
                "tags[2].name",
                "tags[2].name: missing field",
            ),
            (
                r#"{"name":"a","tags":[{"name":"b","weight":300}]}"#,
                "tags[0].weight",
                "tags[0].weight: invalid value: integer `300`, expected u8",
            ),
            ("[1]", "[0]", "[0]: invalid type: integer `1`, expected a string"),
            ("7", "", "invalid type: integer `7`, expected an object"),
        ] {
            let problem = problem(JSON, body);
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (422, "unexpected-value"));
            assert_eq!(problem.detail, detail);
            assert_eq!(member(&problem, "path"), path);
            assert_eq!(member(&problem, "line"), 1);
        }
    }

    #[test]
    fn problems_do_not_reveal_the_names_of_rust_types() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Secret(u8, u8);
        #[derive(Debug, Deserialize, PartialEq)]
        struct SecretUnit;
        #[derive(Debug, Deserialize, PartialEq)]
        enum SecretKind {
            A,
            B(u8, u8),
            C { x: u8 },
        }
        #[derive(Debug, Deserialize, PartialEq)]
        #[serde(tag = "kind")]
        enum SecretTag {
            A { x: u8 },
        }
        #[derive(Debug, Deserialize, PartialEq)]
        #[serde(untagged)]
        enum SecretEither {
            A(u8),
            B(bool),
        }
        fn detail<T: DeserializeOwned>(body: &str) -> String {
            let request = post("/", JSON, Body::from(body.to_owned()));
            let problem = assert_ready(from_request::<Json<T>>(request))
                .map(drop)
                .expect_err("an unexpected value");
            assert_eq!(problem.status, 422);
            problem.detail.into_owned()
        }
        for (detail, expected) in [
            (detail::<Bird>("7"), "invalid type: integer `7`, expected an object"),
            (detail::<Secret>("7"), "invalid type: integer `7`, expected a list"),
            (detail::<Secret>("[7]"), "invalid length 1, expected a list with 2 elements"),
            (detail::<SecretUnit>("7"), "invalid type: integer `7`, expected null"),
            (detail::<SecretKind>(r#"{"B":7}"#), "B: invalid type: integer `7`, expected a list"),
            (
                detail::<SecretKind>(r#"{"C":7}"#),
                "C: invalid type: integer `7`, expected an object",
            ),
            (detail::<SecretTag>("7"), "invalid type: integer `7`, expected an object with a tag"),
            (detail::<SecretEither>("[]"), "the value matches none of the allowed forms"),
        ] {
            assert_eq!(detail, expected);
        }
        // Text in the peer's value is not replaced, even if it looks like a type name.
        let sent = detail::<Bird>(r#""a, expected struct X""#);
        assert_eq!(sent, r#"invalid type: string "a, expected struct X", expected an object"#);
    }

    #[test]
    fn a_long_value_is_truncated_in_the_problem() {
        let body = format!("[\"{}\"]", "\u{e9}".repeat(100_000));
        let request = post("/", JSON, Body::from(body));
        let problem =
            assert_ready(from_request::<Json<[u8; 1]>>(request)).expect_err("not a number");
        assert!(problem.detail.starts_with("[0]: invalid type: string \"\u{e9}\u{e9}"));
        assert!(problem.detail.ends_with("...") && problem.detail.len() < 250);
    }

    #[test]
    fn an_empty_body_is_a_400_of_its_own_kind() {
        for (fields, body) in [(JSON, ""), (JSON, " \n"), (&[][..], "")] {
            let request = post("/", fields, Body::from(body));
            let problem =
                assert_ready(from_request::<Json<Bird>>(request)).expect_err("an empty body");
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "empty-body"));
            assert!(problem.detail.contains("empty"));
        }
    }

    #[test]
    fn an_optional_document_may_be_absent_but_not_invalid() {
        let none = assert_ready(from_request::<Option<Json<Bird>>>(post("/", &[], Body::empty())));
        assert_eq!(none, Ok(None));
        let invalid =
            assert_ready(from_request::<Option<Json<Bird>>>(post("/", JSON, Body::from("[1]"))));
        assert_eq!(invalid.expect_err("not a bird").status, 422);
        let result = assert_ready(from_request::<Result<Json<Bird>, Problem>>(post(
            "/",
            JSON,
            Body::from("x"),
        )));
        assert_eq!(result.expect("the extractor never fails").expect_err("not JSON").status, 400);
    }
}
