//! Cookies that only this server can create: signed or encrypted.

use super::{Cookie, Cookies};
use crate::http::from_request::FromRequestParts;
use crate::http::panic::catch_subscriber_panic;
use crate::http::problem::Problem;
use crate::http::request::Parts;
use crate::http::requirements::RouteRequirements;
use crate::http::response::{IntoResponse, IntoResponseParts, Response};
#[cfg(feature = "cookies-private")]
use cookie::CookieJar;
use cookie::Key;
use http::StatusCode;
use std::fmt;

/// The minimum length of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 32;

/// The keys that sign or encrypt cookies. The first key seals (signs or encrypts) new cookies, and
/// cookies sealed with any of the keys are accepted. Add the keys to the application as a state.
/// All workers and instances need the same keys.
///
/// To replace a secret, put the new one first and accept the old one until its cookies have
/// expired: `CookieKeys::new(new).with_previous(old)`.
#[doc(alias = "Key")]
#[derive(Clone)]
pub struct CookieKeys(Vec<Key>);

impl CookieKeys {
    /// Derives the keys from a secret of at least 32 random bytes.
    ///
    /// # Panics
    /// The secret is shorter.
    #[must_use]
    #[track_caller]
    pub fn new(secret: &[u8]) -> Self {
        Self(vec![derive_key(secret)])
    }

    /// Also accepts cookies that were sealed with this secret.
    ///
    /// # Panics
    /// The secret is shorter than 32 bytes.
    #[doc(alias = "rotate")]
    #[must_use]
    #[track_caller]
    pub fn with_previous(mut self, secret: &[u8]) -> Self {
        self.0.push(derive_key(secret));
        self
    }

    /// The key for new cookies.
    fn sealing_key(&self) -> &Key {
        self.0.first().expect("`new` sets the first key")
    }

    /// Encrypts the value of a cookie called `name`. [`CookieKeys::open`] accepts it only with the
    /// same name.
    #[cfg(feature = "cookies-private")]
    #[must_use]
    pub fn seal(&self, name: &str, value: &str) -> String {
        let mut jar = CookieJar::new();
        jar.private_mut(self.sealing_key()).add(Cookie::new(name.to_owned(), value.to_owned()));
        jar.get(name).map(|cookie| cookie.value().to_owned()).unwrap_or_default()
    }

    /// Decrypts what [`CookieKeys::seal`] encrypted with any of the keys. `None` if the value is
    /// not valid.
    #[cfg(feature = "cookies-private")]
    #[must_use]
    pub fn open(&self, name: &str, sealed: &str) -> Option<String> {
        let jar = CookieJar::new();
        self.0.iter().find_map(|key| {
            let cookie = Cookie::new(name.to_owned(), sealed.to_owned());
            jar.private(key).decrypt(cookie).map(|cookie| cookie.value().to_owned())
        })
    }

    fn from_state(parts: &Parts) -> Result<Self, Problem> {
        parts.states().get::<Self>().cloned().ok_or_else(|| {
            catch_subscriber_panic(|| {
                tracing::error!(
                    "a handler needs CookieKeys; add .state(CookieKeys::new(..)) to the App"
                )
            });
            let detail =
                "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-state", detail)
        })
    }
}

#[track_caller]
fn derive_key(secret: &[u8]) -> Key {
    let length = secret.len();
    assert!(
        length >= SECRET_BYTES_MIN,
        "a secret of {length} bytes for cookies can be guessed; use at least {SECRET_BYTES_MIN} \
         random bytes"
    );
    Key::derive_from(secret)
}

impl fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CookieKeys({})", self.0.len())
    }
}

