//! The key and the fingerprint of a request.

use super::store::Fingerprint;
use http::StatusCode;
use peregrine_web::connection::ProxyProtocolTls;
use peregrine_web::{Parts, Problem, RequestHead};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt::Write;

/// The maximum length of a key.
const KEY_BYTES_MAX: usize = 255;

/// The key of a request; `None` if it has none.
pub(crate) fn idempotency_key(head: &RequestHead) -> Result<Option<Cow<'_, str>>, Problem> {
    let mut values = head.header_values("idempotency-key");
    let Some(value) = values.next() else { return Ok(None) };
    let key = std::str::from_utf8(value).ok().and_then(|text| parse_key(text.trim_ascii()));
    let key = key.filter(|key| values.next().is_none() && (1..=KEY_BYTES_MAX).contains(&key.len()));
    key.map(Some).ok_or_else(|| {
        let detail = format!(
            "Idempotency-Key must be one string in quotes, of 1 to {KEY_BYTES_MAX} characters, such as a UUID"
        );
        Problem::new(StatusCode::BAD_REQUEST, "invalid-idempotency-key", detail)
    })
}

/// draft-ietf-httpapi-idempotency-key-header-07, section 2.1: an Item that is a String (RFC 8941,
/// section 3.3.3). Many clients omit the quotes, which is unambiguous for tokens.
fn parse_key(text: &str) -> Option<Cow<'_, str>> {
    let Some(quoted) = text.strip_prefix('"') else {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+/=:".contains(&byte);
        return text.bytes().all(is_plain).then_some(Cow::Borrowed(text));
    };
    let mut key = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => key.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            c @ ' '..='~' => key.push(c),
            _ => return None,
        }
    }
    // Parameters have no meaning here.
    let rest = chars.as_str();
    (rest.is_empty() || rest.starts_with(';')).then_some(Cow::Owned(key))
}

/// Returns the name of a key in the store: a hash, so that scopes are separate and a scope, which
/// may contain a secret, is not written to a database.
pub(crate) fn storage_key(scope: &str, key: &str) -> String {
    let mut hash = Sha256::new();
    hash_part(&mut hash, scope.as_bytes());
    hash_part(&mut hash, key.as_bytes());
    let mut name = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a string never fails.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Computes the fingerprint of a request. The first half covers what must be the same in a repeated
/// request: method, origin, target, the fields that route guards read, the type and coding of the
/// content, and the content. If `covers_client`, the second half covers the client's cookies and
/// the identity of its connection.
pub(crate) fn fingerprint(parts: &Parts, content: &[u8], covers_client: bool) -> Fingerprint {
    let (head, mut hash) = (&parts.head, Sha256::new());
    let client = parts.client();
    hash_part(&mut hash, client.origin().to_ascii_lowercase().as_bytes());
    hash_part(&mut hash, client.prefix().as_bytes());
    hash_part(&mut hash, head.method_str().as_bytes());
    hash_part(&mut hash, head.original_path().as_bytes());
    // In a mounted application, the path may have been rewritten.
    hash_part(&mut hash, head.path().as_bytes());
    hash_part(&mut hash, head.query().unwrap_or_default().as_bytes());
    for name in ["content-type", "content-encoding"] {
        hash_part(&mut hash, head.header_bytes(name).unwrap_or_default());
    }
    // Guards select among the routes of one target. `routes_hash` may change with the next version
    // of the program, so it is used only if the fields that the guards read are unknown.
    for name in &*head.guard_header_names() {
        hash_part(&mut hash, name.as_str().as_bytes());
        head.header_values_untracked(name.as_str()).for_each(|value| hash_part(&mut hash, value));
    }
    if head.has_opaque_guards() {
        hash_part(&mut hash, &head.routes_hash().to_be_bytes());
    }
    hash_part(&mut hash, content);
    let mut fingerprint: Fingerprint = hash.finalize().into();
    let client = if covers_client { client_fingerprint(parts) } else { Fingerprint::default() };
    fingerprint[HALF..].copy_from_slice(&client[HALF..]);
    fingerprint
}

/// The length of each half of a fingerprint: 128 bits suffice to avoid collisions.
const HALF: usize = size_of::<Fingerprint>() / 2;

pub(crate) fn is_same_request(first: &Fingerprint, second: &Fingerprint) -> bool {
    first[..HALF] == second[..HALF]
}

pub(crate) fn is_same_client(first: &Fingerprint, second: &Fingerprint) -> bool {
    first[HALF..] == second[HALF..]
}

/// Computes a hash of the client's identity, apart from its credentials, which already scope its
/// keys.
fn client_fingerprint(parts: &Parts) -> Fingerprint {
    let (connection, mut hash) = (parts.connection_untracked(), Sha256::new());
    // RFC 9113 §8.2.3: HTTP/2 may split the field; joined, it is the same again.
    let cookies: Vec<_> = parts.head.header_values_untracked("cookie").collect();
    hash_part(&mut hash, &cookies.join(&b"; "[..]));
    let certificate = connection.client_identity().map(|client| client.fingerprint);
    hash_part(&mut hash, certificate.as_ref().map_or(&[], |fingerprint| &fingerprint[..]));
    let proxy_tls = connection.proxy_protocol.as_ref().and_then(|proxy| proxy.tls.as_ref());
    hash_part(&mut hash, &proxy_tls.map(ProxyProtocolTls::client_bytes).unwrap_or_default());
    hash.finalize().into()
}

/// Hashes a part, prefixed with its length, so that different lists of parts have different hashes.
fn hash_part(hash: &mut Sha256, part: &[u8]) {
    hash.update((part.len() as u64).to_be_bytes());
    hash.update(part);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_quoted_strings_and_tokens() {
        for (text, key) in [
            ("\"8e03978e-40d5\"", Some("8e03978e-40d5")),
            ("8e03978e-40d5", Some("8e03978e-40d5")),
            ("\"a b\\\"c\\\\\"", Some("a b\"c\\")),
            ("\"a\";p=1", Some("a")),
            ("\"\"", Some("")),
            ("\"a", None),
            ("\"a\" b", None),
            ("\"a\\b\"", None),
            ("\"gr\u{fc}n\"", None),
            ("a b", None),
            ("a,b", None),
            ("a\"", None),
        ] {
            assert_eq!(parse_key(text).as_deref(), key, "{text}");
        }
    }

    #[test]
    fn storage_keys_separate_scope_and_key() {
        assert_ne!(storage_key("a", "bc"), storage_key("ab", "c"));
        assert_eq!(storage_key("a", "b").len(), 64);
    }
}
