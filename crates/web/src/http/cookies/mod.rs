//! Cookies, read from requests and set by responses.

#[cfg(any(feature = "cookies-signed", feature = "cookies-private"))]
mod sealed;

use crate::http::from_request::FromRequestParts;
use crate::http::head::decode_cookie_value;
use crate::http::panic::catch_subscriber_panic;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::response::{IntoResponse, IntoResponseParts, Response};
use cookie::CookieJar;
use http::header::SET_COOKIE;
use http::{HeaderName, HeaderValue, StatusCode};

pub use cookie::{Cookie, CookieBuilder, SameSite};
#[cfg(any(feature = "cookies-signed", feature = "cookies-private"))]
pub use sealed::CookieKeys;
#[cfg(feature = "cookies-private")]
pub use sealed::PrivateCookies;
#[cfg(feature = "cookies-signed")]
pub use sealed::SignedCookies;

/// The request's cookies, and changes to them.
///
/// As an argument it never fails: an invalid cookie is skipped, and if several cookies have the
/// same name, the first is used. Returned before the body of a response, it sets and removes the
/// changed cookies; unchanged cookies are not sent. Values are percent-decoded and percent-encoded,
/// because few characters are allowed in a cookie; a value that does not decode to text is kept
/// undecoded. Names are not encoded and must be tokens: setting a cookie with any other name
/// produces a problem with status 500.
///
/// ```
/// use peregrine::web::cookies::{Cookie, Cookies, SameSite};
///
/// async fn visit(cookies: Cookies) -> (Cookies, String) {
///     let visits = cookies.value("visits").and_then(|text| text.parse().ok()).unwrap_or(0) + 1;
///     let cookie = Cookie::build(("visits", visits.to_string()))
///         .path("/")
///         .http_only(true)
///         .same_site(SameSite::Lax);
///     (cookies.add(cookie), format!("visit number {visits}"))
/// }
/// # let _ = visit;
/// ```
#[doc(alias = "CookieJar")]
#[derive(Clone, Debug, Default)]
pub struct Cookies {
    jar: CookieJar,
}

impl Cookies {
    /// The cookie called `name`, changes included.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Cookie<'static>> {
        self.jar.get(name)
    }

    /// The value of the cookie called `name`, changes included.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.jar.get(name).map(Cookie::value)
    }

    /// All cookies, changes included, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Cookie<'static>> {
        self.jar.iter()
    }

    /// Sets a cookie.
    #[expect(clippy::should_implement_trait, reason = "cookie jars everywhere call it so")]
    #[must_use = "return the cookies as part of the response"]
    pub fn add(mut self, cookie: impl Into<Cookie<'static>>) -> Self {
        self.jar.add(cookie);
        self
    }

    /// Removes a cookie. `Path` and `Domain` must be the same as when it was set:
    /// `cookies.remove(Cookie::build("visits").path("/"))`. Removing a cookie that the request does
    /// not have does nothing.
    #[must_use = "return the cookies as part of the response"]
    pub fn remove(mut self, cookie: impl Into<Cookie<'static>>) -> Self {
        self.jar.remove(cookie);
        self
    }
}

impl FromRequestParts for Cookies {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        let mut jar = CookieJar::new();
        for (name, value) in parts.head.cookies() {
            // Names are not decoded, because a decoded name could begin with `__Host-` although the
            // name that the browser checked did not.
            let name = String::from_utf8_lossy(name);
            // RFC 6265 §5.4: cookies with a longer path come first, then those that were set
            // earlier.
            if jar.get(&name).is_some() {
                continue;
            }
            let value = decode_cookie_value(value).into_owned();
            jar.add_original(Cookie::new(name.into_owned(), value));
        }
        Ok(Self { jar })
    }
}

impl IntoResponseParts for Cookies {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        for cookie in self.jar.delta() {
            let value = encode_set_cookie(cookie).ok_or_else(|| {
                let name = cookie.name();
                catch_subscriber_panic(|| {
                    tracing::error!(
                        cookie = name,
                        "the name or an attribute of a cookie is invalid"
                    )
                });
                Problem::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "invalid-cookie",
                    "the server created an invalid cookie; its log says which",
                )
            })?;
            response.headers.append(SET_COOKIE, value);
        }
        Ok(())
    }
}

/// Encodes `cookie` as a `Set-Cookie` value. The value of the cookie is percent-encoded; the name
/// is not. `None` if the name or an attribute is invalid.
fn encode_set_cookie(cookie: &Cookie<'_>) -> Option<HeaderValue> {
    // RFC 6265 §4.1.1: a cookie's name is a token, as a field's is.
    HeaderName::from_bytes(cookie.name().as_bytes()).ok()?;
    // A semicolon would start another attribute.
    if [cookie.path(), cookie.domain()].into_iter().flatten().any(|value| value.contains(';')) {
        return None;
    }
    let encoded = cookie.encoded().to_string();
    // The encoded name contains no equals sign.
    let (_, value_and_attributes) = encoded.split_once('=')?;
    HeaderValue::try_from(format!("{}={value_and_attributes}", cookie.name())).ok()
}

