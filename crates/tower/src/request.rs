//! Converts requests to and from the types of the `http` crate.

use crate::extensions;
use http::Uri;
use http::header::HOST;
use http::uri::PathAndQuery;
use peregrine_proto::{Limits, RequestError, RequestLine, Scheme, Version};
use peregrine_web::scope::CATCH_ALL;
use peregrine_web::selection::MountInfo;
use peregrine_web::{Parts, RequestHead};

/// The full request target, including the prefix that the mount removed. It is in the extensions of
/// each request to a service that is mounted under a prefix.
///
/// ```
/// use peregrine::tower::OriginalUri;
///
/// fn full_path(request: &peregrine::http::Request<()>) -> &str {
///     request.extensions().get::<OriginalUri>().map_or(request.uri().path(), |uri| uri.0.path())
/// }
/// # assert_eq!(full_path(&peregrine::http::Request::new(())), "/");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalUri(pub Uri);

/// The limits for a request that this server or another one has already accepted. The configured
/// limits protect against peers, so they must not reject a request because a layer added a field.
/// The only remaining limit on the head is its maximum size of 65,535 bytes. The route's limit
/// applies to the body.
const UNLIMITED: Limits = Limits {
    head_bytes_max: usize::MAX,
    request_line_bytes_max: usize::MAX,
    field_bytes_max: usize::MAX,
    fields_max: usize::MAX,
    ..Limits::DEFAULT
};

/// Creates an `http` request from `parts` and `body`. `strip_mount_prefix` removes the mount's
/// prefix from the target.
pub(crate) fn into_http<B>(
    mut parts: Parts,
    body: B,
    strip_mount_prefix: bool,
) -> http::Request<B> {
    if extensions::may_have_nested_app() {
        // RFC 9110 §7.6.1: a proxy removes the fields that `Connection` names. If the proxy is in
        // an application inside the service, it cannot distinguish the client's fields from those
        // that the service sets, so the client's are removed here.
        parts.head.remove_nominated_headers();
    }
    let mut request = parts.head.to_http(body);
    *request.extensions_mut() = std::mem::take(parts.extensions_mut());
    let stripped = if strip_mount_prefix { strip_prefix(&parts, request.uri()) } else { None };
    // By its `MountInfo`, an application inside the service distinguishes requests that reached it
    // under different prefixes or through different routes, for example in cache keys. The path
    // that the application receives does not suffice, because the service may also change it.
    if stripped.is_some() || parts.head.depends_on_selection() || extensions::may_have_nested_app()
    {
        let (path, routes_hash) = (parts.head.original_path().into(), parts.head.routes_hash());
        request.extensions_mut().insert(MountInfo { path, routes_hash });
    }
    if let Some(stripped) = stripped {
        let original = std::mem::replace(request.uri_mut(), stripped);
        request.extensions_mut().insert(OriginalUri(original));
    }
    request
}

/// Returns the target without the mount's prefix, or `None` if the prefix is empty. The prefix has
/// as many segments as the route's pattern has before its catch-all.
fn strip_prefix(parts: &Parts, uri: &Uri) -> Option<Uri> {
    let pattern = parts.pattern()?;
    let prefix = pattern.strip_suffix(CATCH_ALL).unwrap_or_else(|| pattern.trim_end_matches('/'));
    let segments = prefix.matches('/').count();
    if segments == 0 {
        return None;
    }
    let path = uri.path();
    let mut slashes = path.match_indices('/').map(|(index, _)| index);
    let rest = slashes.nth(segments).map_or("/", |index| &path[index..]);
    let target = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{rest}?{query}")),
        None => PathAndQuery::try_from(rest),
    };
    let mut uri_parts = uri.clone().into_parts();
    // The rest of a valid target is valid, so neither conversion fails.
    uri_parts.path_and_query = Some(target.ok()?);
    Uri::from_parts(uri_parts).ok()
}

/// Converts the head of an `http` request.
///
/// # Errors
/// The request violates a rule of HTTP. The `http` crate allows requests that we reject.
pub(crate) fn to_head(parts: &http::request::Parts) -> Result<RequestHead, RequestError> {
    let authority =
        parts.uri.authority().map_or(&b""[..], |authority| authority.as_str().as_bytes());
    let scheme = parts.uri.scheme_str().and_then(|scheme| Scheme::from_name(scheme.as_bytes()));
    let target = match parts.uri.path_and_query() {
        Some(target) => target.as_str().as_bytes(),
        // RFC 9112 §3.2.3: the target of CONNECT is host and port, nothing else.
        None if !authority.is_empty() => authority,
        None => b"/",
    };
    let line = RequestLine {
        method: parts.method.as_str().as_bytes(),
        scheme,
        authority: if scheme.is_some() { authority } else { b"" },
        target,
        version: match parts.version {
            http::Version::HTTP_10 => Version::Http10,
            http::Version::HTTP_2 => Version::Http2,
            _ => Version::Http11,
        },
    };
    // RFC 9113 §8.3.1: HTTP/2 sends the host in `:authority`.
    let lacks_host = !authority.is_empty() && !parts.headers.contains_key(HOST);
    let host = lacks_host.then_some((&b"host"[..], authority));
    let fields = parts.headers.iter();
    let fields = fields.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    RequestHead::build(&UNLIMITED, &line, host.into_iter().chain(fields))
}
