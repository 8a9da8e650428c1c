//! Builds URLs of routes from their names or patterns and the values of their parameters.

mod serialize;

use crate::app::pattern::{expand, next_parameter};
use crate::http::from_request::FromRequestParts;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::route_index::RouteIndex;
use serde::Serialize;
use serialize::ParameterValues;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

/// Builds URLs of the application's own routes, by the names set with
/// [`named`](crate::HandlerExt::named). This type is an extractor.
///
/// The values have a type that [`Path`](crate::extract::Path) can read: a single value for one
/// parameter, a tuple in the order of the pattern, or a struct or map with the names in the
/// pattern. The values are percent-encoded.
///
/// An application that is mounted as a tower service does not know its mount prefix, so the prefix
/// is missing from the URLs.
///
/// ```
/// use peregrine::web::{App, HandlerExt};
/// use peregrine::web::{UrlError, Urls};
/// use peregrine::web::extract::Path;
///
/// async fn create(urls: Urls) -> Result<String, UrlError> {
///     urls.path("user", "Ada Lovelace")
/// }
/// let show = |Path(name): Path<String>| name;
/// let app = App::new().post("/users", create).get("/users/{name}", show.named("user"));
/// assert_eq!(app.test().post("/users").send_blocking().text(), "/users/Ada%20Lovelace");
/// ```
#[doc(alias = "url_for")]
#[doc(alias = "reverse")]
#[derive(Clone, Debug)]
pub struct Urls {
    route_index: Rc<RouteIndex>,
    prefix: String,
    origin: String,
}

impl Urls {
    /// The path of the route called `name`. It starts with the prefix that a trusted proxy removed
    /// from the path, if any ([`ClientInfo::prefix`](crate::ClientInfo::prefix)).
    ///
    /// # Errors
    /// If no route has the name, or the values do not match the parameters of its pattern.
    pub fn path<T: Serialize + ?Sized>(&self, name: &str, values: &T) -> Result<String, UrlError> {
        let unknown = || {
            UrlError(format!(
                "no route is named `{name}`: call `.named(\"{name}\")` on its handler"
            ))
        };
        let patterns = self.route_index.names.patterns(name).ok_or_else(unknown)?;
        let path = fill_pattern(patterns, &ParameterValues::from_serialize(values)?)?;
        Ok(format!("{}{path}", self.prefix))
    }

    /// The full URL, with the scheme and host that the client used. Use it in emails and in other
    /// places where a path is not enough.
    ///
    /// # Errors
    /// As for [`Urls::path`].
    pub fn url<T: Serialize + ?Sized>(&self, name: &str, values: &T) -> Result<String, UrlError> {
        self.path(name, values).map(|path| format!("{}{path}", self.origin))
    }
}

impl FromRequestParts for Urls {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let route_index = parts.states().route_index().map(Rc::clone).unwrap_or_default();
        let client = parts.client();
        Ok(Self { route_index, prefix: client.prefix().to_owned(), origin: client.origin() })
    }
}

/// A pattern together with the type of its values: written once, used for the route and for its
/// URLs.
///
/// ```
/// use peregrine::web::App;
/// use peregrine::web::extract::Path;
/// use peregrine::web::RoutePath;
///
/// const POST: RoutePath<(String, u64)> = RoutePath::new("/users/{user}/posts/{post:u64}");
///
/// async fn post(Path((user, post)): Path<(String, u64)>) -> String {
///     format!("post {post} of {user}")
/// }
/// let app = App::new().get(POST.pattern(), post);
/// let path = POST.path(&("ada".to_owned(), 7))?;
/// assert_eq!(path, "/users/ada/posts/7");
/// assert_eq!(app.test().get(&path).send_blocking().text(), "post 7 of ada");
/// # Ok::<(), peregrine::web::UrlError>(())
/// ```
#[doc(alias = "TypedPath")]
pub struct RoutePath<T> {
    pattern: &'static str,
    values: PhantomData<fn(&T)>,
}

impl<T> RoutePath<T> {
    /// Creates a route path from a pattern, in the syntax of [`App::get`](crate::App::get).
    #[must_use]
    pub const fn new(pattern: &'static str) -> Self {
        Self { pattern, values: PhantomData }
    }

