//! The rules for storing responses (RFC 9111). No I/O and no clock.

use http::header::{AGE, CACHE_CONTROL, CONTENT_RANGE, EXPIRES, SET_COOKIE, TRAILER, VARY};
use http::{HeaderName, StatusCode};
use httpdate::parse_http_date;
use peregrine_web::response::Headers;
use std::time::{Duration, SystemTime};

/// RFC 9111, section 1.2.2: larger numbers may be replaced by this one.
const SECONDS_MAX: u64 = 1 << 31;

/// The directives of `Cache-Control`, of a request or a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) private: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    /// Like `must-revalidate`, but only for shared caches such as this one.
    pub(crate) proxy_revalidate: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) s_maxage: Option<Duration>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) stale_while_revalidate: Option<Duration>,
    pub(crate) stale_if_error: Option<Duration>,
}

impl Directives {
    pub(crate) fn parse<'v>(values: impl Iterator<Item = &'v [u8]>) -> Self {
        let mut directives = Self::default();
        for value in values {
            let mut rest = value;
            while !rest.is_empty() {
                let (element, tail) = rest.split_at(list_element_end(rest));
                directives.add(element.trim_ascii());
                rest = tail.get(1..).unwrap_or_default();
            }
        }
        directives
    }

    pub(crate) fn from_fields(fields: &Headers) -> Self {
        let cache_control = fields.iter().filter(|(name, _)| **name == CACHE_CONTROL);
        Self::parse(cache_control.map(|(_, value)| value.as_bytes()))
    }

    fn add(&mut self, directive: &[u8]) {
        let mut parts = directive.splitn(2, |byte| *byte == b'=');
        let name = parts.next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        let argument = parts.next().map(<[u8]>::trim_ascii);
        let seconds = |previous: Option<Duration>| {
            let parsed = argument.and_then(parse_delta_seconds).unwrap_or_default();
            // RFC 9111 §4.2.1: of several contradicting values, the one that expires first applies.
            Some(previous.map_or(parsed, |previous| previous.min(parsed)))
        };
        match name.as_slice() {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            // RFC 9111 §5.2.2.7: with field names, a cache may treat it as if it had none.
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"s-maxage" => self.s_maxage = seconds(self.s_maxage),
            b"max-age" => self.max_age = seconds(self.max_age),
            b"stale-while-revalidate" => {
                self.stale_while_revalidate = seconds(self.stale_while_revalidate);
            }
            b"stale-if-error" => self.stale_if_error = seconds(self.stale_if_error),
            _ => {}
        }
    }
}

/// The length of the first element of a list, which ends at a comma outside quotes.
fn list_element_end(list: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let end = list.iter().position(|byte| {
        let is_end = *byte == b',' && !is_quoted;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        is_end
    });
    end.unwrap_or(list.len())
}

/// RFC 9111, section 5.2: an argument may be quoted although it should not be. Returns `None` for
/// an invalid number, which callers treat as 0.
fn parse_delta_seconds(argument: &[u8]) -> Option<Duration> {
    let digits = argument.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let digits = digits.unwrap_or(argument);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(digits).ok()?.parse().unwrap_or(SECONDS_MAX);
    Some(Duration::from_secs(number.min(SECONDS_MAX)))
}

/// The clients for which a response may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// All clients: the response has `public` or `s-maxage`.
    All,
    /// Clients that were not identified: the response has a lifetime, but does not say that it is
    /// for all clients.
    Unidentified,
    /// Clients without credentials and cookies: only the cache's settings permit storing the
    /// response.
    Assumed,
}

/// How long a response may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreshnessLifetime {
    /// The clients for which it may be used.
    pub(crate) audience: Audience,
    /// Its age when the handler returned it: its `Age` field.
    pub(crate) age: Duration,
    /// The age until which it is fresh.
    pub(crate) max_age: Duration,
    /// The additional time during which it may be used while a newer one is fetched.
    pub(crate) stale_while_revalidate: Duration,
    /// The additional time during which it may be used in place of an error.
    pub(crate) stale_if_error: Duration,
}

/// The cache's settings for what a response does not specify, and for `Set-Cookie`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) ttl: Option<Duration>,
    pub(crate) stale_while_revalidate: Duration,
    pub(crate) stale_if_error: Duration,
    pub(crate) allow_set_cookie: bool,
}

