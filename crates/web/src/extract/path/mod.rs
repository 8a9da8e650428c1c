//! Values from the path.

mod deserialize;
mod error;
mod shape;

use super::{FromRequestParts, misconfiguration_problem, truncate};
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::requirements::RouteRequirements;
use error::{PathError, PathParameter};
use http::StatusCode;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;

/// The path's parameters, percent-decoded.
///
/// `T` is one of these:
///
/// - a single value, for a path with one parameter
/// - a tuple, in the order of the path
/// - a struct, with the names in the pattern
/// - a map of all parameters, or a `Vec` of their values or of pairs of name and value
///
/// If a value cannot be read as its type, the extractor responds with a [`Problem`] of status 400
/// that names the parameter, the value and the expected type. If `T` does not fit the pattern's
/// parameters, this is a mistake in the application: building it usually reports the mistake, and
/// otherwise the extractor responds 500.
///
/// `Option<Path<T>>` is `None` for a path without parameters.
///
/// ```
/// use peregrine::web::extract::Path;
///
/// // For the pattern `/users/{user}/posts/{post}`:
/// async fn post(Path((user, post)): Path<(String, u64)>) -> String {
///     format!("post {post} of {user}")
/// }
///
/// #[derive(serde::Deserialize)]
/// struct PostPath {
///     user: String,
///     post: u64,
/// }
///
/// async fn same(Path(path): Path<PostPath>) -> String {
///     format!("post {} of {}", path.post, path.user)
/// }
/// # let _ = (post, same);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts for Path<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let parameters = decode_parameters(parts)?;
        T::deserialize(deserialize::PathDeserializer::new(&parameters, parts.omitted_parameters()))
            .map(Path)
            .map_err(|error| path_error(parts, error))
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        if parts.path_parameters().is_none_or(|values| values.is_empty()) {
            return Ok(None);
        }
        Self::from_request_parts(parts).await.map(Some)
    }

    fn require(requirements: &mut RouteRequirements) {
        shape::require::<T>(requirements);
    }
}

fn decode_parameters(parts: &Parts) -> Result<SmallVec<[PathParameter<'_>; 4]>, Problem> {
    let Some(values) = parts.path_parameters() else { return Ok(SmallVec::new()) };
    let decode_one = |(name, encoded)| match peregrine_router::decode(encoded) {
        Ok(value) => Ok(PathParameter { name, value }),
        Err(error) => {
            let value = String::from_utf8_lossy(encoded);
            let detail = format!("path parameter `{name}` cannot be decoded: {error}");
            Err(invalid_parameter(
                detail,
                name,
                &truncate(&value),
                "percent-encoded UTF-8".to_owned(),
            ))
        }
    };
    values.iter().map(decode_one).collect()
}

/// The problem for a path with an invalid parameter value.
fn invalid_parameter(detail: String, name: &str, value: &str, expected: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "invalid-path", detail)
        .with_member("parameter", name)
        .with_member("value", value)
        .with_member("expected", expected)
}

