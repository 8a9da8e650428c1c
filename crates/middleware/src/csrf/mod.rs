//! Protection against cross-site request forgery.

#[cfg(test)]
mod tests;
mod token;

pub use token::{CsrfKey, CsrfToken};

use crate::allowed_origins::{AllowedOrigins, shorten_for_display};
use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::{HeaderValue, StatusCode};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::origin::is_same_origin;
use peregrine_web::task_local::with_task_local;
use peregrine_web::{
    Body, IntoResponse, Middleware, Problem, Request, RequestHead, Response, Service,
};
use std::fmt;
use std::rc::Rc;
use token::{CURRENT, CurrentToken, TokenSigner};

/// The maximum size of a form that is searched for a token, in bytes.
pub const FORM_BYTES_MAX: u64 = 1 << 20;

/// Rejects requests that other sites cause a visitor's browser to send (cross-site request
/// forgery): from a form or a script of such a site, but with the visitor's cookies.
///
/// A request passes if one of these rules accepts it, in this order:
///
/// 1. Its method is safe: GET, HEAD, OPTIONS, TRACE, QUERY. Handlers for these methods must
///    therefore not change anything. Or it is [exempt](Csrf::exempt_if).
/// 2. Its `Origin` is [trusted](Csrf::trust_origin).
/// 3. Its `Sec-Fetch-Site` is `same-origin`, or `none`, which means that the visitor started it.
///    With any other value it is rejected (but see [`Csrf::trust_same_site`]).
/// 4. It has no such field, and its `Origin` is this server's own as seen by the client, also
///    behind [trusted proxies](peregrine_web::TrustedProxies). With any other `Origin` it is
///    rejected.
/// 5. It has neither. Then it does not come from a recent browser: it passes, unless
///    [`Csrf::tokens`] requires a token.
///
/// Browsers have sent `Sec-Fetch-Site` to `https:` and `localhost` since 2020 (Safari: 2023), and
/// `Origin` with every POST for about as long, so most sites need no tokens and no changes to their
/// forms.
///
/// A rejected request gets a problem of status 403 with the reason: `csrf-cross-site`,
/// `csrf-origin`, `csrf-token-missing`, `csrf-token-invalid`.
///
/// ```
/// use peregrine::middleware::Csrf;
/// use peregrine::App;
///
/// let client = App::new().wrap(Csrf::new()).post("/transfer", || "done").test();
/// let transfer = || client.post("/transfer");
/// let from = |site: &str| transfer().header("sec-fetch-site", site).send_blocking().status();
/// assert_eq!(from("same-origin"), 200);
/// assert_eq!(from("cross-site"), 403);
/// assert_eq!(from("same-site"), 403);
/// ```
///
/// A WebSocket begins with a GET, so it is not checked here; `WebSocketUpgrade` checks the origin
/// itself.
#[derive(Clone, Default)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Csrf {
    trusted_origins: AllowedOrigins,
    is_same_site_trusted: bool,
    exempt: Option<ExemptFn>,
    tokens: Option<Rc<TokenSigner>>,
    bound_to: Option<String>,
}

type ExemptFn = Rc<dyn Fn(&RequestHead) -> bool>;

impl Csrf {
    /// Creates a middleware that trusts no other origins and requires no token.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts requests of this origin, such as `https://app.example.com`; `*` as in
    /// [`Cors::allow_origin`](crate::Cors::allow_origin).
    #[doc(alias = "AddTrustedOrigin")]
    pub fn trust_origin(mut self, origin: impl AsRef<str>) -> Self {
        self.trusted_origins.add(origin.as_ref());
        self
    }

    /// Trusts requests of all hosts of the same site (`Sec-Fetch-Site: same-site`), that is, of
    /// every host below the registered domain, whichever party controls it. Prefer to
    /// [trust](Csrf::trust_origin) individual origins.
    pub fn trust_same_site(mut self) -> Self {
        self.is_same_site_trusted = true;
        self
    }

    /// Exempts requests that do not rely on the visitor's cookies, such as those of webhooks, which
    /// are signed, or those with a bearer token.
    #[doc(alias = "csrf_exempt")]
    pub fn exempt_if(mut self, is_exempt: impl Fn(&RequestHead) -> bool + 'static) -> Self {
        self.exempt = Some(Rc::new(is_exempt));
        self
    }

    /// Requires a token from requests without `Sec-Fetch-Site` and `Origin`, as sent by old
    /// browsers: a random number signed by this server with `key`, in a cookie, and again in the
    /// field `X-CSRF-Token` or in the form field `csrf_token` (`application/x-www-form-urlencoded`,
    /// at most 1 MiB). Handlers get it as a [`CsrfToken`].
    ///
    /// All workers, and all instances, need the same key.
    pub fn tokens(mut self, key: CsrfKey) -> Self {
        self.tokens = Some(Rc::new(TokenSigner { key, bound_to: self.bound_to.clone() }));
        self
    }

    /// Makes tokens valid only together with this cookie's value, such as the session's: a login,
    /// which changes it, invalidates earlier tokens, and attackers cannot plant their own token. A
    /// token issued to a visitor without that cookie is valid only without it.
    pub fn bind_tokens_to_cookie(mut self, name: impl Into<String>) -> Self {
        self.bound_to = Some(name.into());
        if let Some(tokens) = &mut self.tokens {
            Rc::make_mut(tokens).bound_to.clone_from(&self.bound_to);
        }
        self
    }

