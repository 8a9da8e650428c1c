//! Sets of allowed origins, as configured in a middleware.

use http::HeaderValue;
use peregrine_web::RequestHead;
use peregrine_web::origin::Origin;
use std::fmt;
#[cfg(feature = "cors")]
use std::rc::Rc;

/// The maximum length of text from a peer in a message, in characters.
const DISPLAYED_CHARS_MAX: usize = 60;

/// Shortens text from a peer for display in a message.
pub(crate) fn shorten_for_display(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.char_indices().nth(DISPLAYED_CHARS_MAX) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.into_owned(),
    }
}

/// A function that decides whether an origin is allowed.
#[cfg(feature = "cors")]
type OriginPredicate = Rc<dyn Fn(&str, &RequestHead) -> bool>;

/// A set of allowed origins.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllowedOrigins {
    #[cfg(feature = "cors")]
    pub(crate) allows_any: bool,
    rules: Vec<Rule>,
    /// Invalid origins, with the reason.
    pub(crate) config_errors: Vec<String>,
}

#[derive(Clone)]
enum Rule {
    /// An origin as configured, and as a field value.
    Exact(
        String,
        #[cfg_attr(not(feature = "cors"), expect(dead_code, reason = "sent by `Cors`"))]
        HeaderValue,
    ),
    Pattern(OriginPattern),
    #[cfg(feature = "cors")]
    Predicate(OriginPredicate),
}

/// The decision on a request's origin.
#[cfg(feature = "cors")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OriginMatch {
    /// All origins are allowed, so the response is the same for all.
    Any,
    /// This one is allowed.
    Exact(HeaderValue),
    /// It is not allowed, or missing.
    NoMatch,
}

impl AllowedOrigins {
    /// Adds an origin, or a pattern if it contains a `*`.
    pub(crate) fn add(&mut self, text: &str) {
        match parse_rule(text) {
            Ok(rule) => self.rules.push(rule),
            Err(reason) => self.config_errors.push(format!("`{text}` is not an origin: {reason}")),
        }
    }

    #[cfg(feature = "cors")]
    pub(crate) fn add_predicate(
        &mut self,
        predicate: impl Fn(&str, &RequestHead) -> bool + 'static,
    ) {
        self.rules.push(Rule::Predicate(Rc::new(predicate)));
    }

    #[cfg(feature = "cors")]
    pub(crate) fn is_empty(&self) -> bool {
        !self.allows_any && self.rules.is_empty()
    }

    /// Returns whether this origin is allowed.
    #[cfg(feature = "csrf")]
    pub(crate) fn contains(&self, origin: &[u8], head: &RequestHead) -> bool {
        std::str::from_utf8(origin).is_ok_and(|origin| self.matching_rule(origin, head).is_some())
    }

    #[cfg_attr(not(feature = "cors"), expect(unused_variables, reason = "only predicates use it"))]
    fn matching_rule(&self, origin: &str, head: &RequestHead) -> Option<&Rule> {
        self.rules.iter().find(|rule| match rule {
            Rule::Exact(text, _) => origins_match(text, origin),
            Rule::Pattern(pattern) => pattern.matches(origin),
            #[cfg(feature = "cors")]
            Rule::Predicate(predicate) => predicate(origin, head),
        })
    }

    #[cfg(feature = "cors")]
    pub(crate) fn match_origin(&self, head: &RequestHead) -> OriginMatch {
        if self.allows_any {
            return OriginMatch::Any;
        }
        let Some(origin) = head.header("origin") else { return OriginMatch::NoMatch };
        let value = match self.matching_rule(origin, head) {
            None => return OriginMatch::NoMatch,
            // Send the origin as the browser wrote it, because browsers compare bytes.
            Some(Rule::Exact(text, value)) if text == origin => Ok(value.clone()),
            Some(_) => HeaderValue::from_str(origin),
        };
        value.map_or(OriginMatch::NoMatch, OriginMatch::Exact)
    }
}

fn origins_match(a: &str, b: &str) -> bool {
    a == b || matches!((Origin::parse(a), Origin::parse(b)), (Some(a), Some(b)) if a == b)
}

/// A pattern of origins with the same scheme and the same host or host suffix.
#[derive(Clone, Debug)]
struct OriginPattern {
    is_https: bool,
    /// The host, or with a wildcard its suffix, including the leading dot.
    host: String,
    has_wildcard: bool,
    /// `None` allows any port.
    port: Option<u16>,
}

impl OriginPattern {
    fn parse(text: &str) -> Result<Self, &'static str> {
        const WILDCARD_ERROR: &str = "a `*` stands for the first labels of a host, as in `https://*.example.com`, or for \
                            any port, as in `http://localhost:*`";
        let (text, any_port) = match text.strip_suffix(":*") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (has_wildcard, text) = match text.split_once("://*.") {
            Some((scheme, host)) => (true, format!("{scheme}://{host}")),
            None => (false, text.to_owned()),
        };
        if text.contains('*') {
            return Err(WILDCARD_ERROR);
        }
        let Some(origin) = Origin::parse(&text) else { return Err(WILDCARD_ERROR) };
        // `*.com`, for example, would allow anyone with a domain under it.
        if has_wildcard && !origin.host.contains('.') && origin.host != "localhost" {
            return Err("the host after `*.` must have at least two labels");
        }
        let dot = if has_wildcard { "." } else { "" };
        let host = format!("{dot}{}", origin.host);
        let port = (!any_port).then_some(origin.port);
        Ok(Self { is_https: origin.is_https, host, has_wildcard, port })
    }

    fn matches(&self, text: &str) -> bool {
        let Some(origin) = Origin::parse(text) else { return false };
        if origin.is_https != self.is_https || self.port.is_some_and(|port| port != origin.port) {
            return false;
        }
        let host = origin.host;
        if !self.has_wildcard {
            return host.eq_ignore_ascii_case(&self.host);
        }
        let Some(index) = host.len().checked_sub(self.host.len()) else { return false };
        let (Some(labels), Some(suffix)) = (host.get(..index), host.get(index..)) else {
            return false;
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_name);
        suffix.eq_ignore_ascii_case(&self.host) && labels.split('.').all(is_label)
    }
}