/// Defines an extractor of sealed cookies. `$jar` and `$jar_mut` are the methods of `CookieJar`
/// that open and seal them.
macro_rules! sealed_cookies {
    ($feature:literal $Type:ident $jar:ident $jar_mut:ident, $(#[$doc:meta])*) => {
        $(#[$doc])*
        ///
        /// As an argument it fails only if the application has no [`CookieKeys`], which is detected
        /// when the application is built. A cookie that was not sealed with one of the keys, or was
        /// sealed under another name, is ignored. Returned before the body of a response, it sets
        /// and removes the changed cookies, as [`Cookies`] does. A client can send an old cookie
        /// again, so include a time in any value that must expire.
        #[cfg(feature = $feature)]
        #[derive(Clone, Debug)]
        pub struct $Type {
            cookies: Cookies,
            keys: CookieKeys,
        }

        #[cfg(feature = $feature)]
        impl $Type {
            /// The cookie called `name`, changes included.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<Cookie<'static>> {
                let jar = &self.cookies.jar;
                let mut cookie = self.keys.0.iter().find_map(|key| jar.$jar(key).get(name))?;
                // The signature of a signed cookie does not cover its name. The sealed value
                // therefore begins with the name, which prevents using it for another cookie.
                let value = cookie.value().strip_prefix(name)?.strip_prefix('=')?.to_owned();
                cookie.set_value(value);
                Some(cookie)
            }

            /// The value of the cookie called `name`, changes included.
            #[must_use]
            pub fn value(&self, name: &str) -> Option<String> {
                self.get(name).map(|cookie| cookie.value().to_owned())
            }

            /// Sets a cookie.
            #[expect(clippy::should_implement_trait, reason = "cookie jars everywhere call it so")]
            #[must_use = "return the cookies as part of the response"]
            pub fn add(mut self, cookie: impl Into<Cookie<'static>>) -> Self {
                let mut cookie = cookie.into();
                let value = format!("{}={}", cookie.name(), cookie.value());
                cookie.set_value(value);
                self.cookies.jar.$jar_mut(self.keys.sealing_key()).add(cookie);
                self
            }

            /// Removes a cookie, as [`Cookies::remove`] does.
            #[must_use = "return the cookies as part of the response"]
            pub fn remove(mut self, cookie: impl Into<Cookie<'static>>) -> Self {
                self.cookies = self.cookies.remove(cookie);
                self
            }
        }

        #[cfg(feature = $feature)]
        impl FromRequestParts for $Type {
            async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
                let keys = CookieKeys::from_state(parts)?;
                Ok(Self { cookies: Cookies::from_request_parts(parts).await?, keys })
            }

            fn require(requirements: &mut RouteRequirements) {
                requirements.state::<CookieKeys>();
            }
        }

        #[cfg(feature = $feature)]
        impl IntoResponseParts for $Type {
            fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
                self.cookies.into_response_parts(response)
            }
        }

        /// Status 200 with the changed cookies and no content.
        #[cfg(feature = $feature)]
        impl IntoResponse for $Type {
            fn into_response(self) -> Response {
                self.cookies.into_response()
            }
        }
    };
}

sealed_cookies! { "cookies-signed" SignedCookies signed signed_mut,
    /// The request's cookies that this server has signed, and changes to them. Clients can read
    /// them but not change them.
    ///
    /// ```
    /// use peregrine::web::App;
    /// use peregrine::web::cookies::{Cookie, CookieKeys, SignedCookies};
    ///
    /// async fn visit(cookies: SignedCookies) -> (SignedCookies, String) {
    ///     let visits = cookies.value("visits").and_then(|text| text.parse().ok());
    ///     let visits = visits.unwrap_or(0) + 1;
    ///     let cookie = Cookie::build(("visits", visits.to_string())).path("/").http_only(true);
    ///     (cookies.add(cookie), format!("visit number {visits}"))
    /// }
    /// let secret = [7; 32]; // from the configuration
    /// let client = App::new().state(CookieKeys::new(&secret)).get("/", visit).test();
    /// let first = client.get("/").send_blocking();
    /// let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap();
    /// let second = client.get("/").header("cookie", cookie).send_blocking().text();
    /// assert_eq!(second, "visit number 2");
    /// let forged = client.get("/").header("cookie", "visits=9").send_blocking().text();
    /// assert_eq!(forged, "visit number 1");
    /// ```
}

sealed_cookies! { "cookies-private" PrivateCookies private private_mut,
    /// The request's cookies that this server has encrypted, and changes to them. Clients can
    /// neither read nor change them. Otherwise like `SignedCookies`.
}

#[cfg(all(test, feature = "cookies-signed", feature = "cookies-private"))]
mod tests {
    use super::*;
    use crate::App;
    use crate::testing::TestClient;

    fn app(keys: CookieKeys) -> TestClient {
        App::new()
            .state(keys)
            .get("/signed", async |cookies: SignedCookies| (cookies.add(("a", "x; y=\u{e9}")), ""))
            .get("/private", async |cookies: PrivateCookies| {
                (cookies.add(("a", "x; y=\u{e9}")), "")
            })
            .get("/remove", async |cookies: SignedCookies| {
                let cookies = cookies.add(("b", "1")).remove("a");
                assert_eq!((cookies.value("a"), cookies.value("b").as_deref()), (None, Some("1")));
                cookies
            })
            .get("/read/signed", async |cookies: SignedCookies| {
                cookies.value("a").unwrap_or_default()
            })
            .get("/read/private", async |cookies: PrivateCookies| {
                cookies.value("a").unwrap_or_default()
            })
            .test()
    }

