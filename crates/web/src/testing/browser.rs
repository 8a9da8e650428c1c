//! Browser features of the test client: it stores cookies and follows redirects.

use crate::http::response::Headers;
use http::header::SET_COOKIE;
use http::{Method, StatusCode};
use std::time::SystemTime;

/// The cookies of a client, following RFC 6265.
///
/// Cookies do not expire during a test. A response removes a cookie by setting it with a `Max-Age`
/// of zero or less, or an `Expires` that is already past. As browsers do for `localhost`, the
/// client stores and sends `Secure` cookies without TLS too.
#[derive(Debug, Default)]
pub(super) struct CookieJar {
    cookies: Vec<StoredCookie>,
}

#[derive(Debug)]
struct StoredCookie {
    name: String,
    value: String,
    path: String,
    /// The value of the `Domain` attribute, or else the host that set the cookie.
    domain: String,
    /// Whether there is a `Domain` attribute, so that subdomains receive the cookie too.
    has_domain: bool,
}

impl CookieJar {
    /// Stores the cookies that the response to a request for `path` on `host` sets.
    pub(super) fn store(&mut self, host: &str, path: &str, headers: &Headers) {
        let set_cookie = headers.iter().filter(|(name, _)| *name == SET_COOKIE);
        for text in set_cookie.filter_map(|(_, value)| value.to_str().ok()) {
            self.set(host, path, text);
        }
    }

    fn set(&mut self, host: &str, path: &str, text: &str) {
        let mut parts = text.split(';');
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else {
            return;
        };
        let host = host_name(host);
        let mut cookie = StoredCookie {
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
            path: default_path(path).to_owned(),
            domain: host.clone(),
            has_domain: false,
        };
        let (mut is_secure, mut max_age, mut expires) = (false, None, None);
        for attribute in parts {
            let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
            let value = value.trim();
            match name.trim().to_ascii_lowercase().as_str() {
                "path" if value.starts_with('/') => cookie.path = value.to_owned(),
                "path" => cookie.path = default_path(path).to_owned(),
                "domain" if !value.is_empty() => {
                    cookie.domain = value.trim_start_matches('.').to_ascii_lowercase();
                    cookie.has_domain = true;
                }
                "secure" => is_secure = true,
                "max-age" => max_age = value.parse::<i64>().ok().or(max_age),
                "expires" => expires = Some(value),
                _ => {}
            }
        }
        let is_host_only_root = cookie.path == "/" && !cookie.has_domain;
        let is_rejected = cookie.name.is_empty()
            || !domain_matches(&host, &cookie.domain)
            || cookie.name.starts_with("__Secure-") && !is_secure
            || cookie.name.starts_with("__Host-") && !(is_secure && is_host_only_root);
        if is_rejected {
            return;
        }
        let position = self.cookies.iter().position(|other| {
            (&other.name, &other.path, &other.domain)
                == (&cookie.name, &cookie.path, &cookie.domain)
        });
        let is_removal = max_age.map_or_else(|| expires.is_some_and(is_expired), |age| age <= 0);
        match (position, is_removal) {
            // A cookie that is set again keeps its position.
            (Some(position), false) => self.cookies[position] = cookie,
            (Some(position), true) => drop(self.cookies.remove(position)),
            (None, false) => self.cookies.push(cookie),
            (None, true) => {}
        }
    }

    /// The value of `Cookie` for a request; `None` if there are no cookies for it.
    pub(super) fn cookie_header(&self, host: &str, path: &str) -> Option<String> {
        let host = host_name(host);
        let is_sent = |cookie: &&StoredCookie| {
            let host_matches = if cookie.has_domain {
                domain_matches(&host, &cookie.domain)
            } else {
                host == cookie.domain
            };
            host_matches && path_matches(path, &cookie.path)
        };
        let mut cookies: Vec<_> = self.cookies.iter().filter(is_sent).collect();
        // RFC 6265 §5.4: longer paths first, then older cookies.
        cookies.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let pairs: Vec<_> =
            cookies.iter().map(|cookie| format!("{}={}", cookie.name, cookie.value)).collect();
        (!pairs.is_empty()).then(|| pairs.join("; "))
    }
}

/// The host without its port, in lower case.
fn host_name(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    name.to_ascii_lowercase()
}

fn domain_matches(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
}

/// The path of a cookie without a `Path` attribute, set in a response to a request for `path` (RFC
/// 6265 §5.1.4).
fn default_path(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(end) => &path[..end],
    }
}

fn path_matches(path: &str, cookie_path: &str) -> bool {
    path.strip_prefix(cookie_path)
        .is_some_and(|rest| rest.is_empty() || cookie_path.ends_with('/') || rest.starts_with('/'))
}