/// RFC 9110, section 15.1, and RFC 9111, section 3: the final statuses that this cache understands.
const CACHEABLE_STATUSES: [u16; 12] = [200, 203, 204, 300, 301, 302, 307, 308, 404, 405, 410, 414];

/// Returns how long a response to a GET request may be used; `None` if it must not be stored.
/// `has_credentials`: the client was identified or sent credentials. `may_be_private`: this is so,
/// or the client sent a cookie, so the response may be specific to the client.
pub(crate) fn freshness_lifetime(
    status: StatusCode,
    fields: &Headers,
    defaults: &Defaults,
    has_credentials: bool,
    may_be_private: bool,
) -> Option<FreshnessLifetime> {
    let directives = Directives::from_fields(fields);
    let has = |name: &HeaderName| fields.get(name).is_some();
    let varies_by_all = fields.iter().any(|(name, value)| {
        *name == VARY
            && (value.to_str().is_err()
                || value
                    .as_bytes()
                    .split(|byte| *byte == b',')
                    .any(|part| part.trim_ascii() == b"*"))
    });
    // RFC 9111 §3: what may be stored. Responses that need validation before each use are not
    // stored.
    let forbids_storing =
        directives.no_store || directives.private || directives.no_cache || varies_by_all;
    let is_unsupported =
        has(&CONTENT_RANGE) || has(&TRAILER) || (has(&SET_COOKIE) && !defaults.allow_set_cookie);
    if forbids_storing || is_unsupported || !CACHEABLE_STATUSES.contains(&status.as_u16()) {
        return None;
    }
    // RFC 9111 §3.5: a response to a request with credentials is shareable only if it says so.
    // `must-revalidate` would permit it too, but in practice it is used to control freshness, not
    // access.
    let is_shareable = directives.public || directives.s_maxage.is_some();
    if has_credentials && !is_shareable {
        return None;
    }
    let explicit = directives.s_maxage.or(directives.max_age).or_else(|| expires(fields));
    // Without an explicit lifetime, a response that may be specific to a client is not shared.
    let max_age =
        explicit.or(defaults.ttl.filter(|_| !may_be_private && status == StatusCode::OK))?;
    let age = fields.get(&AGE).and_then(|age| parse_delta_seconds(age.as_bytes().trim_ascii()));
    let age = age.unwrap_or_default();
    // RFC 9111 §4.2.4 and §5.2.2.10: these directives forbid using a stale response.
    let must_revalidate =
        directives.must_revalidate || directives.proxy_revalidate || directives.s_maxage.is_some();
    let stale = |specified: Option<Duration>, default: Duration| match must_revalidate {
        true => Duration::ZERO,
        false => specified.unwrap_or(default),
    };
    let audience = match explicit {
        _ if is_shareable => Audience::All,
        Some(_) => Audience::Unidentified,
        None => Audience::Assumed,
    };
    let lifetime = FreshnessLifetime {
        audience,
        age,
        max_age,
        stale_while_revalidate: stale(
            directives.stale_while_revalidate,
            defaults.stale_while_revalidate,
        ),
        stale_if_error: stale(directives.stale_if_error, defaults.stale_if_error),
    };
    let longest_stale = lifetime.stale_while_revalidate.max(lifetime.stale_if_error);
    (max_age.saturating_add(longest_stale) > age).then_some(lifetime)
}

