//! Header fields with which browsers protect a site and its visitors.

mod csp;
mod nonce;
mod permissions;
#[cfg(test)]
mod tests;

pub use csp::{Csp, NONCE};
pub use nonce::CspNonce;
pub use permissions::PermissionsPolicy;

use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY_REPORT_ONLY, REFERRER_POLICY,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue};
use nonce::{CURRENT, NonceState};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::task_local::with_task_local;
use peregrine_web::{Middleware, Request, Response, Service};
use std::time::Duration;

const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const EMBEDDER_POLICY: HeaderName = HeaderName::from_static("cross-origin-embedder-policy");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");
const YEAR: Duration = Duration::from_secs(31_536_000);

/// Sets the header fields with which browsers protect a site and its visitors, on every response
/// that passes through it. A field that a response already has is kept.
///
/// | field | default |
/// |---|---|
/// | `Content-Security-Policy` | `base-uri 'self'; object-src 'none'; frame-ancestors 'none'` |
/// | `X-Frame-Options` | `DENY`, for browsers that do not know `frame-ancestors` |
/// | `X-Content-Type-Options` | `nosniff`, always |
/// | `Referrer-Policy` | `strict-origin-when-cross-origin` |
/// | `Cross-Origin-Opener-Policy` | `same-origin` |
/// | `Cross-Origin-Resource-Policy` | `same-origin` |
/// | `Cross-Origin-Embedder-Policy` | none: it would restrict the resources that a page can load |
/// | `Permissions-Policy` | none: by default frames get no permissions |
/// | `Strict-Transport-Security` | `max-age=31536000` (a year) |
///
/// The methods [`csp`](Self::csp), [`frame_ancestors`](Self::frame_ancestors),
/// [`referrer_policy`](Self::referrer_policy),
/// [`cross_origin_opener_policy`](Self::cross_origin_opener_policy),
/// [`cross_origin_resource_policy`](Self::cross_origin_resource_policy),
/// [`cross_origin_embedder_policy`](Self::cross_origin_embedder_policy),
/// [`permissions_policy`](Self::permissions_policy) and [`hsts`](Self::hsts) change them.
///
/// `Strict-Transport-Security` is sent only if the client uses TLS (RFC 6797 §7.2), with this
/// server or with a [trusted proxy](peregrine_web::TrustedProxies).
///
/// Invalid settings are reported when the application is built. The fields are rendered once,
/// except for policies with a nonce.
///
/// ```
/// use peregrine::middleware::SecurityHeaders;
/// use peregrine::middleware::security_headers::{Csp, PermissionsPolicy};
/// use peregrine::App;
///
/// let headers = SecurityHeaders::new()
///     .csp(Csp::new().default_src(["'self'"]))
///     .frame_ancestors(["'self'"])
///     .permissions_policy(
///         PermissionsPolicy::new()
///             .deny("camera")
///             .allow("fullscreen", ["self", "https://video.example"]),
///     );
/// let response = App::new().wrap(headers).get("/", || "hello").test().get("/").send_blocking();
/// assert_eq!(
///     response.header("content-security-policy"),
///     Some("default-src 'self'; frame-ancestors 'self'")
/// );
/// assert_eq!(response.header("x-frame-options"), Some("SAMEORIGIN"));
/// assert_eq!(
///     response.header("permissions-policy"),
///     Some(r#"camera=(), fullscreen=(self "https://video.example")"#)
/// );
/// ```
#[doc(alias = "helmet")]
#[derive(Clone, Debug)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct SecurityHeaders {
    csp: Option<Csp>,
    frame_ancestors: Vec<String>,
    referrer_policy: Option<HeaderValue>,
    cross_origin_opener_policy: Option<HeaderValue>,
    cross_origin_resource_policy: Option<HeaderValue>,
    cross_origin_embedder_policy: Option<HeaderValue>,
    permissions_policy: PermissionsPolicy,
    hsts: Option<Hsts>,
    config_errors: Vec<String>,
    /// The fields that are the same in all responses.
    rendered: Vec<(HeaderName, HeaderValue)>,
    has_nonce: bool,
}

/// How long, and for which hosts, browsers must use TLS.
#[derive(Clone, Copy, Debug)]
struct Hsts {
    age: Duration,
    has_subdomains: bool,
    is_preload: bool,
}