    /// The pattern.
    #[must_use]
    pub const fn pattern(&self) -> &'static str {
        self.pattern
    }
}

impl<T: Serialize> RoutePath<T> {
    /// The path with these values. Prefixes of scopes around the route are not added: write the
    /// full pattern.
    ///
    /// # Errors
    /// If the values do not match the parameters of the pattern, or the pattern cannot be parsed.
    pub fn path(&self, values: &T) -> Result<String, UrlError> {
        let patterns = expand(self.pattern).map_err(UrlError)?;
        let patterns: Vec<_> = patterns.into_iter().map(|expanded| expanded.pattern).collect();
        fill_pattern(&patterns, &ParameterValues::from_serialize(values)?)
    }
}

impl<T> Clone for RoutePath<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RoutePath<T> {}

impl<T> fmt::Debug for RoutePath<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RoutePath").field(&self.pattern).finish()
    }
}

/// Why a URL could not be built. The mistake is the application's: as a response, the error is a
/// 500, and the reason is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

impl crate::http::response::IntoResponse for UrlError {
    fn into_response(self) -> crate::http::response::Response {
        crate::extract::misconfiguration_problem("no-url", &self.0).into_response()
    }
}

/// Fills in the pattern whose parameters are exactly those of `values`. `patterns` are the
/// expansions of one written pattern.
fn fill_pattern(patterns: &[String], values: &ParameterValues) -> Result<String, UrlError> {
    let names_of = |pattern: &String| {
        let (mut names, mut rest) = (Vec::new(), pattern.clone());
        while let Some((_, name, after)) = next_parameter(&rest) {
            names.push(name.trim_start_matches('*').to_owned());
            rest = after.to_owned();
        }
        names
    };
    // The last pattern has all optional parameters.
    for pattern in patterns.iter().rev() {
        let names = names_of(pattern);
        if let Some(values) = values.ordered(&names) {
            return write_path(pattern, &values);
        }
    }
    let full_pattern = patterns.last().map_or("", String::as_str);
    Err(UrlError(format!(
        "the values for `{full_pattern}` are {values}, which do not match its parameters"
    )))
}

fn write_path(pattern: &str, values: &[&str]) -> Result<String, UrlError> {
    let is_dot_segment = |segment: &str| matches!(segment, "." | "..");
    let (mut path, mut rest) = (String::with_capacity(pattern.len()), pattern);
    let mut values = values.iter();
    while let Some((before, name, after)) = next_parameter(rest) {
        push_literal(&mut path, before);
        let value = values.next().copied().unwrap_or_default();
        let is_catch_all = name.starts_with('*');
        let is_whole_segment = path.ends_with('/') && (after.is_empty() || after.starts_with('/'));
        let changes_path = is_whole_segment
            && if is_catch_all {
                value.split('/').any(is_dot_segment)
            } else {
                is_dot_segment(value)
            };
        if value.is_empty() || changes_path {
            let name = name.trim_start_matches('*');
            return Err(UrlError(format!(
                "the parameter `{name}` of `{pattern}` is `{value}`, which would change the path"
            )));
        }
        encode_segment(value, is_catch_all, &mut path);
        rest = after;
    }
    push_literal(&mut path, rest);
    // The text around a value may complete a dot segment. RFC 3986 §4.2: two leading slashes begin
    // a host.
    if path.starts_with("//") || path.split('/').any(is_dot_segment) {
        return Err(UrlError(format!(
            "with these values, `{pattern}` becomes `{path}`, which resolves to another URL"
        )));
    }
    Ok(path)
}

/// Appends fixed text of a pattern. Doubled braces become single; unsafe characters are escaped.
fn push_literal(path: &mut String, text: &str) {
    let text = text.replace("{{", "{").replace("}}", "}");
    for character in text.chars() {
        if character.is_ascii_graphic() && !"{}\"<>\\^`|?#".contains(character) {
            path.push(character);
        } else {
            let mut bytes = [0; 4];
            percent_encode(character.encode_utf8(&mut bytes).as_bytes(), path);
        }
    }
}