#[cold]
fn path_error(parts: &Parts, error: PathError) -> Problem {
    match error {
        PathError::Value { name, value, expected } => {
            let value = truncate(&value);
            let detail = format!("path parameter `{name}` is `{value}`, but must be {expected}");
            invalid_parameter(detail, &name, &value, expected)
        }
        PathError::Custom { name, value, reason } => {
            let (value, reason) = (truncate(&value), truncate(&reason));
            let detail = format!("path parameter `{name}` is `{value}`: {reason}");
            // The reason says what was expected, as serde's messages do.
            invalid_parameter(detail, &name, &value, reason.into_owned())
        }
        PathError::Mismatch(reason) => {
            let pattern = parts.pattern().unwrap_or("(no route)");
            let cause =
                format!("the handler's `Path` does not fit the route `{pattern}`: {reason}");
            misconfiguration_problem("path-mismatch", &cause)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get, matched};
    use super::*;
    use serde::Deserialize;
    use std::collections::HashMap;
    use std::fmt::Debug;
    use std::net::IpAddr;

    const PATTERN: &str = "/users/{user}/posts/{post}";

    fn path<T: DeserializeOwned>(pattern: &str, path: &str) -> Result<T, Problem> {
        assert_ready(from_parts::<Path<T>>(&mut matched(pattern, path))).map(|Path(value)| value)
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct PostPath {
        post: u64,
        user: String,
        #[serde(default)]
        page: u32,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Falcon,
        Kite,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Id(u32);

    #[test]
    fn reads_one_parameter_as_a_single_value() {
        fn assert_parses<T: DeserializeOwned + PartialEq + Debug>(text: &str, value: T) {
            assert_eq!(path::<T>("/x/{it}", &format!("/x/{text}")), Ok(value), "{text}");
        }
        assert_parses("7", 7u8);
        assert_parses("-7", -7i64);
        assert_parses("340282366920938463463374607431768211455", u128::MAX);
        assert_parses("0.5", 0.5f64);
        assert_parses("true", true);
        assert_parses("x", 'x');
        assert_parses("caf%C3%A9%2Fbar", String::from("café/bar"));
        assert_parses("a+b", String::from("a+b"));
        assert_parses("kite", Kind::Kite);
        assert_parses("9", Id(9));
        assert_parses("9", (9u8,));
        assert_parses("9", Some(9u8));
        assert_parses("::1", IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn reads_several_parameters_as_a_tuple_a_struct_a_map_or_a_list() {
        let target = "/users/a%20b/posts/7";
        assert_eq!(path(PATTERN, target), Ok((String::from("a b"), 7u64)));
        assert_eq!(path(PATTERN, target), Ok(PostPath { post: 7, user: "a b".into(), page: 0 }));
        let pairs =
            vec![("user".to_owned(), "a b".to_owned()), ("post".to_owned(), "7".to_owned())];
        assert_eq!(path(PATTERN, target), Ok(pairs.clone()));
        assert_eq!(path(PATTERN, target), Ok(pairs.into_iter().collect::<HashMap<_, _>>()));
        assert_eq!(path(PATTERN, target), Ok(vec!["a b".to_owned(), "7".to_owned()]));
        assert_eq!(path::<()>(PATTERN, target), Ok(()));
    }

    #[test]
    fn an_invalid_value_is_a_400_with_the_parameter_and_the_expected_type() {
        let target = "/users/ada/posts/x%20y";
        for problem in [
            path::<(String, u8)>(PATTERN, target).expect_err("not a number"),
            path::<PostPath>(PATTERN, target).map(|_| ()).expect_err("not a number"),
            path::<Vec<(String, u8)>>("/{post}", "/x%20y").expect_err("not a number"),
            path::<u8>("/{post}", "/x%20y").expect_err("not a number"),
        ] {
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-path"));
            assert!(
                problem.detail.starts_with(
                    "path parameter `post` is `x y`, but must be a whole number from 0 to "
                ),
                "{}",
                problem.detail
            );
            let names: Vec<_> = problem.members.iter().map(|(name, _)| name.as_ref()).collect();
            assert_eq!(names, ["parameter", "value", "expected"]);
            assert_eq!(problem.members[0].1, "post");
        }
    }

    #[test]
    fn the_problem_describes_the_expected_value_for_each_type() {
        fn expected<T: DeserializeOwned>(text: &str) -> String {
            match path::<T>("/{it}", &format!("/{text}")) {
                Err(problem) => problem.detail.into_owned(),
                Ok(_) => panic!("{text} was accepted"),
            }
        }
        assert!(expected::<u8>("256").ends_with("a whole number from 0 to 255 (u8)"));
        assert!(expected::<i8>("x").ends_with("a whole number from -128 to 127 (i8)"));
        assert!(expected::<f64>("x").ends_with("a finite number (f64)"));
        for text in ["NaN", "-nan", "inf", "-inf", "+Infinity", "1e999"] {
            assert!(expected::<f64>(text).ends_with("a finite number (f64)"));
            assert!(expected::<f32>(text).ends_with("a finite number (f32)"));
            assert!(expected::<Option<f64>>(text).ends_with("a finite number (f64)"));
            assert!(expected::<(f64,)>(text).ends_with("a finite number (f64)"));
            assert!(expected::<Vec<(String, f32)>>(text).ends_with("a finite number (f32)"));
            assert!(expected::<HashMap<String, f64>>(text).ends_with("a finite number (f64)"));
        }
        assert!(expected::<f32>("1e39").ends_with("a finite number (f32)"));
        assert!(expected::<bool>("yes").ends_with("`true` or `false`"));
        assert!(expected::<char>("ab").ends_with("one character"));
        assert!(expected::<Kind>("duck").ends_with("expected `falcon` or `kite`"));
        assert!(expected::<IpAddr>("x").starts_with("path parameter `it` is `x`: "));
    }

    #[test]
    fn a_value_that_is_not_utf8_is_a_400() {
        let problem = path::<String>("/{it}", "/a%FF").expect_err("not UTF-8");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-path"));
        assert!(problem.detail.starts_with("path parameter `it` cannot be decoded: "));
        assert_eq!(problem.members[1], ("value".into(), "a%FF".into()));
    }

    #[test]
    fn a_type_that_does_not_fit_the_route_is_a_500_without_details() {
        #[derive(Debug, Deserialize)]
        struct Other {
            #[expect(dead_code, reason = "the struct is never created")]
            bird: String,
        }
        let target = "/users/ada/posts/7";
        for (problem, cause) in [
            (path::<String>(PATTERN, target).map(|_| ()), "2 parameters, but the type takes 1"),
            (
                path::<(u8, u8, u8)>(PATTERN, target).map(|_| ()),
                "2 parameters, but the type takes 3",
            ),
            (path::<(String,)>("/", "/").map(|_| ()), "0 parameters, but the type takes 1"),
            (path::<Other>(PATTERN, target).map(|_| ()), "no parameter `bird`"),
            (path::<Vec<Vec<u8>>>(PATTERN, target).map(|_| ()), "a list"),
        ] {
            let problem = problem.expect_err("a type that does not fit");
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (500, "path-mismatch"));
            // The cause is for the log, not for the client.
            assert!(!problem.detail.contains(cause), "{}", problem.detail);
            assert!(!problem.detail.contains("users"), "{}", problem.detail);
        }
    }

    #[test]
    fn an_optional_path_may_be_absent_but_not_invalid() {
        assert_eq!(assert_ready(from_parts::<Option<Path<u8>>>(&mut get("/").parts)), Ok(None));
        assert_eq!(assert_ready(from_parts::<Option<Path<u8>>>(&mut matched("/", "/"))), Ok(None));
        let invalid = assert_ready(from_parts::<Option<Path<u8>>>(&mut matched("/{it}", "/x")));
        assert_eq!(invalid.expect_err("not a u8").status, 400);
    }
}