/// Whether the date is in the past. A date that cannot be parsed counts as in the future.
fn is_expired(date: &str) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    parse_cookie_date(date).is_some_and(|date| date <= now)
}

/// Seconds since 1970 of a date in any format that servers write, following RFC 6265 §5.1.1: a
/// time, a day, a month and a year in any order, except that a two-digit year follows the day.
fn parse_cookie_date(date: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let (mut time, mut day, mut month, mut year) = (None, None, None, None);
    for word in date.split([' ', '-', ',']).filter(|word| !word.is_empty()) {
        let mut parts = word.split(':').map(str::parse::<i64>);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(Ok(hour)), Some(Ok(minute)), Some(Ok(second))) if time.is_none() => {
                time = Some(hour * 3600 + minute * 60 + second);
            }
            (Some(Ok(number)), None, _) if day.is_none() && word.len() <= 2 => day = Some(number),
            (Some(Ok(number)), None, _) if year.is_none() => {
                // RFC 6265 §5.1.1: two-digit years are 1970 to 2069.
                let century = if word.len() > 2 {
                    0
                } else if number < 70 {
                    2000
                } else {
                    1900
                };
                year = Some(century + number);
            }
            _ => {
                let abbreviation = word.get(..3).unwrap_or_default().to_ascii_lowercase();
                month = month.or(MONTHS.iter().position(|name| *name == abbreviation));
            }
        }
    }
    let (time, day, year) = (time?, day?, year.filter(|year| (1601..=9999).contains(year))?);
    // Counting years from March puts the leap day last. March 1 of the year 0 is 719,468 days
    // before 1970, and the days of a month count from 1.
    let month = i64::try_from(month?).ok()?;
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days =
        year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469;
    Some(days * 86_400 + time)
}

/// The path of a request target, without its query.
pub(super) fn target_path(target: &str) -> &str {
    target.split(['?', '#']).next().unwrap_or(target)
}

/// The request that follows a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RedirectTarget {
    pub(super) method: Method,
    pub(super) target: String,
    /// Whether the request is repeated with its body.
    pub(super) keeps_body: bool,
}

/// The request that follows a response with this status and `Location`, after a request for
/// `target` on `host`. `None` if it is not a redirect, or leads to another host.
pub(super) fn redirect_target(
    (method, host, target): (&Method, &str, &str),
    status: StatusCode,
    location: &str,
) -> Option<RedirectTarget> {
    let (method, keeps_body) = match (status.as_u16(), method) {
        (303, &Method::HEAD) | (301 | 302, &Method::HEAD) => (Method::HEAD, false),
        (303, _) | (301 | 302, &Method::POST) => (Method::GET, false),
        (301 | 302 | 307 | 308, other) => (other.clone(), true),
        _ => return None,
    };
    let location = location.split('#').next().unwrap_or(location);
    // The part from the host on, if the location names a host.
    let from_host = location
        .strip_prefix("http://")
        .or_else(|| location.strip_prefix("https://"))
        .or_else(|| location.strip_prefix("//"));
    let reference = match from_host {
        Some(rest) => {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            if !rest[..end].eq_ignore_ascii_case(host) {
                return None;
            }
            &rest[end..]
        }
        // Another scheme, such as `mailto:`.
        None if location.split(['/', '?']).next().is_some_and(|first| first.contains(':')) => {
            return None;
        }
        None => location,
    };
    let path = target_path(target);
    let target = match reference.as_bytes().first() {
        Some(b'/') => remove_dot_segments(reference),
        Some(b'?') if from_host.is_some() => format!("/{reference}"),
        Some(b'?') => format!("{path}{reference}"),
        None if from_host.is_some() => "/".to_owned(),
        None => target.to_owned(),
        Some(_) => {
            let directory = &path[..path.rfind('/').map_or(0, |end| end + 1)];
            remove_dot_segments(&format!("{directory}{reference}"))
        }
    };
    Some(RedirectTarget { method, target, keeps_body })
}

