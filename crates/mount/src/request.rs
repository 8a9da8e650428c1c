//! Our request as the `http` crate has it.

use http::Uri;
use http::uri::PathAndQuery;
use peregrine_web::Parts;
use peregrine_web::scope::REST;

/// The target as it was before a mount took the prefix off: in the extensions of requests to a
/// service mounted under one.
///
/// ```
/// use peregrine_mount::OriginalUri;
///
/// fn full_path(request: &http::Request<()>) -> &str {
///     request.extensions().get::<OriginalUri>().map_or(request.uri().path(), |uri| uri.0.path())
/// }
/// # assert_eq!(full_path(&http::Request::new(())), "/");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalUri(pub Uri);

/// The request without its body, which is put in the place of it.
pub(crate) fn into_http<B>(mut parts: Parts, body: B, is_stripped: bool) -> http::Request<B> {
    let mut request = parts.head.to_http(body);
    *request.extensions_mut() = std::mem::take(parts.extensions_mut());
    if is_stripped && let Some(stripped) = strip(&parts, request.uri()) {
        let original = std::mem::replace(request.uri_mut(), stripped);
        request.extensions_mut().insert(OriginalUri(original));
    }
    request
}

/// The target without the segments of the pattern that stand before the mount; `None` if there are
/// none.
fn strip(parts: &Parts, uri: &Uri) -> Option<Uri> {
    let pattern = parts.pattern()?;
    let prefix = pattern.strip_suffix(REST).unwrap_or_else(|| pattern.trim_end_matches('/'));
    let segments = prefix.matches('/').count();
    if segments == 0 {
        return None;
    }
    let path = uri.path();
    let mut slashes = path.match_indices('/').map(|(place, _)| place);
    let rest = slashes.nth(segments).map_or("/", |place| &path[place..]);
    let target = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{rest}?{query}")),
        None => PathAndQuery::try_from(rest),
    };
    let mut parts = uri.clone().into_parts();
    // What is left of a valid target is one.
    parts.path_and_query = Some(target.ok()?);
    Uri::from_parts(parts).ok()
}
