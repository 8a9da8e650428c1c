//! Guards: conditions that let a route handle only some of the requests for its pattern.
//!
//! [`HandlerExt::guard`](crate::HandlerExt::guard) guards one handler;
//! [`Scope::guard`](crate::Scope::guard) and [`App::guard`](crate::App::guard) guard the routes
//! that are added later. Several routes may have the same pattern and method if at most one of them
//! is unguarded. They are checked in the order in which they were added, the unguarded one last. If
//! none of them accepts a request, the next pattern that matches its path is tried, as if the
//! guarded routes did not exist.
//!
//! If an earlier route accepts all requests of a later route, the later route is unreachable, and
//! building the application fails. This check treats any two closures as different, and also any
//! two guards of your own types that do not implement [`Guard::equality_key`].
//!
//! ```
//! use peregrine::web::{App, HandlerExt, guard};
//!
//! let app = App::new()
//!     .get("/", (|| "the administration").guard(guard::host("admin.example.org")))
//!     .get("/", (|| "a preview").guard(guard::query("preview", "yes")))
//!     .get("/", || "the front page");
//!
//! let client = app.test();
//! assert_eq!(client.get("/").send_blocking().text(), "the front page");
//! assert_eq!(client.get("/?preview=yes").send_blocking().text(), "a preview");
//! let admin = client.get("/").header("host", "admin.example.org").send_blocking();
//! assert_eq!(admin.text(), "the administration");
//! ```

use crate::http::head::RequestHead;
use http::{HeaderName, Method};
use std::borrow::Cow;
use std::fmt;

pub use crate::http::guard::{Guard, GuardContext};

/// A guard created by a function of this module: a predicate and its description.
struct FnGuard<F> {
    check: F,
    description: String,
    equality_key: Option<String>,
    header_names: Option<Vec<HeaderName>>,
}

impl<F: Fn(&GuardContext<'_>) -> bool> Guard for FnGuard<F> {
    fn check(&self, context: &GuardContext<'_>) -> bool {
        (self.check)(context)
    }

    fn description(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.description)
    }

    fn header_names(&self) -> Option<&[HeaderName]> {
        self.header_names.as_deref()
    }

    fn equality_key(&self) -> Option<Cow<'_, str>> {
        self.equality_key.as_deref().map(Cow::Borrowed)
    }
}

impl<F> fmt::Debug for FnGuard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