impl SecurityHeaders {
    /// Creates a middleware with the defaults.
    pub fn new() -> Self {
        let value = HeaderValue::from_static;
        Self {
            csp: Some(Csp::new().base_uri(["'self'"]).object_src(["'none'"])),
            frame_ancestors: vec!["'none'".to_owned()],
            referrer_policy: Some(value("strict-origin-when-cross-origin")),
            cross_origin_opener_policy: Some(value("same-origin")),
            cross_origin_resource_policy: Some(value("same-origin")),
            cross_origin_embedder_policy: None,
            permissions_policy: PermissionsPolicy::new(),
            hsts: Some(Hsts { age: YEAR, has_subdomains: false, is_preload: false }),
            config_errors: Vec::new(),
            rendered: Vec::new(),
            has_nonce: false,
        }
        .render()
    }

    /// Sets the content security policy. [`SecurityHeaders::frame_ancestors`] is added to it,
    /// unless `csp` has such a directive.
    #[doc(alias = "content_security_policy")]
    pub fn csp(mut self, csp: Csp) -> Self {
        self.csp = Some(csp);
        self.render()
    }

    /// Disables the content security policy.
    pub fn without_csp(mut self) -> Self {
        self.csp = None;
        self.render()
    }

    /// Sets which pages may frame this one: `["'none'"]` (the default), `["'self'"]`, or sources
    /// such as `https://portal.example`.
    pub fn frame_ancestors<T: AsRef<str>>(mut self, sources: impl IntoIterator<Item = T>) -> Self {
        self.frame_ancestors =
            sources.into_iter().map(|source| source.as_ref().to_owned()).collect();
        self.render()
    }

    /// Sets how much of a page's address is sent to other sites. An empty text disables the field.
    pub fn referrer_policy(mut self, policy: &str) -> Self {
        const ALL: [&str; 8] = [
            "no-referrer",
            "no-referrer-when-downgrade",
            "origin",
            "origin-when-cross-origin",
            "same-origin",
            "strict-origin",
            "strict-origin-when-cross-origin",
            "unsafe-url",
        ];
        self.referrer_policy = self.validate("referrer_policy", policy, &ALL);
        self.render()
    }

    /// Sets which windows of other origins can keep a reference to this one: `same-origin`,
    /// `same-origin-allow-popups` (for logins in a window of another site),
    /// `noopener-allow-popups`, `unsafe-none`. An empty text disables the field.
    pub fn cross_origin_opener_policy(mut self, policy: &str) -> Self {
        const ALL: [&str; 4] =
            ["same-origin", "same-origin-allow-popups", "noopener-allow-popups", "unsafe-none"];
        self.cross_origin_opener_policy = self.validate("cross_origin_opener_policy", policy, &ALL);
        self.render()
    }

    /// Sets which pages may embed this response: `same-origin`, `same-site`, `cross-origin`. An
    /// empty text disables the field.
    pub fn cross_origin_resource_policy(mut self, policy: &str) -> Self {
        self.cross_origin_resource_policy = self.validate(
            "cross_origin_resource_policy",
            policy,
            &["same-origin", "same-site", "cross-origin"],
        );
        self.render()
    }

    /// Sets whether the page loads only resources that allow it: `require-corp`, `credentialless`,
    /// `unsafe-none`. An empty text disables the field.
    pub fn cross_origin_embedder_policy(mut self, policy: &str) -> Self {
        self.cross_origin_embedder_policy = self.validate(
            "cross_origin_embedder_policy",
            policy,
            &["require-corp", "credentialless", "unsafe-none"],
        );
        self.render()
    }

    /// Sets the browser features that the page, and frames in it, may use.
    #[doc(alias = "Permissions-Policy")]
    pub fn permissions_policy(mut self, policy: PermissionsPolicy) -> Self {
        self.permissions_policy = policy;
        self.render()
    }

    /// Sets how long browsers must use TLS, also for the hosts below this one if `has_subdomains`.
    /// Zero cancels an earlier value.
    pub fn hsts(mut self, age: Duration, has_subdomains: bool) -> Self {
        self.hsts = Some(Hsts { age, has_subdomains, is_preload: false });
        self.render()
    }

    /// Requires TLS for two years, with subdomains and the keyword for inclusion in the browsers'
    /// preload lists. This is hard to undo.
    pub fn hsts_preload(mut self) -> Self {
        self.hsts = Some(Hsts { age: 2 * YEAR, has_subdomains: true, is_preload: true });
        self.render()
    }

    /// Disables `Strict-Transport-Security`.
    pub fn without_hsts(mut self) -> Self {
        self.hsts = None;
        self.render()
    }

