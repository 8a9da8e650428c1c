//! Parts of the request to an upstream: the length of its content, an upgrade, and a check for
//! paths that must not be forwarded.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use peregrine_web::Body;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns the framing field for `body` if hyper would not send the right one. In a GET, hyper
/// treats content of unknown length as absent, and it does not announce empty content.
pub(crate) fn framing_field(method: &Method, body: &Body) -> Option<(HeaderName, HeaderValue)> {
    if http_body::Body::is_end_stream(body) || body.length() == Some(0) {
        // RFC 9110 §8.6: a request whose method usually has content announces that it has none.
        let usually_has_content = matches!(*method, Method::POST | Method::PUT | Method::PATCH);
        return usually_has_content.then(|| (CONTENT_LENGTH, HeaderValue::from_static("0")));
    }
    match body.length() {
        Some(_) => None,
        None => Some((TRANSFER_ENCODING, HeaderValue::from_static("chunked"))),
    }
}

/// Adds the fields that request an HTTP/1.1 upgrade to `protocols`.
pub(crate) fn set_upgrade_fields(headers: &mut HeaderMap, protocols: &HeaderValue) {
    let is_websocket = protocols.as_bytes().eq_ignore_ascii_case(b"websocket");
    headers.insert(UPGRADE, protocols.clone());
    let options = if headers.contains_key(CONNECTION) { "upgrade, te" } else { "upgrade" };
    headers.insert(CONNECTION, HeaderValue::from_static(options));
    // RFC 8441 §5: a WebSocket request over HTTP/2 has no key, but HTTP/1.1 requires one.
    const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
    if is_websocket && !headers.contains_key(KEY) {
        headers.insert(KEY, websocket_key());
    }
}

/// Generates 16 random bytes in base64. They prevent caches from responding and need not be secret.
fn websocket_key() -> HeaderValue {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let random = || u128::from(RandomState::new().build_hasher().finish());
    let bits = random() << 64 | random();
    let digit = |shift: u32| ALPHABET[usize::try_from(bits >> shift & 63).unwrap_or_default()];
    let mut text: Vec<u8> = (0..21).map(|index| digit(122 - 6 * index)).collect();
    text.push(ALPHABET[usize::try_from((bits & 3) << 4).unwrap_or_default()]);
    text.extend_from_slice(b"==");
    HeaderValue::from_bytes(&text).expect("base64 is ASCII")
}

/// Whether the path has `.` or `..` segments, in any spelling that some server understands:
/// escaped, between backslashes, or followed by parameters (`..;a=b`).
pub(crate) fn has_dot_segments(path: &str) -> bool {
    let mut plain = path.to_ascii_lowercase();
    for (escaped, unescaped) in [("%2e", "."), ("%2f", "/"), ("%5c", "/"), ("\\", "/")] {
        plain = plain.replace(escaped, unescaped);
    }
    let mut names = plain.split('/').filter_map(|segment| segment.split(';').next());
    names.any(|name| matches!(name, "." | ".."))
}
