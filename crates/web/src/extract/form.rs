//! URL-encoded forms, from the body or from the query.

use super::body::{has_no_body, read_body};
use super::content_type::{check_content_type, is_form};
use super::{Form, FromRequest, query};
use crate::http::problem::Problem;
use crate::http::request::Request;
use http::Method;
use serde::de::DeserializeOwned;

/// See [`Form`]. For GET and HEAD, the problems are those of [`super::Query`]. For other methods,
/// the problems are: 415 for another `Content-Type`; 422 for a form that cannot be read as a `T`,
/// with the `path` of the field; 413, 408 and 400 for a body that could not be received.
///
/// `Option<Form<T>>` is `None` for GET and HEAD requests without a query, and for other requests
/// with neither a body nor a `Content-Type`.
impl<T: DeserializeOwned> FromRequest for Form<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        if is_in_query(&request) {
            return query::parse(request.parts.head.query().unwrap_or_default()).map(Form);
        }
        let head = &request.parts.head;
        check_content_type(head, "application/x-www-form-urlencoded", is_form)?;
        read_body(request.body, query::parse_form).await?.map(Form)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        let is_absent = if is_in_query(&request) {
            request.parts.head.query().is_none()
        } else {
            has_no_body(&request)
        };
        if is_absent { Ok(None) } else { Self::from_request(request).await.map(Some) }
    }
}

fn is_in_query(request: &Request) -> bool {
    matches!(request.method(), Method::GET | Method::HEAD)
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_request, get, incoming, post};
    use super::*;
    use crate::http::body::Body;
    use serde::Deserialize;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Login {
        name: String,
        tries: Option<u8>,
    }

    const FORM: &[(&str, &str)] = &[("content-type", "application/x-www-form-urlencoded")];

    #[test]
    fn reads_the_form_from_the_body_or_for_get_from_the_query() {
        let expected = || Ok(Form(Login { name: "a b".into(), tries: Some(3) }));
        let body = post("/?name=no", FORM, Body::from("name=a+b&tries=3"));
        assert_eq!(assert_ready(from_request::<Form<Login>>(body)), expected());
        let streamed = post("/", FORM, incoming(&["name=a+", "b&tries=3"], 100));
        assert_eq!(assert_ready(from_request::<Form<Login>>(streamed)), expected());
        assert_eq!(
            assert_ready(from_request::<Form<Login>>(get("/?name=a%20b&tries=3"))),
            expected()
        );
    }

    #[test]
    fn an_invalid_form_names_the_field_and_a_wrong_content_type_the_expected_one() {
        let invalid = post("/", FORM, Body::from("name=a&tries=300"));
        let problem =
            assert_ready(from_request::<Form<Login>>(invalid)).expect_err("300 exceeds a u8");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (422, "unexpected-value"));
        assert!(problem.detail.starts_with("tries: "), "{}", problem.detail);
        assert_eq!(problem.members[0], ("path".into(), "tries".into()));
        let reason = problem.members[1].1.as_str().expect("a string");
        assert!(problem.detail.ends_with(reason) && !reason.contains("tries"), "{reason}");

        let json = post("/", &[("content-type", "application/json")], Body::from("{}"));
        let problem = assert_ready(from_request::<Form<Login>>(json)).expect_err("not a form");
        assert_eq!(
            (problem.status.as_u16(), problem.kind.as_ref()),
            (415, "unsupported-media-type")
        );
        assert!(problem.detail.contains("application/x-www-form-urlencoded"));

        let problem =
            assert_ready(from_request::<Form<Login>>(get("/?tries=1"))).expect_err("no name");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-query"));
    }

    #[test]
    fn an_optional_form_may_be_absent_but_not_invalid() {
        for request in [get("/"), post("/", &[], Body::empty())] {
            assert_eq!(assert_ready(from_request::<Option<Form<Login>>>(request)), Ok(None));
        }
        let invalid = post("/", FORM, Body::from("x=1"));
        assert_eq!(
            assert_ready(from_request::<Option<Form<Login>>>(invalid))
                .expect_err("an invalid form")
                .status,
            422
        );
    }
}
