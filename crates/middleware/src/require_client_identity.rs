//! Requires a client certificate where the TLS handshake leaves it optional.

use http::StatusCode;
use peregrine_web::connection::ClientIdentity;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use std::fmt;
use std::rc::Rc;

/// Responds with 403 to clients without a certificate, and to those whose certificate is not
/// allowed, for the routes inside.
///
/// The server must request certificates in the TLS handshake (`ClientAuth::optional()`), which also
/// verifies them. This middleware decides where one is required, because an HTTP/2 server must not
/// request one after the handshake (RFC 9113, section 9.2.3).
///
/// ```
/// use peregrine::middleware::RequireClientIdentity;
/// use peregrine::App;
///
/// let is_ours = RequireClientIdentity::new().allow(|client| {
///     client.spiffe_id().is_some_and(|id| id.starts_with("spiffe://example.org/"))
/// });
/// let app = App::new()
///     .get("/", || "hello")
///     .scope("/admin", |admin| admin.wrap(is_ours).get("/users", || "users"))
///     .test();
/// assert_eq!(app.get("/").send_blocking().status(), 200);
/// assert_eq!(app.get("/admin/users").send_blocking().status(), 403);
/// ```
#[doc(alias = "mtls")]
#[doc(alias = "client_certificate")]
#[derive(Clone, Default)]
pub struct RequireClientIdentity {
    is_allowed: Option<Rc<AllowFn>>,
}

type AllowFn = dyn Fn(&ClientIdentity) -> bool;

impl RequireClientIdentity {
    /// Requires a certificate, with any subject.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts only clients for which `is_allowed` returns true. Of several calls, the last one
    /// applies.
    #[must_use]
    pub fn allow(mut self, is_allowed: impl Fn(&ClientIdentity) -> bool + 'static) -> Self {
        self.is_allowed = Some(Rc::new(is_allowed));
        self
    }
}

impl Middleware for RequireClientIdentity {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let client = request.parts.connection().client_identity();
        let problem = match (client, &self.is_allowed) {
            (None, _) => Problem::new(
                StatusCode::FORBIDDEN,
                "client-certificate-required",
                "this resource requires a client certificate; connect again with one",
            ),
            (Some(client), Some(is_allowed)) if !is_allowed(client) => Problem::new(
                StatusCode::FORBIDDEN,
                "client-not-allowed",
                "the client named by the certificate is not allowed here",
            ),
            (Some(_), _) => return next.call(request).await,
        };
        problem.into_response()
    }
}

impl fmt::Debug for RequireClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allows_all = self.is_allowed.is_none();
        f.debug_struct("RequireClientIdentity").field("allows_all", &allows_all).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_web::App;
    use peregrine_web::connection::{ConnectionInfo, TlsInfo};
    use std::sync::Arc;

    fn connection_of(subject: Option<&str>) -> ConnectionInfo {
        let client = subject.map(|subject| {
            Arc::new(ClientIdentity { subject: subject.to_owned(), ..ClientIdentity::default() })
        });
        let tls = TlsInfo { client_identity: client, ..TlsInfo::default() };
        ConnectionInfo { tls: Some(Arc::new(tls)), ..ConnectionInfo::default() }
    }

    #[test]
    fn rejects_clients_without_a_certificate_or_not_allowed() {
        let any = RequireClientIdentity::new();
        let alice = any.clone().allow(|client| client.subject == "CN=alice");
        for (middleware, subject, expected) in [
            (&any, None, (403, "client-certificate-required")),
            (&any, Some("CN=bob"), (200, "hello")),
            (&alice, None, (403, "client-certificate-required")),
            (&alice, Some("CN=bob"), (403, "client-not-allowed")),
            (&alice, Some("CN=alice"), (200, "hello")),
        ] {
            let client = App::new().wrap(middleware.clone()).get("/", || "hello").test();
            let response = client.with_connection(connection_of(subject)).get("/").send_blocking();
            assert_eq!(response.status(), expected.0, "{middleware:?} {subject:?}");
            assert!(response.text().contains(expected.1), "{}", response.text());
        }
    }
}
