//! Values from the query.

use super::FromRequestParts;
use super::finite::Finite;
use super::json::field_problem;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::StatusCode;
use serde::de::DeserializeOwned;

/// The query, as a struct or map. Repeated keys fill a `Vec`.
///
/// If the query cannot be read as a `T`, the problem has status 400 and names the field. Floats
/// must be finite: `NaN`, `inf` and `1e999` are rejected too. `Option<Query<T>>` is `None` for a
/// target without `?`.
///
/// In a struct with `#[serde(flatten)]`, or an enum with `#[serde(tag = "..")]`, serde does not
/// report to the deserializer that a field is a number or a boolean, and a query contains only
/// text. Therefore such fields must be strings, or have a `deserialize_with` that parses a string.
///
/// ```
/// use peregrine::web::extract::Query;
///
/// #[derive(serde::Deserialize)]
/// struct Page {
///     #[serde(default)]
///     page: u32,
/// }
///
/// async fn list(Query(page): Query<Page>) -> String {
///     format!("page {}", page.page)
/// }
/// # let _ = list;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query<T>(pub T);

/// The query as it was sent, without the question mark; `None` if there is none.
///
/// ```
/// use peregrine::web::extract::RawQuery;
///
/// async fn show(RawQuery(query): RawQuery) -> String {
///     query.unwrap_or_default()
/// }
/// # let _ = show;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawQuery(pub Option<String>);

impl<T: DeserializeOwned> FromRequestParts for Query<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parse(parts.head.query().unwrap_or_default()).map(Query)
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        parts.head.query().map(|query| parse(query).map(Query)).transpose()
    }
}

impl FromRequestParts for RawQuery {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(Self(parts.head.query().map(str::to_owned)))
    }
}

pub(super) fn parse<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    parse_form(query.as_bytes()).map_err(|problem| Problem {
        status: StatusCode::BAD_REQUEST,
        kind: "invalid-query".into(),
        detail: format!("the query is not as expected: {}", problem.detail).into(),
        ..problem
    })
}

/// Parses URL-encoded pairs, from a query or a body. The problem is the one for a body (422).
pub(super) fn parse_form<T: DeserializeOwned>(pairs: &[u8]) -> Result<T, Problem> {
    let deserializer = || Finite(serde_html_form::Deserializer::from_bytes(pairs));
    T::deserialize(deserializer()).map_err(|error| {
        // Tracking the path costs time, so it is done only in a second reading, after a rejection.
        match serde_path_to_error::deserialize::<_, T>(deserializer()) {
            Err(error) => field_problem(&error.path().to_string(), &error.inner().to_string()),
            Ok(_) => field_problem(".", &error.to_string()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get};
    use super::*;
    use serde::Deserialize;
    use std::collections::HashMap;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Search {
        text: String,
        #[serde(default)]
        tag: Vec<String>,
        page: Option<u32>,
    }

    fn search(target: &str) -> Result<Query<Search>, Problem> {
        assert_ready(from_parts(&mut get(target).parts))
    }

    #[test]
    fn parses_a_query_into_a_struct_or_a_map() {
        let Query(parsed) = search("/?text=a+b%26c&tag=x&tag=y&page=2").expect("a search");
        let tag = vec!["x".into(), "y".into()];
        assert_eq!(parsed, Search { text: "a b&c".into(), tag, page: Some(2) });
        let map: Result<Query<HashMap<String, String>>, _> =
            assert_ready(from_parts(&mut get("/?a=1&b=").parts));
        assert_eq!(map.expect("a valid query").0["a"], "1");
    }

    /// As in the style `form` of OpenAPI, its default for lists in a query.
    #[test]
    fn an_empty_value_is_a_list_item_and_a_missing_key_is_an_empty_list() {
        for (target, expected) in [
            ("/?text=", &[][..]),
            ("/?text=&tag", &[""]),
            ("/?text=&tag=", &[""]),
            ("/?text=&tag=&tag=", &["", ""]),
            ("/?text=&tag=&tag=x", &["", "x"]),
            ("/?text=&tag=a,b", &["a,b"]),
        ] {
            let Query(parsed) = search(target).expect("a search");
            assert_eq!(parsed.tag, expected, "{target}");
        }
    }

    #[test]
    fn an_invalid_query_is_a_400_with_the_field_and_the_reason() {
        for (target, path, reason) in [
            ("/?text=a&page=x", "page", "page: invalid digit found in string"),
            ("/?page=1", "text", "text: missing field"),
            ("/", "text", "text: missing field"),
        ] {
            let problem = search(target).expect_err("an invalid query");
            assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (400, "invalid-query"));
            assert!(problem.detail.ends_with(reason), "{}", problem.detail);
            let reason = reason.split_once(": ").map_or(reason, |(_, reason)| reason);
            let members = [("path".into(), path.into()), ("reason".into(), reason.into())];
            assert_eq!(problem.members, members);
        }
    }

    #[test]
    fn rejects_floats_that_are_not_finite_in_every_position() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Meters(f64);

        #[derive(Debug, Deserialize, PartialEq)]
        struct Shape {
            #[serde(default)]
            one: f64,
            #[serde(default)]
            single: f32,
            maybe: Option<f64>,
            #[serde(default)]
            many: Vec<f64>,
            wrapped: Option<Meters>,
        }

        let shape = |query: &str| {
            parse::<Shape>(query).map(|_| ()).map_err(|problem| {
                assert_eq!(
                    (problem.status.as_u16(), problem.kind.as_ref()),
                    (400, "invalid-query")
                );
                problem.members[0].1.to_string()
            })
        };
        let fields = ["one", "single", "maybe", "many", "wrapped"];
        for number in ["0", "-0", "1.5", "1e3", "-1e-9", "3.4028235e38", "1e-999"] {
            for field in fields {
                assert_eq!(shape(&format!("{field}={number}")), Ok(()), "{field}={number}");
            }
        }
        for number in
            ["NaN", "nan", "%2BNaN", "-nan", "inf", "-inf", "Infinity", "-INFINITY", "1e999"]
        {
            for field in fields {
                let path = shape(&format!("{field}={number}")).expect_err(number);
                assert!(path.contains(field), "{path} for {field}={number}");
            }
            let many = shape(&format!("many=1&many={number}")).expect_err(number);
            assert!(many.contains("many"), "{many}");
        }
        assert!(shape("single=1e39").is_err() && shape("one=1e39").is_ok());
        assert!(parse::<HashMap<String, f64>>("x=NaN").is_err());
        assert!(parse::<Vec<(String, f64)>>("x=NaN").is_err());
        // A value that is not read as a number is left as text.
        assert_eq!(parse::<HashMap<String, String>>("x=NaN").expect("a valid query")["x"], "NaN");
    }

    #[test]
    fn an_optional_query_may_be_absent_but_not_invalid() {
        let optional =
            |target| assert_ready(from_parts::<Option<Query<Search>>>(&mut get(target).parts));
        assert_eq!(optional("/"), Ok(None));
        assert!(optional("/?text=a").expect("a valid query").is_some());
        assert_eq!(optional("/?x=a").expect_err("an invalid query").status, 400);
    }

    #[test]
    fn the_raw_query_is_not_decoded() {
        let raw = |target| {
            assert_ready(from_parts::<RawQuery>(&mut get(target).parts))
                .expect("the extractor never fails")
        };
        assert_eq!(raw("/?a=%20+"), RawQuery(Some("a=%20+".into())));
        assert_eq!((raw("/?"), raw("/")), (RawQuery(Some(String::new())), RawQuery(None)));
    }
}
