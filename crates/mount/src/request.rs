//! Our request as the `http` crate has it, and the reverse.

use http::Uri;
use http::header::HOST;
use http::uri::PathAndQuery;
use peregrine_proto::h1::{Connection, Event};
use peregrine_proto::{Limits, Reject};
use peregrine_web::scope::REST;
use peregrine_web::{Head, Parts};

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

/// What a request may be that comes from another server, which had limits of its own. Bodies are held
/// against that of their route.
const LIMITS: Limits = Limits { body_bytes_max: u64::MAX, ..Limits::DEFAULT };

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

/// The head of a request of the `http` crate, as our parser understands it.
///
/// # Errors
/// The request breaks a rule of HTTP/1.1, which ours have to keep.
pub(crate) fn to_head(parts: &http::request::Parts) -> Result<Head, Reject> {
    let bytes = written(parts);
    let mut head = Head::take();
    let (used, event) = Connection::new(&LIMITS).receive(&LIMITS, &bytes, head.index_mut());
    match event {
        Event::Head => {
            head.set_bytes(&bytes[usize::from(head.index().skip)..used]);
            Ok(head)
        }
        Event::Reject(reject) => Err(reject),
        event => unreachable!("a whole head is one, or breaks a rule: {event:?}"),
    }
}

/// The head as it would be on the wire.
fn written(parts: &http::request::Parts) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(512);
    bytes.extend_from_slice(parts.method.as_str().as_bytes());
    bytes.push(b' ');
    match (parts.uri.path_and_query(), parts.uri.authority()) {
        (Some(target), _) => bytes.extend_from_slice(target.as_str().as_bytes()),
        // RFC 9112 §3.2.3: the target of CONNECT is host and port, nothing else.
        (None, Some(authority)) => bytes.extend_from_slice(authority.as_str().as_bytes()),
        (None, None) => bytes.push(b'/'),
    }
    // RFC 9113 §8.3.1: what HTTP/2 says of the host is in the target.
    let authority = parts.uri.authority().filter(|_| !parts.headers.contains_key(HOST));
    // RFC 9112 §3.2: a request of HTTP/1.1 must name its host. One that was made by hand, in a test
    // say, may not, so it passes for one of HTTP/1.0.
    let is_old = parts.version == http::Version::HTTP_10
        || authority.is_none() && !parts.headers.contains_key(HOST);
    bytes.extend_from_slice(if is_old { b" HTTP/1.0\r\n" } else { b" HTTP/1.1\r\n" });
    if let Some(authority) = authority {
        bytes.extend_from_slice(b"host: ");
        bytes.extend_from_slice(authority.as_str().as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    for (name, value) in &parts.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}
