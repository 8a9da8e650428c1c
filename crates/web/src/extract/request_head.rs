//! The parts of the request's head, and the pattern of the route that matched.

use super::{FromRequestParts, misconfiguration_problem};
use crate::http::problem::Problem;
use crate::http::request::Parts;
use http::{HeaderMap, Method, Uri, Version};

/// The pattern of the route that matched, such as `/birds/{id}`. Use it as a label in metrics and
/// logs: an application has few patterns, but many paths.
///
/// In a fallback no route has matched: the extractor responds 500, and `Option<MatchedPath>` is
/// `None`.
///
/// ```
/// use peregrine::web::extract::MatchedPath;
///
/// async fn pattern(MatchedPath(pattern): MatchedPath) -> String {
///     pattern
/// }
/// # let _ = pattern;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatchedPath(pub String);

/// The path as the client sent it, percent-encoded, including the prefixes of scopes and of
/// services in which the application is mounted.
///
/// ```
/// use peregrine::web::extract::OriginalPath;
///
/// async fn path(OriginalPath(path): OriginalPath) -> String {
///     path
/// }
/// # let _ = path;
/// ```
#[doc(alias = "OriginalUri")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OriginalPath(pub String);

impl FromRequestParts for MatchedPath {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        parts.pattern().map(|pattern| Self(pattern.to_owned())).ok_or_else(|| {
            misconfiguration_problem(
                "no-route",
                "the handler needs a route's pattern, but the request matched none; a fallback \
                 should take `Option<MatchedPath>`",
            )
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.pattern().map(|pattern| Self(pattern.to_owned())))
    }
}

impl FromRequestParts for OriginalPath {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(Self(parts.head.original_path().to_owned()))
    }
}

/// The request's method.
impl FromRequestParts for Method {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(parts.head.method())
    }
}

/// The request target as it was sent.
impl FromRequestParts for Uri {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(parts.head.uri())
    }
}

/// All header fields. Allocates. To read one field without allocating, use
/// [`crate::RequestHead::header_bytes`].
impl FromRequestParts for HeaderMap {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(parts.head.to_header_map())
    }
}

/// The HTTP version of the request.
impl FromRequestParts for Version {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        Ok(parts.head.version())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_ready, from_parts, get, matched};
    use super::*;

    #[test]
    fn extracts_the_parts_of_the_head() {
        let mut parts = get("/birds/a%20b?x=1").parts;
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Method::GET));
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Version::HTTP_11));
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(Uri::from_static("/birds/a%20b?x=1")));
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(OriginalPath("/birds/a%20b".into())));
    }

    #[test]
    fn extracts_the_pattern_only_if_a_route_matched() {
        let mut parts = matched("/birds/{id}", "/birds/7");
        assert_eq!(assert_ready(from_parts(&mut parts)), Ok(MatchedPath("/birds/{id}".into())));
        let mut parts = get("/birds/7").parts;
        assert_eq!(assert_ready(from_parts::<Option<MatchedPath>>(&mut parts)), Ok(None));
        let problem =
            assert_ready(MatchedPath::from_request_parts(&mut parts)).expect_err("no route");
        assert_eq!((problem.status.as_u16(), problem.kind.as_ref()), (500, "no-route"));
        // The advice to take an `Option<MatchedPath>` is for the log, not for the client.
        assert!(!problem.detail.contains("MatchedPath"), "{}", problem.detail);
    }
}
