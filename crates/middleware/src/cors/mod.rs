//! Cross-Origin Resource Sharing: which requests scripts of other origins may make and read.

#[cfg(test)]
mod tests;

use crate::allowed_origins::{AllowedOrigins, OriginMatch, shorten_for_display};
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::{
    Headers, IntoResponse, Middleware, Problem, Request, RequestHead, Response, Service,
};
use std::time::Duration;

const ANY: HeaderValue = HeaderValue::from_static("*");
const TRUE: HeaderValue = HeaderValue::from_static("true");
const ALLOW_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-allow-private-network");
const REQUEST_METHOD: &str = "access-control-request-method";
const REQUEST_HEADERS: &str = "access-control-request-headers";
const REQUEST_PRIVATE_NETWORK: &str = "access-control-request-private-network";

/// Allows pages of other origins to call the wrapped routes, by Cross-Origin Resource Sharing.
///
/// A browser lets a script read a response of another origin only if the response allows it. Before
/// requests that a plain form could not send, it sends a *preflight*, an OPTIONS request. This
/// middleware responds to preflights for all paths that have a route, whatever the route's methods,
/// and adds the header fields to every response that passes through it, including problems, 404 and
/// 405. It does not reject requests: clients other than browsers are not bound by it, and simple
/// requests of any page arrive, although the page cannot read the response. [`Csrf`](crate::Csrf)
/// rejects those.
///
/// ```
/// use peregrine::middleware::Cors;
/// use peregrine::App;
///
/// let cors = Cors::new()
///     .allow_origin("https://app.example.com")
///     .allow_origin("https://*.preview.example.com")
///     .allow_credentials();
/// let client = App::new().wrap(cors).get("/birds", || "peregrine").test();
/// let response = client.get("/birds").header("origin", "https://app.example.com").send_blocking();
/// assert_eq!(response.header("access-control-allow-origin"), Some("https://app.example.com"));
/// let response = client.get("/birds").header("origin", "https://evil.example").send_blocking();
/// assert_eq!(response.header("access-control-allow-origin"), None);
/// ```
///
/// | setting | default |
/// |---|---|
/// | origins | none: an application with a `Cors` without origins fails to build |
/// | [`Cors::allow_methods`], [`Cors::allow_headers`] | those that an allowed origin requests |
/// | [`Cors::expose_headers`] | none except those that every page may read |
/// | [`Cors::allow_credentials`] | no |
/// | [`Cors::max_age`] | 10 minutes |
/// | [`Cors::allow_private_network`] | no |
///
/// A rejected preflight is a problem of status 403 with the reason, which the developer tools show
/// (`cors-origin-refused`, `cors-method-refused`, `cors-header-refused`). Responses have the right
/// `Vary`: none for [`Cors::allow_any_origin`], and `Origin` otherwise, whether or not the request
/// has an origin.
///
/// Add it outside of middleware that responds by itself, such as authentication: preflights carry
/// no credentials, and pages cannot read a 401 that did not pass through this middleware. Responses
/// of the server itself, such as the 503 of an overloaded one, do not pass through middleware.
#[derive(Clone, Debug)]
#[must_use = "a middleware does nothing until it is added to an application or a scope"]
pub struct Cors {
    origins: AllowedOrigins,
    /// The allowed methods, also as a field value. `None` allows the requested ones.
    methods: Option<(Vec<Method>, HeaderValue)>,
    /// The allowed request fields, also as a field value. `None` allows the requested ones.
    headers: Option<(Vec<HeaderName>, HeaderValue)>,
    exposed: Option<HeaderValue>,
    allows_credentials: bool,
    max_age: HeaderValue,
    allows_private_network: bool,
}

impl Cors {
    /// Creates a middleware that allows no origins yet.
    pub fn new() -> Self {
        Self {
            origins: AllowedOrigins::default(),
            methods: None,
            headers: None,
            exposed: None,
            allows_credentials: false,
            max_age: HeaderValue::from_static("600"),
            allows_private_network: false,
        }
    }

    /// Allows this origin, such as `https://app.example.com` or `http://localhost:5173`. A `*`
    /// stands for one or more labels at the beginning of a host (`https://*.example.com`), or for
    /// any port (`http://localhost:*`).
    #[doc(alias = "allowed_origin")]
    pub fn allow_origin(mut self, origin: impl AsRef<str>) -> Self {
        self.origins.add(origin.as_ref());
        self
    }

    /// Allows several origins.
    #[doc(alias = "allowed_origins")]
    pub fn allow_origins<T: AsRef<str>>(self, origins: impl IntoIterator<Item = T>) -> Self {
        origins.into_iter().fold(self, Self::allow_origin)
    }