/// RFC 3986 §5.2.4, for paths that begin with a slash.
fn remove_dot_segments(target: &str) -> String {
    let (path, query) = target.split_at(target_path(target).len());
    let mut segments = Vec::new();
    let parts: Vec<_> = path.split('/').skip(1).collect();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        match *part {
            "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
        if is_last && matches!(*part, "." | "..") {
            segments.push("");
        }
    }
    format!("/{}{query}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_cookies_by_host_domain_and_path() {
        let mut jar = CookieJar::default();
        for (host, path, text) in [
            ("a.test", "/", "one=1"),
            ("a.test:80", "/x/y", "two=2; HttpOnly"),
            ("a.test", "/x/y", "three=3; Path=/; Domain=.A.test"),
            ("a.test", "/", "four=4; Domain=b.test"),
            ("a.test", "/", "__Host-five=5; Secure"),
            ("a.test", "/", "__Host-six=6; Secure; Path=/"),
            ("a.test", "/", "__Host-seven=7; Path=/"),
            ("a.test", "/", "__Secure-eight=8"),
            ("a.test", "/", "=9"),
            ("a.test", "/", "ten"),
            ("b.test", "/", "other=11"),
        ] {
            jar.set(host, path, text);
        }
        let value = |host, path| jar.cookie_header(host, path);
        let all = "two=2; one=1; three=3; __Host-five=5; __Host-six=6";
        assert_eq!(value("A.test:8080", "/x/z").as_deref(), Some(all));
        assert_eq!(value("a.test", "/x").as_deref(), Some(all));
        assert_eq!(value("w.a.test", "/x").as_deref(), Some("three=3"));
        let root = "one=1; three=3; __Host-five=5; __Host-six=6";
        assert_eq!(value("a.test", "/xy").as_deref(), Some(root));
        assert_eq!(value("nota.test", "/"), None);
        assert_eq!(value("b.test", "/").as_deref(), Some("other=11"));
    }

    #[test]
    fn replaces_and_removes_cookies() {
        let mut jar = CookieJar::default();
        let mut after = |text: &str| {
            jar.set("a", "/", text);
            jar.cookie_header("a", "/")
        };
        assert_eq!(after("a=1; Max-Age=60").as_deref(), Some("a=1"));
        assert_eq!(
            after("b=1; Expires=Wed, 21 Oct 2099 07:28:00 GMT").as_deref(),
            Some("a=1; b=1")
        );
        assert_eq!(after("a=2; Max-Age=x").as_deref(), Some("a=2; b=1"));
        assert_eq!(after("a=; Max-Age=0").as_deref(), Some("b=1"));
        assert_eq!(
            after("b=; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=1").as_deref(),
            Some("b=")
        );
        assert_eq!(after("b=; Expires=Mon, 06 Jan 2020 00:00:00 GMT"), None);
        assert_eq!(after("b=1").as_deref(), Some("b=1"));
        assert_eq!(after("b=; expires=Thu, 01-Jan-1970 00:00:00 GMT"), None);
        assert_eq!(after("c=; Max-Age=-1"), None);
    }

    #[test]
    fn parses_dates_in_every_format() {
        for (date, seconds) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Tue, 29 Feb 2000 12:00:00 GMT", Some(951_825_600)),
            ("Wed, 01-Mar-2000 00:00:00 GMT", Some(951_868_800)),
            ("Thu, 31 Dec 2099 23:59:59 GMT", Some(4_102_444_799)),
            ("0", None),
            ("Sun, 06 Nov 08:49:37 GMT", None),
            ("Sun, 06 Xyz 1994 08:49:37 GMT", None),
        ] {
            assert_eq!(parse_cookie_date(date), seconds, "{date}");
        }
    }

    #[test]
    fn follows_redirects_as_browsers_do() {
        let from = "/a/b?q";
        for (status, method, location, expected) in [
            (303, Method::POST, "/c", Some((Method::GET, "/c", false))),
            (303, Method::HEAD, "/c", Some((Method::HEAD, "/c", false))),
            (302, Method::POST, "c", Some((Method::GET, "/a/c", false))),
            (302, Method::PUT, "../c?x", Some((Method::PUT, "/c?x", true))),
            (301, Method::GET, "?x", Some((Method::GET, "/a/b?x", true))),
            (307, Method::POST, "./", Some((Method::POST, "/a/", true))),
            (308, Method::GET, "/x/../c/./?x=/../y", Some((Method::GET, "/c/?x=/../y", true))),
            (308, Method::POST, "..", Some((Method::POST, "/", true))),
            (308, Method::GET, "http://H.test/c#d", Some((Method::GET, "/c", true))),
            (308, Method::GET, "https://h.test?x", Some((Method::GET, "/?x", true))),
            (308, Method::GET, "//h.test", Some((Method::GET, "/", true))),
            (308, Method::GET, "#d", Some((Method::GET, "/a/b?q", true))),
            (308, Method::GET, "http://other.test/c", None),
            (308, Method::GET, "//other.test/c", None),
            (308, Method::GET, "mailto:me@h.test", None),
            (200, Method::GET, "/c", None),
            (304, Method::GET, "/c", None),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let redirect = redirect_target((&method, "h.test", from), status, location);
            let expected = expected.map(|(method, target, keeps_body)| RedirectTarget {
                method,
                target: target.to_owned(),
                keeps_body,
            });
            assert_eq!(redirect, expected, "{status} {method} {location}");
        }
    }
}