/// RFC 3986 §3.3: a segment may contain these characters unescaped. In a catch-all, slashes stay
/// unescaped too.
fn encode_segment(value: &str, is_catch_all: bool, path: &mut String) {
    for byte in value.bytes() {
        let is_unescaped = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
        if is_unescaped || (is_catch_all && byte == b'/') {
            path.push(char::from(byte));
        } else {
            percent_encode(&[byte], path);
        }
    }
}

fn percent_encode(bytes: &[u8], path: &mut String) {
    use fmt::Write as _;
    for byte in bytes {
        let _ = write!(path, "%{byte:02X}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn path<T: Serialize>(pattern: &'static str, values: T) -> Result<String, String> {
        RoutePath::new(pattern).path(&values).map_err(|error| error.to_string())
    }

    #[derive(Serialize)]
    struct Post {
        post: u64,
        user: &'static str,
        page: Option<u32>,
    }

    #[test]
    fn fills_a_pattern_with_values_of_every_shape() {
        assert_eq!(path("/", ()).as_deref(), Ok("/"));
        assert_eq!(path("/{a}", 7).as_deref(), Ok("/7"));
        assert_eq!(path("/{a}", "x y/z?%").as_deref(), Ok("/x%20y%2Fz%3F%25"));
        assert_eq!(path("/{a}", "é").as_deref(), Ok("/%C3%A9"));
        assert_eq!(path("/{a}/{b}", ('x', true)).as_deref(), Ok("/x/true"));
        assert_eq!(path("/{a}/{b}", [1.5, -2.0]).as_deref(), Ok("/1.5/-2"));
        assert_eq!(path("/f/{*p}", "a/b c").as_deref(), Ok("/f/a/b%20c"));
        assert_eq!(path("/v{a:u8}.json", 2).as_deref(), Ok("/v2.json"));
        assert_eq!(path("/{{a}}/é/{b}", 1).as_deref(), Ok("/%7Ba%7D/%C3%A9/1"));
        let map = BTreeMap::from([("b", "2"), ("a", "1")]);
        assert_eq!(path("/{a}/{b}", map).as_deref(), Ok("/1/2"));
        let post = |page| Post { post: 7, user: "ada", page };
        let pattern = "/{user}/{post}/{page?}";
        assert_eq!(path(pattern, post(None)).as_deref(), Ok("/ada/7"));
        assert_eq!(path(pattern, post(Some(3))).as_deref(), Ok("/ada/7/3"));
        assert_eq!(path(pattern, ("ada", 7)).as_deref(), Ok("/ada/7"));
        assert_eq!(path(pattern, ("ada", 7, None::<u8>)).as_deref(), Ok("/ada/7"));
        assert_eq!(path("/f/{*p?}", None::<&str>).as_deref(), Ok("/f"));
    }

    #[test]
    fn rejects_values_that_do_not_match_the_pattern() {
        for (result, reason) in [
            (path("/{a}", ()), "are none, which do not match its parameters"),
            (path("/{a}", (1, 2)), "are 1, 2, which"),
            (path("/{a}", BTreeMap::from([("b", 1)])), "are b=1, which"),
            (path("/{a}", BTreeMap::from([("a", 1), ("b", 1)])), "are a=1, b=1, which"),
            (path("/{a}", (None::<u8>,)), "are none, which"),
            (path("/{a}", ""), "is ``, which would change the path"),
            (path("/a/{a}/b", ".."), "`a` of `/a/{a}/b` is `..`"),
            (path("/{*a}", "x/../y"), "is `x/../y`, which would change the path"),
            (path("/{a}", vec![vec![1]]), "the value of a parameter is a list"),
            (path("/{a?}/b", 1), "follows an optional parameter"),
            (path("/{a}/{b?}/{c?}", (1, None::<u8>, 3)), "the value `3` follows a `None`"),
            (path("/{a}/{b?}", [None, Some(2)]), "the value `2` follows a `None`"),
        ] {
            let result = result.expect_err(reason);
            assert!(result.contains(reason), "{result}");
        }
        assert_eq!(path("/a.{a}", "..").as_deref(), Ok("/a..."));
    }
}