fn parse_rule(text: &str) -> Result<Rule, &'static str> {
    if text == "*" {
        return Err("use `allow_any_origin()` to allow all origins");
    }
    if text.eq_ignore_ascii_case("null") {
        // Sandboxed frames, `data:` documents and redirects of any site have it.
        return Err("any page can have the origin `null`; `allow_origin_fn` can still allow it");
    }
    if text.contains('*') {
        return OriginPattern::parse(text).map(Rule::Pattern);
    }
    let Some((scheme, host)) = text.split_once("://") else {
        return Err("write scheme and host, such as `https://app.example.com`");
    };
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    if host.is_empty()
        || host.contains(['/', '?', '#', '@', ' ', ','])
        || (is_http && Origin::parse(text).is_none())
    {
        return Err(
            "an origin has a scheme, host and optionally a port, and nothing after them, not even a slash",
        );
    }
    let value =
        HeaderValue::from_str(text).map_err(|_| "it has characters not allowed in a field")?;
    Ok(Rule::Exact(text.to_owned(), value))
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text, _) => f.write_str(text),
            Self::Pattern(pattern) => pattern.fmt(f),
            #[cfg(feature = "cors")]
            Self::Predicate(_) => f.write_str("a function"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(rule: &str, origin: &str) -> bool {
        match parse_rule(rule).expect("an origin") {
            Rule::Exact(text, _) => origins_match(&text, origin),
            Rule::Pattern(pattern) => pattern.matches(origin),
            #[cfg(feature = "cors")]
            Rule::Predicate(_) => unreachable!("not a function"),
        }
    }

    #[test]
    fn an_origin_is_allowed_in_any_spelling_but_similar_ones_are_not() {
        for (rule, origin, expected) in [
            ("https://a.test", "https://a.test", true),
            ("https://a.test", "https://a.test:443", true),
            ("https://A.test:443", "https://a.test", true),
            ("https://a.test", "http://a.test", false),
            ("https://a.test", "https://a.test:444", false),
            ("https://a.test", "https://a.test.evil.test", false),
            ("https://a.test", "https://xa.test", false),
            ("https://a.test", "https://a.test/", false),
            ("https://a.test", "null", false),
            ("https://a.test", "", false),
            ("app://x", "app://x", true),
            ("app://x", "app://y", false),
            ("http://[::1]:3000", "http://[::1]:3000", true),
            ("https://*.a.test", "https://b.a.test", true),
            ("https://*.a.test", "https://c.b.A.test", true),
            ("https://*.a.test", "https://a.test", false),
            ("https://*.a.test", "https://.a.test", false),
            ("https://*.a.test", "https://b..a.test", false),
            ("https://*.a.test", "https://ba.test", false),
            ("https://*.a.test", "http://b.a.test", false),
            ("https://*.a.test", "https://b.a.test:8443", false),
            ("https://*.a.test", "https://evil.test?.a.test", false),
            ("https://*.a.test", "https://evil.test\\.a.test", false),
            ("https://*.a.test", "https://\u{e9}.a.test", false),
            ("https://*.a.test:8443", "https://b.a.test:8443", true),
            ("https://*.a.test:*", "https://b.a.test:1", true),
            ("http://localhost:*", "http://localhost:5173", true),
            ("http://localhost:*", "http://localhost", true),
            ("http://localhost:*", "http://localhost.evil.test:1", false),
            ("http://localhost:*", "http://localhost:x", false),
        ] {
            assert_eq!(allows(rule, origin), expected, "{rule} {origin}");
        }
    }

    #[test]
    fn an_invalid_origin_reports_the_reason() {
        for (text, word) in [
            ("*", "allow_any_origin"),
            ("null", "allow_origin_fn"),
            ("", "scheme"),
            ("a.test", "scheme"),
            ("https://", "scheme, host"),
            ("https://a.test/", "slash"),
            ("https://a.test/x", "slash"),
            ("https://a.test:99999", "port"),
            ("https://a.test, https://b.test", "nothing after"),
            ("https://*", "first labels"),
            ("https://*.*.test", "first labels"),
            ("https://a*.test", "first labels"),
            ("https://b.*.test", "first labels"),
            ("*://a.test", "first labels"),
            ("https://*.com", "two labels"),
            ("app://x\n", "characters"),
        ] {
            let reason = parse_rule(text).err().unwrap_or("it is accepted");
            assert!(reason.contains(word), "{text:?}: {reason}");
        }
    }
}
