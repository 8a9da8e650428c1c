//! Whose pages may open a WebSocket.
//!
//! A browser lets any page open a WebSocket to any server, and sends that server's cookies along. It says
//! in Origin whose page it is, and leaves the rest to the server (RFC 6455 §10.2).

/// Whether a page of `origin` may talk to the host `authority`: it is a page of that host, or of one of
/// those that are `allowed`.
///
/// Over TLS the page must have come over TLS too. Without it, a page that came over TLS may as well: there
/// may be a proxy in front that has it.
pub(crate) fn is_allowed(
    origin: &[u8],
    authority: &str,
    is_secure: bool,
    allowed: &[String],
) -> bool {
    let Ok(origin) = std::str::from_utf8(origin) else { return false };
    let is_named = |name: &String| match (Origin::read(name), Origin::read(origin)) {
        (Some(name), Some(origin)) => name == origin,
        _ => name == origin,
    };
    is_same(origin, authority, is_secure) || allowed.iter().any(is_named)
}

fn is_same(origin: &str, authority: &str, is_secure: bool) -> bool {
    let Some(origin) = Origin::read(origin) else { return false };
    if is_secure && !origin.is_https {
        return false;
    }
    // The default port of the page's scheme: behind a proxy with TLS, Host has no port either.
    Origin::of(origin.is_https, authority).is_some_and(|own| own == origin)
}

/// An origin of HTTP. RFC 6454 §4: scheme, host and port, the first two in lower case.
#[derive(Debug)]
struct Origin<'a> {
    is_https: bool,
    host: &'a str,
    port: u16,
}

impl PartialEq for Origin<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_https == other.is_https
            && self.port == other.port
            && self.host.eq_ignore_ascii_case(other.host)
    }
}

impl<'a> Origin<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !is_https && !scheme.eq_ignore_ascii_case("http") {
            return None;
        }
        Self::of(is_https, authority)
    }

    fn of(is_https: bool, authority: &'a str) -> Option<Self> {
        // The colon before a port is the one after the bracket, if there is one.
        let from = authority.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match authority[from..].find(':') {
            Some(at) => (&authority[..from + at], &authority[from + at + 1..]),
            None => (authority, ""),
        };
        if host.is_empty() || host.contains(['/', '?', '#', '@']) {
            return None;
        }
        // RFC 3986 §3.2.3: a port that is empty is the default one.
        let port = match port {
            "" => {
                if is_https {
                    443
                } else {
                    80
                }
            }
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
            _ => return None,
        };
        Some(Self { is_https, host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn a_page_of_the_same_host_and_port_may_whatever_way_they_are_written() {
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
                let is = is_allowed(origin.as_bytes(), authority, is_secure, &[]);
                assert_eq!(is, expected, "{origin} to {authority}, secure: {is_secure}");
            }
        }
    }

    #[test]
    fn a_page_that_is_allowed_may_and_no_other() {
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
                is_allowed(origin.as_bytes(), "a.test", true, &allowed),
                expected,
                "{origin}"
            );
        }
        assert!(!is_allowed(b"\xff", "a.test", true, &allowed));
    }
}
