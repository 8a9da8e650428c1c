//! Origins: whose page a browser sends a request for.

/// An origin of HTTP. RFC 6454 §4: scheme, host and port, the first two in lower case.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Whether the scheme is `https`, and not `http`.
    pub is_https: bool,
    /// The host as it is written.
    pub host: &'a str,
    /// The port: the scheme's own, if none is written.
    pub port: u16,
}

impl Eq for Origin<'_> {}

impl PartialEq for Origin<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_https == other.is_https
            && self.port == other.port
            && self.host.eq_ignore_ascii_case(other.host)
    }
}

impl<'a> Origin<'a> {
    /// An origin as browsers write it, such as `https://a.example`; `None` for anything else, a path too.
    #[must_use]
    pub fn read(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !is_https && !scheme.eq_ignore_ascii_case("http") {
            return None;
        }
        Self::of(is_https, authority)
    }

    /// The origin of a host, as in the field `Host`.
    #[must_use]
    pub fn of(is_https: bool, authority: &'a str) -> Option<Self> {
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

/// Is a page of `origin` one of the host `authority`? Over TLS the page must have come over TLS too. Without it,
/// a page that came over TLS may as well: there may be a proxy in front that has it.
#[must_use]
pub fn is_same(origin: &str, authority: &str, is_secure: bool) -> bool {
    let Some(origin) = Origin::read(origin) else { return false };
    if is_secure && !origin.is_https {
        return false;
    }
    // The default port of the page's scheme: behind a proxy with TLS, Host has no port either.
    Origin::of(origin.is_https, authority).is_some_and(|own| own == origin)
}