/// Status 200 with the changed cookies and no content.
impl IntoResponse for Cookies {
    fn into_response(self) -> Response {
        crate::http::response::headers::response_from_parts(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::test_support::{assert_ready, from_parts, get, post};
    use crate::http::body::Body;

    fn set_cookies(response: &Response) -> Vec<&str> {
        let mut values: Vec<_> = response
            .headers
            .iter()
            .filter(|(name, _)| *name == SET_COOKIE)
            .map(|(_, value)| value.to_str().expect("ASCII"))
            .collect();
        values.sort_unstable();
        values
    }

    #[test]
    fn reads_and_decodes_the_cookies_of_all_fields() {
        let fields = [("Cookie", "a=1; b=x%20y; nonsense"), ("cookie", "c=3")];
        let cookies: Cookies =
            assert_ready(from_parts(&mut post("/", &fields, Body::empty()).parts))
                .expect("the extractor never fails");
        assert_eq!(
            ["a", "b", "c", "d"].map(|name| cookies.value(name)),
            [Some("1"), Some("x y"), Some("3"), None]
        );
        assert_eq!(cookies.iter().count(), 3);
    }

    #[test]
    fn does_not_decode_names_and_uses_the_first_of_several_duplicates() {
        let fields = [
            ("cookie", "__Host-session=good; %5F%5FHost-session=evil; twice=1; twice=2"),
            ("cookie", "twice=3; a%20b=c%20d; x=100%; y=%FF; __Host-session=late"),
        ];
        let cookies: Cookies =
            assert_ready(from_parts(&mut post("/", &fields, Body::empty()).parts))
                .expect("the extractor never fails");
        assert_eq!(
            ["__Host-session", "%5F%5FHost-session", "twice", "a%20b", "a b", "x", "y"]
                .map(|name| cookies.value(name)),
            [Some("good"), Some("evil"), Some("1"), Some("c d"), None, Some("100%"), Some("%FF")]
        );
    }

    /// Browsers let other hosts of a site set a name with other white space before `__Host-`,
    /// because it does not begin with `__Host-`.
    #[test]
    fn trims_only_spaces_and_tabs_around_a_name() {
        let white_spaces =
            (0x80..=0x3000_u32).filter_map(char::from_u32).filter(|c| c.is_whitespace());
        let (mut count, name) = (0, "__Host-session");
        for white in white_spaces {
            for planted in [
                format!("{white}{name}"),
                format!("{name}{white}"),
                format!(" \t{white} {name}"),
                format!("{name} {white}\t"),
            ] {
                let field =
                    format!("{planted}=evil; other=1;\t {name} \t= good\t ;{white}x={white}");
                let request = post("/", &[("cookie", &field)], Body::empty());
                let mut parts = request.parts;
                assert_eq!(parts.head.cookie(name), Some(&b"good"[..]), "{planted:?}");
                let cookies: Cookies =
                    assert_ready(from_parts(&mut parts)).expect("the extractor never fails");
                let trimmed = planted.trim_matches([' ', '\t']);
                let x = format!("{white}x");
                assert_eq!(
                    [name, trimmed, "other", &x, "x"].map(|name| cookies.value(name)),
                    [Some("good"), Some("evil"), Some("1"), Some(&white.to_string()), None]
                );
                count += 1;
            }
        }
        assert!(count > 4 * 15, "{count}");
    }

    #[test]
    fn skips_pairs_without_a_name_or_an_equals_sign() {
        let fields = [("cookie", "a; =b; ;; =; c=; d==e=; \u{2000}=f; c=late")];
        let cookies: Cookies =
            assert_ready(from_parts(&mut post("/", &fields, Body::empty()).parts))
                .expect("the extractor never fails");
        assert_eq!(
            ["a", "", "c", "d", "\u{2000}"].map(|name| cookies.value(name)),
            [None, None, Some(""), Some("=e="), Some("f")]
        );
        assert_eq!(cookies.iter().count(), 3);
    }

    #[test]
    fn does_not_encode_names_and_rejects_names_that_are_not_tokens() {
        let cookies = || {
            assert_ready(from_parts::<Cookies>(&mut get("/").parts))
                .expect("the extractor never fails")
        };
        let response = (cookies().add(("a%41|b", "c d")), "text").into_response();
        assert_eq!(set_cookies(&response), ["a%41|b=c%20d"]);
        for name in ["a b", "a;b", "a=b", "", "caf\u{e9}"] {
            let response = (cookies().add((name, "1")), "text").into_response();
            assert_eq!(
                (response.status.as_u16(), set_cookies(&response).len()),
                (500, 0),
                "{name}"
            );
        }
    }

    #[test]
    fn sends_only_the_changed_cookies() {
        let fields = [("cookie", "old=1; kept=2")];
        let cookies: Cookies =
            assert_ready(from_parts(&mut post("/", &fields, Body::empty()).parts))
                .expect("the extractor never fails");
        let cookies = cookies.add(("new", "a;b")).remove("old").remove("never-there");
        assert_eq!((cookies.value("old"), cookies.value("new")), (None, Some("a;b")));
        let response = (StatusCode::CREATED, cookies, "text").into_response();
        assert_eq!(response.status, 201);
        let sent = set_cookies(&response);
        assert_eq!(sent.len(), 2);
        assert_eq!(sent[0], "new=a%3Bb");
        assert!(sent[1].starts_with("old=; Max-Age=0; Expires="), "{}", sent[1]);
    }

    #[test]
    fn rejects_a_path_or_domain_that_would_add_another_attribute() {
        let cookie = || Cookie::build(("a", "1"));
        for cookie in [
            cookie().path("/\r\nx: y"),
            cookie().path("/x; Domain=b.test"),
            cookie().domain("a.test;SameSite=None"),
        ] {
            let cookies: Cookies =
                assert_ready(from_parts(&mut get("/").parts)).expect("the extractor never fails");
            let response = (cookies.add(cookie.clone()), "text").into_response();
            assert_eq!(
                (response.status.as_u16(), set_cookies(&response).len()),
                (500, 0),
                "{cookie:?}"
            );
        }
    }
}