/// The lifetime from `Expires`. RFC 9111, section 5.3: an invalid date, such as 0, is in the past.
fn expires(fields: &Headers) -> Option<Duration> {
    let date = |name: &str| parse_http_date(fields.get_str(name)?).ok();
    fields.get(&EXPIRES)?;
    let now = date("date").unwrap_or_else(SystemTime::now);
    Some(date("expires").and_then(|end| end.duration_since(now).ok()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn fields(pairs: &[(&'static str, &'static str)]) -> Headers {
        let mut fields = Headers::new();
        for (name, value) in pairs {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        fields
    }

    /// The lifetime in seconds: fresh, stale while revalidating, stale if error.
    fn lifetime_secs(status: u16, pairs: &[(&'static str, &'static str)]) -> Option<[u64; 3]> {
        let status = StatusCode::from_u16(status).expect("a status");
        let lifetime =
            freshness_lifetime(status, &fields(pairs), &Defaults::default(), false, false)?;
        Some(
            [lifetime.max_age, lifetime.stale_while_revalidate, lifetime.stale_if_error]
                .map(|time| time.as_secs()),
        )
    }

    fn lifetime_with(value: &'static str) -> Option<[u64; 3]> {
        lifetime_secs(200, &[("cache-control", value)])
    }

    #[test]
    fn directives_and_expires_determine_the_lifetime() {
        for (value, expected) in [
            ("max-age=60", Some([60, 0, 0])),
            ("MAX-AGE=\"60\"", Some([60, 0, 0])),
            ("max-age=60, s-maxage=10", Some([10, 0, 0])),
            ("s-maxage=10, max-age=60, stale-if-error=9", Some([10, 0, 0])),
            ("max-age=60, max-age=5", Some([5, 0, 0])),
            ("max-age=99999999999999999999999", Some([1 << 31, 0, 0])),
            ("max-age=60, stale-while-revalidate=5, stale-if-error=7", Some([60, 5, 7])),
            ("max-age=60, stale-while-revalidate=5, must-revalidate", Some([60, 0, 0])),
            ("max-age=60, stale-while-revalidate=5, proxy-revalidate", Some([60, 0, 0])),
            ("max-age=0, stale-while-revalidate=5", Some([0, 5, 0])),
            ("max-age=-1", None),
            ("max-age=soon", None),
            ("max-age", None),
            ("max-age=0", None),
            ("max-age=60, no-store", None),
            ("max-age=60, private", None),
            ("max-age=60, private=\"x-a, x-b\"", None),
            ("max-age=60, no-cache=\"set-cookie\"", None),
            ("x=\"a, no-store\", max-age=60", Some([60, 0, 0])),
            ("x=\"a\\\", no-store\", max-age=60", Some([60, 0, 0])),
            ("public", None),
            (",,=, max-age=60", Some([60, 0, 0])),
        ] {
            assert_eq!(lifetime_with(value), expected, "{value}");
        }
        let split = [("cache-control", "max-age=60"), ("cache-control", "no-store")];
        assert_eq!(lifetime_secs(200, &split), None);
        let dates = |expires| {
            lifetime_secs(200, &[("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("expires", expires)])
        };
        assert_eq!(dates("Sun, 06 Nov 1994 08:50:37 GMT"), Some([60, 0, 0]));
        assert_eq!((dates("Sun, 06 Nov 1994 08:49:00 GMT"), dates("0")), (None, None));
    }

    #[test]
    fn stores_only_complete_and_shareable_responses() {
        const FOR_A_MINUTE: (&str, &str) = ("cache-control", "max-age=60");
        for (status, field, is_stored) in [
            (200, ("x-a", "1"), true),
            (404, ("x-a", "1"), true),
            (206, ("x-a", "1"), false),
            (200, ("content-range", "bytes 0-1/2"), false),
            (304, ("x-a", "1"), false),
            (500, ("x-a", "1"), false),
            (101, ("x-a", "1"), false),
            (200, ("set-cookie", "a=b"), false),
            (200, ("vary", "accept, *"), false),
            (200, ("vary", "accept"), true),
            (200, ("trailer", "x-sum"), false),
            (200, ("age", "59"), true),
            (200, ("age", "60"), false),
        ] {
            assert_eq!(
                lifetime_secs(status, &[FOR_A_MINUTE, field]).is_some(),
                is_stored,
                "{status} {field:?}"
            );
        }
    }

    #[test]
    fn credentials_and_cookies_make_a_response_private() {
        let defaults = Defaults { ttl: Some(Duration::from_secs(9)), ..Defaults::default() };
        let is_stored = |value, has_credentials, may_be_private| {
            let fields = fields(&[("cache-control", value)]);
            freshness_lifetime(StatusCode::OK, &fields, &defaults, has_credentials, may_be_private)
                .is_some()
        };
        assert!(is_stored("max-age=5", false, true), "the response has a lifetime");
        assert!(!is_stored("max-age=5", true, true));
        assert!(is_stored("max-age=5, public", true, true) && is_stored("s-maxage=5", true, true));
        assert!(!is_stored("max-age=5, must-revalidate", true, true));
        assert!(!is_stored("max-age=5, proxy-revalidate", true, true));
        assert!(
            is_stored("x", false, false) && !is_stored("x", false, true),
            "only the default applies"
        );
    }
}
