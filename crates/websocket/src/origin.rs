//! Decides which pages are allowed to open a WebSocket.
//!
//! A browser allows any page to open a WebSocket to any server, and sends the cookies of that
//! server. It sends the page's origin in `Origin`, so that the server can reject it (RFC 6455
//! §10.2).

use peregrine_web::origin::{Origin, is_same_origin};

/// Returns whether a page from `origin` is allowed to connect to the host `authority`: the page is
/// from that host, or its origin is in `allowed`.
///
/// Over TLS, the page must have been loaded over TLS as well. Without TLS, a page loaded over TLS
/// is accepted too, because a proxy in front can terminate TLS.
pub(crate) fn is_origin_allowed(
    origin: &[u8],
    authority: &str,
    is_secure: bool,
    allowed: &[String],
) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else { return false };
    let matches_origin =
        |allowed_origin: &String| match (Origin::parse(allowed_origin), Origin::parse(origin)) {
            (Some(allowed_origin), Some(origin)) => allowed_origin == origin,
            _ => allowed_origin == origin,
        };
    is_same_origin(origin, authority, is_secure) || allowed.iter().any(matches_origin)
}

#[cfg(test)]
mod tests {
    use super::is_origin_allowed;

    #[test]
    fn allows_the_same_host_and_port_in_any_notation() {
        for (origin, authority, plain, secure) in [
            ("http://a.test", "a.test", true, false),
            ("https://a.test", "a.test", true, true),
            ("HTTPS://A.Test", "a.tEST", true, true),
            ("http://a.test:80", "a.test", true, false),
            ("http://a.test", "a.test:80", true, false),
            ("https://a.test", "a.test:443", true, true),
            ("https://a.test", "a.test:80", false, false),
            ("http://a.test", "a.test:443", false, false),
            ("https://a.test:8443", "a.test:8443", true, true),
            ("https://a.test:8443", "a.test", false, false),
            ("https://a.test", "a.test:8443", false, false),
            ("https://a.test", "a.test:", true, true),
            ("http://[::1]:8080", "[::1]:8080", true, false),
            ("http://[::1]", "[::1]", true, false),
            ("http://[::1]", "[::1]:81", false, false),
            ("https://b.test", "a.test", false, false),
            ("https://a.test.b.test", "a.test", false, false),
            ("https://xa.test", "a.test", false, false),
            ("https://a.test@b.test", "a.test", false, false),
            ("https://a.test/", "a.test", false, false),
            ("https://a.test:99999", "a.test:99999", false, false),
            ("https://a.test:+443", "a.test", false, false),
            ("null", "null", false, false),
            ("", "a.test", false, false),
            ("a.test", "a.test", false, false),
            ("file://a.test", "a.test", false, false),
            ("https://", "", false, false),
        ] {
            for (is_secure, expected) in [(false, plain), (true, secure)] {
                let is_allowed = is_origin_allowed(origin.as_bytes(), authority, is_secure, &[]);
                assert_eq!(is_allowed, expected, "{origin} to {authority}, secure: {is_secure}");
            }
        }
    }

    #[test]
    fn allows_listed_origins_and_no_others() {
        let allowed = ["https://app.test".to_owned(), "null".to_owned(), "app://x".to_owned()];
        for (origin, expected) in [
            ("https://app.test", true),
            ("https://APP.test:443", true),
            ("http://app.test", false),
            ("https://app.test:8443", false),
            ("null", true),
            ("app://x", true),
            ("app://y", false),
            ("https://a.test", true),
        ] {
            assert_eq!(
                is_origin_allowed(origin.as_bytes(), "a.test", true, &allowed),
                expected,
                "{origin}"
            );
        }
        assert!(!is_origin_allowed(b"\xff", "a.test", true, &allowed));
    }
}
