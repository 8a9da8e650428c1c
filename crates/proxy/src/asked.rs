//! What is asked of an upstream: the length of content, another protocol, and paths that are never asked for.

use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use peregrine_web::Body;
use std::hash::{BuildHasher, Hasher, RandomState};

/// How long the content is, where hyper would not say so: it takes content of unknown length for none in a GET, and says nothing of none.
pub(crate) fn framing(method: &Method, body: &Body) -> Option<(HeaderName, HeaderValue)> {
    if http_body::Body::is_end_stream(body) || body.length() == Some(0) {
        // RFC 9110 §8.6: with a method that means something by content, none is said to be none.
        let means_content = matches!(*method, Method::POST | Method::PUT | Method::PATCH);
        return means_content.then(|| (CONTENT_LENGTH, HeaderValue::from_static("0")));
    }
    match body.length() {
        Some(_) => None,
        None => Some((TRANSFER_ENCODING, HeaderValue::from_static("chunked"))),
    }
}

/// Says that another protocol is asked for, in the form of HTTP/1.1.
pub(crate) fn ask_upgrade(map: &mut HeaderMap, protocols: &HeaderValue) {
    let is_websocket = protocols.as_bytes().eq_ignore_ascii_case(b"websocket");
    map.insert(UPGRADE, protocols.clone());
    let options = if map.contains_key(CONNECTION) { "upgrade, te" } else { "upgrade" };
    map.insert(CONNECTION, HeaderValue::from_static(options));
    // RFC 8441 §5: over HTTP/2 there is no key, which HTTP/1.1 wants.
    const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
    if is_websocket && !map.contains_key(KEY) {
        map.insert(KEY, key());
    }
}

/// 16 bytes in base64. They keep caches from answering, and are no secret.
fn key() -> HeaderValue {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let number = || u128::from(RandomState::new().build_hasher().finish());
    let bits = number() << 64 | number();
    let letter = |shift: u32| LETTERS[usize::try_from(bits >> shift & 63).unwrap_or_default()];
    let mut text: Vec<u8> = (0..21).map(|place| letter(122 - 6 * place)).collect();
    text.push(LETTERS[usize::try_from((bits & 3) << 4).unwrap_or_default()]);
    text.extend_from_slice(b"==");
    HeaderValue::from_bytes(&text).expect("base64 is ASCII")
}

/// Are there segments that a path is resolved by, in any way of writing them that some server understands: escaped, between backslashes, or with parameters
/// behind (`..;a=b`)?
pub(crate) fn has_dots(path: &str) -> bool {
    let mut plain = path.to_ascii_lowercase();
    for (escaped, letter) in [("%2e", "."), ("%2f", "/"), ("%5c", "/"), ("\\", "/")] {
        plain = plain.replace(escaped, letter);
    }
    let mut names = plain.split('/').filter_map(|segment| segment.split(';').next());
    names.any(|name| matches!(name, "." | ".."))
}