    /// Allows the origins for which `predicate` returns true. It gets the origin as sent by the
    /// browser, which may be `null`.
    ///
    /// Compare whole origins: searching for a part of one allows `https://example.com.evil.test`.
    /// Other properties of the head that `predicate` uses are not in `Vary`.
    #[doc(alias = "allowed_origin_fn")]
    #[doc(alias = "predicate")]
    pub fn allow_origin_fn(
        mut self,
        predicate: impl Fn(&str, &RequestHead) -> bool + 'static,
    ) -> Self {
        self.origins.add_predicate(predicate);
        self
    }

    /// Allows all origins, for public data. Browsers do not combine this with credentials: with
    /// [`Cors::allow_credentials`], the application fails to build.
    pub fn allow_any_origin(mut self) -> Self {
        self.origins.allows_any = true;
        self
    }

    /// Sets the methods that pages may use, in addition to GET, HEAD and POST, which need no
    /// permission.
    #[doc(alias = "allowed_methods")]
    pub fn allow_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let methods: Vec<_> = methods.into_iter().collect();
        let value = join_header_names(methods.iter().map(Method::as_str));
        self.methods = Some((methods, value));
        self
    }

    /// Sets the header fields that pages may set, in addition to those that need no permission.
    #[doc(alias = "allowed_headers")]
    pub fn allow_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let value = join_header_names(names.iter().map(HeaderName::as_str));
        self.headers = Some((names, value));
        self
    }

    /// Sets the response header fields that pages may read, in addition to `Cache-Control`,
    /// `Content-Type` and other basic ones.
    #[doc(alias = "Access-Control-Expose-Headers")]
    pub fn expose_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        self.exposed = Some(join_header_names(names.iter().map(HeaderName::as_str)))
            .filter(|value| !value.is_empty());
        self
    }

    /// Allows pages to read every header field. Cannot be combined with
    /// [`Cors::allow_credentials`], with which browsers treat `*` as the name of one field.
    #[doc(alias = "expose_any")]
    pub fn expose_any_header(mut self) -> Self {
        self.exposed = Some(ANY);
        self
    }

    /// Allows pages to send cookies and other credentials of this server, and to read the
    /// responses. Requires explicit origins.
    #[doc(alias = "supports_credentials")]
    pub fn allow_credentials(mut self) -> Self {
        self.allows_credentials = true;
        self
    }

    /// Sets how long browsers may cache the response to a preflight, in whole seconds. Browsers
    /// limit it: two hours in Chromium, a day in Firefox.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = HeaderValue::from(age.as_secs());
        self
    }

    /// Allows pages from the internet to call this server although it is in a private network, in
    /// browsers that request this permission (`Access-Control-Request-Private-Network`).
    pub fn allow_private_network(mut self) -> Self {
        self.allows_private_network = true;
        self
    }

    /// Adds the header fields to a response, according to the match of its request's origin.
    fn add_headers(&self, fields: &mut Headers, origin_match: OriginMatch) {
        match origin_match {
            // Sent to all clients, so that a cached response fits pages of all origins.
            OriginMatch::Any => fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY),
            OriginMatch::Exact(origin) => {
                fields.add_vary("origin");
                fields.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            }
            OriginMatch::NoMatch => {
                fields.add_vary("origin");
                fields.remove(&ACCESS_CONTROL_ALLOW_ORIGIN);
                fields.remove(&ACCESS_CONTROL_ALLOW_CREDENTIALS);
                return;
            }
        }
        match self.allows_credentials {
            true => fields.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, TRUE),
            false => fields.remove(&ACCESS_CONTROL_ALLOW_CREDENTIALS),
        }
    }

    /// Creates the response to a preflight.
    fn respond_to_preflight(&self, head: &RequestHead, method: &str) -> Response {
        let origin_match = self.origins.match_origin(head);
        let mut response = match self.check_preflight(head, &origin_match, method) {
            Ok(fields) => {
                let mut response = Response::new(StatusCode::NO_CONTENT);
                response.headers = fields;
                response
            }
            Err(problem) => problem.into_response(),
        };
        self.add_headers(&mut response.headers, origin_match);
        response.headers.add_vary(REQUEST_METHOD);
        response.headers.add_vary(REQUEST_HEADERS);
        if self.allows_private_network {
            response.headers.add_vary(REQUEST_PRIVATE_NETWORK);
        }
        response
    }

    /// Returns the fields that grant the page's permissions, or the reason for a rejection.
    fn check_preflight(
        &self,
        head: &RequestHead,
        origin_match: &OriginMatch,
        method: &str,
    ) -> Result<Headers, Problem> {
        if *origin_match == OriginMatch::NoMatch {
            let origin = shorten_for_display(head.header_bytes("origin").unwrap_or_default());
            let detail = format!(
                "Pages of the origin `{origin}` are not allowed by this server's CORS settings."
            );
            return Err(forbidden("cors-origin-refused", detail).with_member("origin", origin));
        }
        let mut fields = Headers::new();
        let methods = match &self.methods {
            None => Method::from_bytes(method.as_bytes())
                .ok()
                .and_then(|_| HeaderValue::from_str(method).ok()),
            Some((allowed, value)) => {
                let needs_no_permission = matches!(method, "GET" | "HEAD" | "POST");
                let is_allowed =
                    needs_no_permission || allowed.iter().any(|other| other.as_str() == method);
                is_allowed.then(|| value.clone())
            }
        };
        let Some(methods) = methods else {
            let method = shorten_for_display(method.as_bytes());
            let detail = format!(
                "The method `{method}` is not among those that this server's CORS settings allow."
            );
            return Err(forbidden("cors-method-refused", detail).with_member("method", method));
        };
        fields.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        // Several lines of a list are one list (RFC 9110 §5.3); if one is rejected, all are.
        for requested in head.header_values(REQUEST_HEADERS) {
            let granted = self.grant_headers(requested).map_err(|name| {
                let detail =
                    format!("This server's CORS settings do not allow the header field `{name}`.");
                forbidden("cors-header-refused", detail).with_member("header", name)
            })?;
            match (&self.headers, granted) {
                (_, None) => {}
                (Some(_), Some(list)) => fields.insert(ACCESS_CONTROL_ALLOW_HEADERS, list),
                (None, Some(list)) => fields.append(ACCESS_CONTROL_ALLOW_HEADERS, list),
            }
        }
        fields.insert(ACCESS_CONTROL_MAX_AGE, self.max_age.clone());
        if self.allows_private_network
            && head.header_bytes(REQUEST_PRIVATE_NETWORK) == Some(b"true")
        {
            fields.insert(ALLOW_PRIVATE_NETWORK, TRUE);
        }
        Ok(fields)
    }

    /// Returns the value that grants a list of field names, or `None` for an empty list. Fails with
    /// the first name that is not allowed.
    fn grant_headers(&self, requested: &[u8]) -> Result<Option<HeaderValue>, String> {
        let names = requested
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty());
        let mut count = 0;
        for name in names {
            count += 1;
            let header_name =
                HeaderName::from_bytes(name).map_err(|_| shorten_for_display(name))?;
            let is_granted =
                self.headers.as_ref().is_none_or(|(allowed, _)| allowed.contains(&header_name));
            is_granted.then_some(()).ok_or_else(|| shorten_for_display(name))?;
        }
        match &self.headers {
            _ if count == 0 => Ok(None),
            Some((_, value)) => Ok(Some(value.clone())),
            None => HeaderValue::from_bytes(requested)
                .map(Some)
                .map_err(|_| shorten_for_display(requested)),
        }
    }
}

