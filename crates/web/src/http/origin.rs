//! Web origins, which identify the page for which a browser sends a request.

/// An `http` or `https` origin. RFC 6454 §4: scheme, host and port, the first two in lower case.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Whether the scheme is `https` rather than `http`.
    pub is_https: bool,
    /// The host, in its original case, which comparisons of origins ignore.
    pub host: &'a str,
    /// The port, or the scheme's default port if none was written.
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
    /// Parses an origin as browsers write it, such as `https://a.example`. `None` for anything
    /// else, including a URL with a path.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !is_https && !scheme.eq_ignore_ascii_case("http") {
            return None;
        }
        Self::from_authority(is_https, authority)
    }

    /// The origin of a host, as in the `Host` field.
    #[must_use]
    pub fn from_authority(is_https: bool, authority: &'a str) -> Option<Self> {
        // In an IPv6 address, the colon before the port is the one after the bracket.
        let search_start = authority.rfind(']').map_or(0, |index| index + 1);
        let (host, port) = match authority[search_start..].find(':') {
            Some(index) => {
                (&authority[..search_start + index], &authority[search_start + index + 1..])
            }
            None => (authority, ""),
        };
        if host.is_empty() || host.contains(['/', '?', '#', '@']) {
            return None;
        }
        // RFC 3986 §3.2.3: an empty port is the default port.
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

/// Whether `origin`, the origin of the page that sent a request, is that of the host `authority`.
/// If the request was received over TLS (`is_secure`), the page must have been loaded over TLS as
/// well. If not, pages of both schemes are accepted, because a proxy may terminate TLS.
#[must_use]
pub fn is_same_origin(origin: &str, authority: &str, is_secure: bool) -> bool {
    let Some(origin) = Origin::parse(origin) else { return false };
    if is_secure && !origin.is_https {
        return false;
    }
    // The page's scheme determines the default port: behind a proxy that terminates TLS, `Host` has
    // no port either.
    Origin::from_authority(origin.is_https, authority).is_some_and(|requested| requested == origin)
}