/// Creates a guard that reads no header fields.
fn new_guard(
    description: String,
    equality_key: Option<String>,
    check: impl Fn(&GuardContext<'_>) -> bool,
) -> impl Guard + fmt::Debug {
    new_guard_with_headers(Some(Vec::new()), description, equality_key, check)
}

/// Like [`new_guard`], but for a guard that also reads these header fields. `None` means that the
/// fields are unknown.
fn new_guard_with_headers(
    header_names: Option<Vec<HeaderName>>,
    description: String,
    equality_key: Option<String>,
    check: impl Fn(&GuardContext<'_>) -> bool,
) -> impl Guard + fmt::Debug {
    FnGuard { check, description, equality_key, header_names }
}

/// The header fields that a guard on the field `name` reads: that field, or an empty list if the
/// name is not a token, because no request can have such a field.
fn to_header_names(name: &str) -> Option<Vec<HeaderName>> {
    Some(HeaderName::from_bytes(name.as_bytes()).into_iter().collect())
}

/// The header fields that two guards read; `None` if those of one are unknown.
fn combined_header_names(left: &impl Guard, right: &impl Guard) -> Option<Vec<HeaderName>> {
    Some([left.header_names()?, right.header_names()?].concat())
}

/// Declares which header fields `guard` reads. Besides these, it must depend only on the method,
/// host, scheme, path and query. Without this declaration, it is unknown which fields a closure
/// reads, so caches must not store the responses of its route, nor those of routes that are chosen
/// because the closure rejected the request.
///
/// ```
/// use peregrine::web::guard::{self, GuardContext};
/// use peregrine::web::{App, HandlerExt};
///
/// let is_new = |context: &GuardContext<'_>| {
///     context.head().header("x-version").is_some_and(|version| version >= "2")
/// };
/// let client = App::new()
///     .get("/", (|| "new").guard(guard::varying_by(["x-version"], is_new)))
///     .get("/", || "old")
///     .test();
/// assert_eq!(client.get("/").header("x-version", "3").send_blocking().text(), "new");
/// assert_eq!(client.get("/").send_blocking().header("vary"), Some("x-version"));
/// ```
///
/// # Panics
/// If one of `fields` is not a valid field name.
#[track_caller]
pub fn varying_by<'f>(fields: impl IntoIterator<Item = &'f str>, guard: impl Guard) -> impl Guard {
    let parse_name = |name: &str| {
        HeaderName::from_bytes(name.as_bytes())
            .unwrap_or_else(|_| panic!("{name:?} is not the name of a header field"))
    };
    let fields = fields.into_iter().map(parse_name).collect();
    let (description, key) =
        (guard.description().into_owned(), guard.equality_key().map(Cow::into_owned));
    new_guard_with_headers(Some(fields), description, key, move |context| guard.check(context))
}

/// The key of a guard for comparison: its kind and its arguments, quoted so that different
/// arguments never produce the same text.
fn equality_key(kind: &str, arguments: impl fmt::Debug) -> Option<String> {
    Some(format!("{kind} {arguments:?}"))
}

/// Accepts requests for this host, compared without regard to case. Behind trusted proxies, this is
/// the host that the client requested ([`ClientInfo::host`](crate::ClientInfo::host)).
///
/// `example.org` matches this host on any port. `example.org:8080` matches only this port; a
/// request without a port has the scheme's default port. `*.example.org` matches every subdomain,
/// but not `example.org` itself.
pub fn host(host: impl Into<String>) -> impl Guard + fmt::Debug {
    let host = host.into().to_ascii_lowercase();
    let description = format!("the host is {host}");
    new_guard(description, equality_key("host", &host), move |context| {
        let client = context.client();
        host_matches(&host, &client.host().to_ascii_lowercase(), client.is_secure())
    })
}

/// Whether the requested host matches `wanted`. Both are in lower case.
fn host_matches(wanted: &str, requested: &str, is_secure: bool) -> bool {
    let (wanted_name, wanted_port) = split_host_port(wanted);
    let (name, port) = split_host_port(requested);
    let default_port = if is_secure { "443" } else { "80" };
    let port_matches = wanted_port.is_none_or(|wanted| wanted == port.unwrap_or(default_port));
    let name_matches = match wanted_name.strip_prefix("*.") {
        Some(domain) => name
            .strip_suffix(domain)
            .is_some_and(|subdomain| subdomain.len() > 1 && subdomain.ends_with('.')),
        None => name == wanted_name,
    };
    port_matches && name_matches
}

/// Splits a host into its name, without a trailing dot, and its port.
fn split_host_port(host: &str) -> (&str, Option<&str>) {
    let (name, port) = match host.rsplit_once(':') {
        // A colon within brackets is part of an IPv6 address.
        Some((name, port)) if !port.ends_with(']') => {
            (name, Some(port).filter(|port| !port.is_empty()))
        }
        _ => (host, None),
    };
    (name.strip_suffix('.').unwrap_or(name), port)
}

/// Accepts requests with a header field of this name and value. The name is compared without regard
/// to case, the value byte for byte. If there are several such fields, one match is enough.
pub fn header(name: impl Into<String>, value: impl Into<String>) -> impl Guard + fmt::Debug {
    let (name, value) = (name.into(), value.into());
    let description = format!("the field {name} is {value}");
    let key = equality_key("header", (name.to_ascii_lowercase(), &value));
    new_guard_with_headers(to_header_names(&name), description, key, move |context| {
        context.head().header_values(&name).any(|field_value| field_value == value.as_bytes())
    })
}

/// Accepts requests with a header field of this name and any value.
pub fn has_header(name: impl Into<String>) -> impl Guard + fmt::Debug {
    let name = name.into();
    let description = format!("there is a field {name}");
    let key = equality_key("has_header", name.to_ascii_lowercase());
    new_guard_with_headers(to_header_names(&name), description, key, move |context| {
        context.head().header_bytes(&name).is_some()
    })
}

/// Accepts requests whose query has this name with this value, both percent-decoded. If the name is
/// repeated, one match is enough.
pub fn query(name: impl Into<String>, value: impl Into<String>) -> impl Guard + fmt::Debug {
    let (name, value) = (name.into(), value.into());
    let description = format!("the query has {name}={value}");
    new_guard(description, equality_key("query", (&name, &value)), move |context| {
        query_pairs(context.head()).any(|(key, decoded)| key == *name && decoded == *value)
    })
}

/// Accepts requests whose query has this name with any value.
pub fn has_query(name: impl Into<String>) -> impl Guard + fmt::Debug {
    let name = name.into();
    let description = format!("the query has {name}");
    new_guard(description, equality_key("has_query", &name), move |context| {
        query_pairs(context.head()).any(|(key, _)| key == *name)
    })
}

/// The decoded pairs of a query in form encoding, where `+` is a space. Pairs that are not UTF-8
/// are skipped.
pub(crate) fn query_pairs(
    head: &RequestHead,
) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    let decode = |text: &str| -> Option<String> {
        let spaced = text.replace('+', " ");
        peregrine_router::decode(spaced.as_bytes()).ok().map(Cow::into_owned)
    };
    let pairs = head.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    pairs.filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(name)?.into(), decode(value)?.into()))
    })
}

