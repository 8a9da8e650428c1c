//! Header fields as typed values.

use super::FromRequestParts;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::response::{IntoResponse, IntoResponseParts, Response};
use headers::Header;
use http::{HeaderValue, StatusCode};
use smallvec::SmallVec;

/// A header field as a type of the `headers` crate, or as your own type that implements
/// [`headers::Header`].
///
/// A missing field and an invalid field are different problems, both with status 400. (If the type
/// accepts a missing field, it is decoded as an empty value instead.) `Option<TypedHeader<T>>` is
/// `None` for a missing field and rejects an invalid one. A handler can also return a `TypedHeader`
/// in a tuple before the body, which sets the field.
///
/// ```
/// use headers::UserAgent;
/// use peregrine::web::extract::TypedHeader;
///
/// async fn agent(TypedHeader(agent): TypedHeader<UserAgent>) -> String {
///     agent.as_str().to_owned()
/// }
/// # let _ = agent;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypedHeader<T>(pub T);

impl<T: Header> FromRequestParts for TypedHeader<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        decode(parts)?.map(Self).ok_or_else(|| {
            let name = T::name().as_str();
            Problem::new(
                StatusCode::BAD_REQUEST,
                "missing-header",
                format!("the request needs the header field `{name}`"),
            )
            .with_member("header", name)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        // Some types decode a missing field as an empty value; the `Option` must still be `None`.
        if parts.head.header_bytes(T::name().as_str()).is_none() {
            return Ok(None);
        }
        Ok(decode(parts)?.map(Self))
    }
}

/// The decoded value; `None` if there is no such field and the type requires one. `Err` if the
/// field is invalid.
fn decode<T: Header>(parts: &Parts) -> Result<Option<T>, Problem> {
    let name = T::name().as_str();
    let values: SmallVec<[HeaderValue; 2]> = parts
        .head
        .header_values(name)
        // The parser accepts the same values as `HeaderValue`, so no value is skipped.
        .filter_map(|value| HeaderValue::from_bytes(value).ok())
        .collect();
    match T::decode(&mut values.iter()) {
        Ok(value) => Ok(Some(value)),
        Err(_) if values.is_empty() => Ok(None),
        Err(_) => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "invalid-header",
            format!("the header field `{name}` has a value that its grammar does not allow"),
        )
        .with_member("header", name)),
    }
}

/// Replaces the fields of the same name.
impl<T: Header> IntoResponseParts for TypedHeader<T> {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        let mut values: SmallVec<[HeaderValue; 2]> = SmallVec::new();
        self.0.encode(&mut values);
        response.headers.remove(T::name());
        response.headers.extend(values.into_iter().map(|value| (T::name().clone(), value)));
        Ok(())
    }
}

/// Status 200 with this field and an empty body.
impl<T: Header> IntoResponse for TypedHeader<T> {
    fn into_response(self) -> Response {
        crate::http::response::headers::response_from_parts(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get, post};
    use super::*;
    use crate::http::body::Body;
    use headers::{Age, Host, IfNoneMatch};
    use http::HeaderMap;

    fn parts_with(name: &str, value: &str) -> Parts {
        post("/", &[(name, value)], Body::empty()).parts
    }

    #[test]
    fn finds_a_header_in_any_case_and_decodes_it() {
        let TypedHeader(host) = assert_ready(from_parts::<TypedHeader<Host>>(&mut parts_with(
            "HOST",
            "example.org:81",
        )))
        .expect("a host");
        assert_eq!((host.hostname(), host.port()), ("example.org", Some(81)));
        let map: HeaderMap = assert_ready(from_parts(&mut parts_with("X-Bird", "lanner")))
            .expect("the extractor never fails");
        assert_eq!(map["x-bird"], "lanner");
    }

    #[test]
    fn a_missing_and_an_invalid_header_are_different_problems() {
        let missing = assert_ready(from_parts::<TypedHeader<Age>>(&mut get("/").parts));
        let missing = missing.expect_err("the header is missing");
        assert_eq!((missing.status.as_u16(), missing.kind.as_ref()), (400, "missing-header"));
        assert!(missing.detail.contains("needs") && missing.detail.contains("`age`"));
        assert_eq!(missing.members, [("header".into(), "age".into())]);

        let mut parts = parts_with("age", "many");
        let invalid = assert_ready(from_parts::<TypedHeader<Age>>(&mut parts));
        let invalid = invalid.expect_err("not a number");
        assert_eq!((invalid.status.as_u16(), invalid.kind.as_ref()), (400, "invalid-header"));
        assert!(invalid.detail.contains("`age`"), "{}", invalid.detail);
    }

    #[test]
    fn an_optional_header_may_be_absent_but_not_invalid() {
        type Optional = Option<TypedHeader<IfNoneMatch>>;
        assert_eq!(assert_ready(from_parts::<Optional>(&mut get("/").parts)), Ok(None));
        assert!(
            assert_ready(from_parts::<Optional>(&mut parts_with("if-none-match", "*")))
                .expect("a valid header")
                .is_some()
        );
        type OptionalAge = Option<TypedHeader<Age>>;
        assert!(assert_ready(from_parts::<OptionalAge>(&mut parts_with("age", "many"))).is_err());
    }

    #[test]
    fn replaces_a_response_header_of_the_same_name() {
        let response = ([("age", "1")], TypedHeader(Age::from_secs(7)), "text");
        let response = response.into_response();
        let names: Vec<_> = response.headers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["content-type", "age"]);
        assert_eq!(response.header("age"), Some("7"));
    }
}
