//! The session cookie.

use http::HeaderValue;
use peregrine_web::RequestHead;
use peregrine_web::cookies::{Cookie, SameSite};
use time::Duration;

/// The cookie's name and attributes.
#[derive(Clone, Debug)]
pub(crate) struct CookieSettings {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) domain: Option<String>,
    pub(crate) same_site: SameSite,
    pub(crate) secure: SecurePolicy,
    /// Whether the cookie ends with the browser rather than with the session.
    pub(crate) is_browser_session: bool,
}

/// When the cookie gets `Secure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecurePolicy {
    /// If the client uses TLS.
    SameAsRequest,
    Always,
}

impl CookieSettings {
    /// Returns the value of the first cookie with this name in the request.
    pub(crate) fn value<'h>(&self, head: &'h RequestHead) -> Option<&'h str> {
        let value = head.cookie(&self.name)?;
        std::str::from_utf8(value).ok()
    }

    /// Returns the field value that sets the cookie with this lifetime; `None` if it would be
    /// invalid.
    pub(crate) fn set_cookie(
        &self,
        value: &str,
        age: Duration,
        is_secure: bool,
    ) -> Option<HeaderValue> {
        let cookie = self.build(value, is_secure);
        // `Max-Age` has whole seconds. Rounded down, the cookie would end before the session.
        let age = age.saturating_add(Duration::nanoseconds(999_999_999));
        let cookie = if self.is_browser_session { cookie } else { cookie.max_age(age) };
        HeaderValue::try_from(cookie.build().to_string()).ok()
    }

    /// Returns the field value that removes the cookie.
    pub(crate) fn expire_cookie(&self, is_secure: bool) -> Option<HeaderValue> {
        let cookie = self.build("", is_secure).max_age(Duration::ZERO);
        HeaderValue::try_from(cookie.build().to_string()).ok()
    }

    fn build(
        &self,
        value: &str,
        is_secure: bool,
    ) -> peregrine_web::cookies::CookieBuilder<'static> {
        let is_secure = is_secure || self.secure == SecurePolicy::Always;
        let cookie = Cookie::build((self.name.clone(), value.to_owned()))
            .path(self.path.clone())
            .http_only(true)
            .same_site(self.same_site)
            .secure(is_secure);
        match &self.domain {
            Some(domain) => cookie.domain(domain.clone()),
            None => cookie,
        }
    }

    /// Describes settings that browsers would reject.
    pub(crate) fn config_errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let is_secure = self.secure == SecurePolicy::Always;
        if http::HeaderName::from_bytes(self.name.as_bytes()).is_err() {
            errors.push(format!(
                "cookie_name(\"{}\") is not a cookie name: use letters, digits and hyphens",
                self.name
            ));
        }
        if self.name.starts_with("__Host-")
            && (!is_secure || self.domain.is_some() || self.path != "/")
        {
            errors.push("a cookie whose name begins with __Host- needs always_secure(), no cookie_domain(..), and the path /".to_owned());
        }
        if self.name.starts_with("__Secure-") && !is_secure {
            errors
                .push("a cookie whose name begins with __Secure- needs always_secure()".to_owned());
        }
        if self.same_site == SameSite::None && !is_secure {
            errors.push(
                "same_site(SameSite::None) needs always_secure(), or browsers refuse the cookie"
                    .to_owned(),
            );
        }
        let is_valid_attribute =
            |text: &str| !text.bytes().any(|byte| byte < b' ' || byte == b';' || byte == 0x7f);
        if !self.path.starts_with('/') || !is_valid_attribute(&self.path) {
            errors.push(format!(
                "cookie_path(\"{}\") must begin with a slash and contain no semicolon",
                self.path
            ));
        }
        if self
            .domain
            .as_deref()
            .is_some_and(|domain| domain.is_empty() || !is_valid_attribute(domain))
        {
            errors.push("cookie_domain(..) is not a host name".to_owned());
        }
        errors
    }
}