/// Accepts requests that the client sent over TLS, to this server or to a trusted proxy
/// ([`ClientInfo::is_secure`](crate::ClientInfo::is_secure)).
pub fn secure() -> impl Guard + fmt::Debug {
    let description = "the client speaks TLS".to_owned();
    new_guard(description, equality_key("secure", ()), |context| context.client().is_secure())
}

/// Accepts requests with one of these methods. Use it to guard a scope, or a handler of
/// [`App::any`](crate::App::any).
pub fn methods(methods: impl Into<Vec<Method>>) -> impl Guard + fmt::Debug {
    let methods = methods.into();
    let names: Vec<_> = methods.iter().map(Method::as_str).collect();
    let description = format!("the method is one of {}", names.join(", "));
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let key = equality_key("methods", sorted);
    new_guard(description, key, move |context| {
        methods.iter().any(|method| method.as_str() == context.method())
    })
}

/// Accepts the requests that `guard` rejects.
#[doc(alias = "Not")]
pub fn not(guard: impl Guard) -> impl Guard {
    let key = guard.equality_key().and_then(|inner| equality_key("not", inner));
    let (description, header_names) =
        (format!("not ({})", guard.description()), guard.header_names().map(<[_]>::to_vec));
    new_guard_with_headers(header_names, description, key, move |context| !guard.check(context))
}

/// Accepts requests that both guards accept. For several conditions on one route, calling `guard`
/// repeatedly does the same.
#[doc(alias = "All")]
#[doc(alias = "and")]
pub fn both(left: impl Guard, right: impl Guard) -> impl Guard {
    let description = format!("({} and {})", left.description(), right.description());
    let key =
        left.equality_key().zip(right.equality_key()).and_then(|keys| equality_key("both", keys));
    new_guard_with_headers(combined_header_names(&left, &right), description, key, move |context| {
        left.check(context) && right.check(context)
    })
}

/// Accepts requests that at least one of the two guards accepts.
#[doc(alias = "Any")]
#[doc(alias = "or")]
pub fn either(left: impl Guard, right: impl Guard) -> impl Guard {
    let description = format!("({} or {})", left.description(), right.description());
    let key =
        left.equality_key().zip(right.equality_key()).and_then(|keys| equality_key("either", keys));
    new_guard_with_headers(combined_header_names(&left, &right), description, key, move |context| {
        left.check(context) || right.check(context)
    })
}

#[cfg(test)]
mod tests {
    use super::host_matches;

    #[test]
    fn ignores_default_ports_and_trailing_dots_of_hosts() {
        for (wanted, requested, is_secure, expected) in [
            ("a.org", "a.org", false, true),
            ("a.org", "a.org:81", false, true),
            ("a.org", "a.org.", false, true),
            ("a.org", "b.a.org", false, false),
            ("a.org", "a.orgs", false, false),
            ("a.org", "", false, false),
            ("a.org:80", "a.org", false, true),
            ("a.org:80", "a.org", true, false),
            ("a.org:443", "a.org", true, true),
            ("a.org:81", "a.org:81", true, true),
            ("a.org:81", "a.org:8", true, false),
            ("a.org:80", "a.org:", false, true),
            ("*.a.org", "b.a.org", false, true),
            ("*.a.org", "c.b.a.org:9", false, true),
            ("*.a.org", "a.org", false, false),
            ("*.a.org", ".a.org", false, false),
            ("*.a.org", "ba.org", false, false),
            ("[::1]", "[::1]:8080", false, true),
            ("[::1]:8080", "[::1]", false, false),
            ("[::1]", "[::2]", false, false),
        ] {
            assert_eq!(
                host_matches(wanted, requested, is_secure),
                expected,
                "{wanted} for {requested}"
            );
        }
    }
}