    /// Converts a policy to a field value. If it is not one of `allowed`, records an error.
    fn validate(
        &mut self,
        setting: &str,
        policy: &str,
        allowed: &[&'static str],
    ) -> Option<HeaderValue> {
        if policy.is_empty() {
            return None;
        }
        let valid = allowed.iter().find(|valid| **valid == policy);
        if valid.is_none() {
            self.config_errors
                .push(format!("{setting}(\"{policy}\") is not one of {}", allowed.join(", ")));
        }
        valid.map(|valid| HeaderValue::from_static(valid))
    }

    /// Returns the content security policy with the frame ancestors.
    fn full_csp(&self) -> Option<Csp> {
        let csp = self.csp.clone()?;
        if csp.has("frame-ancestors") || self.frame_ancestors.is_empty() {
            return Some(csp);
        }
        Some(csp.frame_ancestors(&self.frame_ancestors))
    }

    /// Renders everything that does not depend on the request.
    fn render(mut self) -> Self {
        let value = HeaderValue::from_static;
        self.rendered.clear();
        self.rendered.push((X_CONTENT_TYPE_OPTIONS, value("nosniff")));
        match self.frame_ancestors.as_slice() {
            [source] if source == "'none'" => self.rendered.push((X_FRAME_OPTIONS, value("DENY"))),
            [source] if source == "'self'" => {
                self.rendered.push((X_FRAME_OPTIONS, value("SAMEORIGIN")))
            }
            // Other sources cannot be expressed in this field.
            _ => {}
        }
        for (name, policy) in [
            (REFERRER_POLICY, &self.referrer_policy),
            (OPENER_POLICY, &self.cross_origin_opener_policy),
            (RESOURCE_POLICY, &self.cross_origin_resource_policy),
            (EMBEDDER_POLICY, &self.cross_origin_embedder_policy),
            (PERMISSIONS_POLICY, &self.permissions_policy.value()),
        ] {
            self.rendered.extend(policy.clone().map(|policy| (name, policy)));
        }
        self.has_nonce = self.csp.as_ref().is_some_and(Csp::has_nonce);
        let csp = self.full_csp();
        let csp = csp.and_then(|csp| Some((csp_name(&csp), csp.value(None)?)));
        self.rendered.extend(csp);
        self
    }

    fn add_headers(
        &self,
        response: &mut Response,
        is_secure: bool,
        nonce_state: Option<NonceState>,
    ) {
        if let Some(NonceState::Used(nonce)) = nonce_state
            && let Some(csp) = self.full_csp()
            && let Some(policy) = csp.value(Some(&nonce))
        {
            response.headers.insert_if_not_present(csp_name(&csp), policy);
            // `private` alone, as set for sessions and tokens, still allows the browser to cache
            // the page.
            let cache_control = response.headers.get(&CACHE_CONTROL);
            if cache_control.is_none_or(|cache_control| cache_control == "private") {
                response.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            }
        }
        response.headers.insert_all_if_not_present(&self.rendered);
        if let Some(Hsts { age, has_subdomains, is_preload }) = self.hsts.filter(|_| is_secure) {
            let value = match (age, has_subdomains) {
                (YEAR, false) => HeaderValue::from_static("max-age=31536000"),
                _ => {
                    let subdomains = if has_subdomains { "; includeSubDomains" } else { "" };
                    let preload = if is_preload { "; preload" } else { "" };
                    let text = format!("max-age={}{subdomains}{preload}", age.as_secs());
                    HeaderValue::try_from(text).expect("a number and words")
                }
            };
            response.headers.insert_if_not_present(STRICT_TRANSPORT_SECURITY, value);
        }
    }
}

fn csp_name(csp: &Csp) -> HeaderName {
    if csp.is_report_only { CONTENT_SECURITY_POLICY_REPORT_ONLY } else { CONTENT_SECURITY_POLICY }
}

impl Default for SecurityHeaders {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for SecurityHeaders {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let is_secure = self.hsts.is_some() && request.client().is_secure();
        let (mut response, nonce_state) = match self.has_nonce {
            true => with_task_local(&CURRENT, NonceState::Unused, request, next).await,
            false => (next.call(request).await, None),
        };
        self.add_headers(&mut response, is_secure, nonce_state);
        response
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        let csp = self.full_csp().map(|csp| csp.validate()).unwrap_or_default();
        for error in
            csp.iter().chain(&self.permissions_policy.config_errors).chain(&self.config_errors)
        {
            requirements.config_error(format!("SecurityHeaders: {error}"));
        }
    }
}
