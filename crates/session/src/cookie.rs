//! The cookie that a session is known by.

use http::HeaderValue;
use peregrine_web::Head;
use peregrine_web::cookies::{Cookie, SameSite};
use time::Duration;

/// How the cookie looks.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) domain: Option<String>,
    pub(crate) same_site: SameSite,
    pub(crate) secure: Secure,
    /// Does it end with the browser, rather than with the session?
    pub(crate) ends_with_browser: bool,
}

/// Whether the browser sends the cookie over TLS only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secure {
    /// Where it was set over TLS.
    AsRequested,
    Always,
}

impl Settings {
    /// The value in the request: that of the first cookie of this name.
    pub(crate) fn value<'h>(&self, head: &'h Head) -> Option<&'h str> {
        let value = head.cookie(&self.name)?;
        std::str::from_utf8(value).ok()
    }

    /// The field that sets it, for so long; `None`: it is no valid field.
    pub(crate) fn set(&self, value: &str, age: Duration, is_secure: bool) -> Option<HeaderValue> {
        let cookie = self.build(value, is_secure);
        // It is told in whole seconds, and what is cut off would end before the session does.
        let age = age.saturating_add(Duration::nanoseconds(999_999_999));
        let cookie = if self.ends_with_browser { cookie } else { cookie.max_age(age) };
        HeaderValue::try_from(cookie.build().to_string()).ok()
    }

    /// The field that removes it.
    pub(crate) fn remove(&self, is_secure: bool) -> Option<HeaderValue> {
        let cookie = self.build("", is_secure).max_age(Duration::ZERO);
        HeaderValue::try_from(cookie.build().to_string()).ok()
    }

    fn build(
        &self,
        value: &str,
        is_secure: bool,
    ) -> peregrine_web::cookies::CookieBuilder<'static> {
        let is_secure = is_secure || self.secure == Secure::Always;
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

    /// What browsers would refuse.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let is_secure = self.secure == Secure::Always;
        if http::HeaderName::from_bytes(self.name.as_bytes()).is_err() {
            faults.push(format!(
                "cookie_name(\"{}\") is no name of a cookie: letters, digits and hyphens are",
                self.name
            ));
        }
        if self.name.starts_with("__Host-")
            && (!is_secure || self.domain.is_some() || self.path != "/")
        {
            faults.push("a cookie whose name begins with __Host- needs always_secure(), no domain(..), and the path /".to_owned());
        }
        if self.name.starts_with("__Secure-") && !is_secure {
            faults
                .push("a cookie whose name begins with __Secure- needs always_secure()".to_owned());
        }
        if self.same_site == SameSite::None && !is_secure {
            faults.push(
                "same_site(SameSite::None) needs always_secure(), or browsers refuse the cookie"
                    .to_owned(),
            );
        }
        let is_plain =
            |text: &str| !text.bytes().any(|byte| byte < b' ' || byte == b';' || byte == 0x7f);
        if !self.path.starts_with('/') || !is_plain(&self.path) {
            faults.push(format!(
                "path(\"{}\") must begin with a slash, and have no semicolon",
                self.path
            ));
        }
        if self.domain.as_deref().is_some_and(|domain| domain.is_empty() || !is_plain(domain)) {
            faults.push("domain(..) is no host".to_owned());
        }
        faults
    }
}