    /// Decides without a token, if possible. `Ok(false)` means that a token is required.
    fn check_without_token(&self, request: &Request) -> Result<bool, Problem> {
        let head = &request.parts.head;
        let is_safe = matches!(head.method_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "QUERY");
        if is_safe || self.exempt.as_ref().is_some_and(|is_exempt| is_exempt(head)) {
            return Ok(true);
        }
        let (origin, site) = (head.header_bytes("origin"), head.header_bytes("sec-fetch-site"));
        if origin.is_some_and(|origin| self.trusted_origins.contains(origin, head)) {
            return Ok(true);
        }
        match (site, origin) {
            (Some(b"same-origin" | b"none"), _) => Ok(true),
            (Some(b"same-site"), _) if self.is_same_site_trusted => Ok(true),
            (Some(site), _) => {
                let site = shorten_for_display(site);
                let detail = format!(
                    "The browser says that another site sent this request (Sec-Fetch-Site: {site}). It has to come from a \
                     page of this server, or of an origin that it trusts."
                );
                Err(forbidden("csrf-cross-site", detail).with_member("site", site))
            }
            (None, Some(origin)) if is_own_origin(request, origin) => Ok(true),
            (None, Some(origin)) => {
                let (origin, server_origin) =
                    (shorten_for_display(origin), request.client().origin());
                let detail = format!(
                    "The request comes from a page of {origin}, which is neither {server_origin} nor an origin that this server trusts."
                );
                Err(forbidden("csrf-origin", detail).with_member("origin", origin))
            }
            (None, None) => Ok(self.tokens.is_none()),
        }
    }
}

/// Returns whether the request comes from a page of this server's own origin.
fn is_own_origin(request: &Request, origin: &[u8]) -> bool {
    let client = request.client();
    std::str::from_utf8(origin)
        .is_ok_and(|origin| is_same_origin(origin, &client.host(), client.is_secure()))
}

/// Checks the token in the head or in the form. Returns the request if it is valid.
async fn check_token(tokens: &TokenSigner, request: Request) -> Result<Request, Problem> {
    let cookie_token = tokens.token_in_cookie(&request.parts.head, request.client().is_secure());
    let submitted = request.parts.head.header_bytes(token::HEADER).map(<[u8]>::to_vec);
    let (request, submitted) = match submitted {
        Some(submitted) => (request, Some(submitted)),
        None if is_form(&request.parts.head) => token_from_form(request).await?,
        None => (request, None),
    };
    let Some(submitted) = submitted else {
        let detail = "The request has neither Sec-Fetch-Site nor Origin, as a browser's would, so it needs this server's \
                      token: in the field X-CSRF-Token, or in the form's field csrf_token.";
        return Err(forbidden("csrf-token-missing", detail.to_owned()));
    };
    let is_valid = cookie_token.is_some_and(|cookie_token| cookie_token.matches(&submitted));
    if !is_valid {
        let detail = "The token is not the one in this browser's cookie, or not this server's, or for another session. \
                      Reload the page and try again.";
        return Err(forbidden("csrf-token-invalid", detail.to_owned()));
    }
    Ok(request)
}

fn is_form(head: &RequestHead) -> bool {
    let essence = head
        .header_bytes("content-type")
        .and_then(|value| value.split(|byte| *byte == b';').next());
    essence.is_some_and(|essence| {
        essence.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded")
    })
}

/// Reads the token from the request's form. The returned request still has the complete body.
async fn token_from_form(request: Request) -> Result<(Request, Option<Vec<u8>>), Problem> {
    let (parts, body) = request.into_parts();
    let limits = body.limits();
    let bytes = body.collect(FORM_BYTES_MAX).await?;
    let name = format!("{}=", token::FORM_FIELD);
    let submitted =
        bytes.split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(name.as_bytes()));
    let submitted = submitted.map(<[u8]>::to_vec);
    // The handler's own limit applies when the body is read again.
    let body = Body::from_pooled(bytes).with_limits(limits);
    Ok((Request::from_parts(parts, body), submitted))
}

fn forbidden(kind: &'static str, detail: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, kind, detail)
}

impl Middleware for Csrf {
    async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
        match (self.check_without_token(&request), &self.tokens) {
            (Err(problem), _) => return problem.into_response(),
            (Ok(false), Some(tokens)) => match check_token(tokens, request).await {
                Ok(checked) => request = checked,
                Err(problem) => return problem.into_response(),
            },
            _ => {}
        }
        let Some(tokens) = &self.tokens else { return next.call(request).await };
        let is_secure = request.client().is_secure();
        let current = CurrentToken { tokens: Rc::clone(tokens), is_secure, token: None };
        let (mut response, current) = with_task_local(&CURRENT, current, request, next).await;
        if let Some((token, is_new)) = current.and_then(|current| current.token) {
            if is_new {
                response.headers.append(SET_COOKIE, token.set_cookie(is_secure));
            }
            // A shared cache would send one token and its cookie to all visitors.
            response.headers.add_vary("cookie");
            response
                .headers
                .insert_if_not_present(CACHE_CONTROL, HeaderValue::from_static("private"));
        }
        response
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        for error in &self.trusted_origins.config_errors {
            requirements.config_error(format!("Csrf: {error}"));
        }
        if self.bound_to.is_some() && self.tokens.is_none() {
            requirements.config_error(
                "Csrf has bind_tokens_to_cookie(..) and no tokens to bind; add .tokens(key)",
            );
        }
    }
}

impl fmt::Debug for Csrf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csrf")
            .field("trusted", &self.trusted_origins)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}