impl Default for Cors {
    fn default() -> Self {
        Self::new()
    }
}

impl Middleware for Cors {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let head = &request.parts.head;
        if let Some(method) = preflight_method(&request) {
            return self.respond_to_preflight(head, method);
        }
        let origin_match = self.origins.match_origin(head);
        let mut response = next.call(request).await;
        if origin_match != OriginMatch::NoMatch
            && let Some(exposed) = &self.exposed
        {
            response.headers.insert_if_not_present(ACCESS_CONTROL_EXPOSE_HEADERS, exposed.clone());
        }
        self.add_headers(&mut response.headers, origin_match);
        response
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        for error in &self.origins.config_errors {
            requirements.config_error(format!("Cors: {error}"));
        }
        if self.origins.is_empty() && self.origins.config_errors.is_empty() {
            requirements.config_error(
                "Cors allows no origins; add .allow_origin(\"https://..\") or .allow_any_origin()",
            );
        }
        if self.allows_credentials && self.origins.allows_any {
            requirements.config_error(
                "Cors has allow_any_origin() and allow_credentials(): every page could act as its visitor; \
                 name the origins, or leave the credentials out",
            );
        }
        if self.allows_credentials && self.exposed.as_ref() == Some(&ANY) {
            requirements.config_error(
                "Cors has expose_any_header() and allow_credentials(), for which browsers take `*` as the \
                 name of one field; name the fields with expose_headers(..)",
            );
        }
    }
}

/// Returns the requested method if the request is a preflight for a path that has a route.
fn preflight_method(request: &Request) -> Option<&str> {
    let head = &request.parts.head;
    if head.method_str() != "OPTIONS" {
        return None;
    }
    let method = head.header(REQUEST_METHOD)?;
    head.header_bytes("origin")?;
    let router = request.parts.states().router()?;
    (!router.allowed_methods(head.path().as_bytes()).is_empty()).then_some(method)
}

fn forbidden(kind: &'static str, detail: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, kind, detail)
}

fn join_header_names<'n>(names: impl Iterator<Item = &'n str>) -> HeaderValue {
    let names: Vec<_> = names.collect();
    HeaderValue::from_str(&names.join(", ")).expect("names are tokens")
}