    fn set_cookie(client: &TestClient, path: &str) -> String {
        let response = client.get(path).send_blocking();
        response
            .header("set-cookie")
            .expect("a cookie")
            .split(';')
            .next()
            .expect("a pair")
            .to_owned()
    }

    fn read(client: &TestClient, path: &str, cookie: &str) -> String {
        client.get(path).header("cookie", cookie).send_blocking().text()
    }

    const OLD: [u8; 32] = [1; 32];
    const NEW: [u8; 32] = [2; 32];

    #[test]
    fn reads_a_sealed_cookie_and_ignores_a_changed_one() {
        let client = app(CookieKeys::new(&OLD));
        for (kind, is_readable) in [("signed", true), ("private", false)] {
            let cookie = set_cookie(&client, &format!("/{kind}"));
            let path = format!("/read/{kind}");
            assert_eq!(read(&client, &path, &cookie), "x; y=\u{e9}");
            assert_eq!(cookie.contains("x%3B%20y"), is_readable, "{cookie}");
            for index in "a=".len()..cookie.len() {
                let mut changed = cookie.clone().into_bytes();
                changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(changed).expect("ASCII");
                assert_eq!(read(&client, &path, &changed), "", "{kind} {index}");
                assert_eq!(read(&client, &path, &cookie[..index]), "", "{kind} {index}");
            }
            let other_path = if is_readable { "/read/private" } else { "/read/signed" };
            assert_eq!(read(&client, other_path, &cookie), "", "the other kind of cookie opens it");
        }
    }

    #[test]
    fn ignores_a_sealed_value_under_another_name() {
        let keys = CookieKeys::new(&OLD);
        let with_keys = |cookies: Cookies| SignedCookies { cookies, keys: keys.clone() };
        let sealed = with_keys(Cookies::default()).add(("user", "7"));
        let value = sealed.cookies.value("user").expect("sealed").to_owned();
        let mut cookies = Cookies::default();
        cookies.jar.add_original(Cookie::new("admin", value.clone()));
        cookies.jar.add_original(Cookie::new("user", value));
        let cookies = with_keys(cookies);
        assert_eq!((cookies.value("admin"), cookies.value("user").as_deref()), (None, Some("7")));
    }

    #[test]
    fn a_previous_key_opens_and_the_new_key_seals() {
        let (old, both) =
            (app(CookieKeys::new(&OLD)), app(CookieKeys::new(&NEW).with_previous(&OLD)));
        let new = app(CookieKeys::new(&NEW));
        for kind in ["signed", "private"] {
            let (seal_path, read_path) = (format!("/{kind}"), format!("/read/{kind}"));
            let can_read =
                |client: &TestClient, cookie: &str| !read(client, &read_path, cookie).is_empty();
            let (old_cookie, new_cookie) =
                (set_cookie(&old, &seal_path), set_cookie(&both, &seal_path));
            assert!(
                can_read(&both, &old_cookie)
                    && can_read(&both, &new_cookie)
                    && can_read(&new, &new_cookie)
            );
            assert!(!can_read(&new, &old_cookie) && !can_read(&old, &new_cookie));
        }
    }

    #[test]
    fn sends_changed_cookies_and_requires_keys_at_build_time() {
        let client = app(CookieKeys::new(&OLD));
        let cookie = set_cookie(&client, "/signed");
        let response = client.get("/remove").header("cookie", cookie).send_blocking();
        let sent: Vec<_> = response.header_values("set-cookie").collect();
        assert!(
            sent.len() == 2 && sent.iter().any(|line| line.starts_with("a=; Max-Age=0")),
            "{sent:?}"
        );
        let app = App::new().get("/", async |cookies: PrivateCookies| cookies);
        let error = app.build().expect_err("there are no keys").to_string();
        assert!(error.contains("CookieKeys"), "{error}");
    }

    #[test]
    #[should_panic(expected = "a secret of 31 bytes")]
    fn a_short_secret_panics() {
        let _ = CookieKeys::new(&[0; 31]);
    }
}
