//! Header fields that every response should have, or should not.

use http::header::{
    REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderName, HeaderValue};
use peregrine_web::{Middleware, Request, Response, Service};

/// Sets and removes header fields of all responses from inside, in the order of the calls.
///
/// ```
/// use peregrine::http::{HeaderName, HeaderValue, header};
/// use peregrine::middleware::ResponseHeaders;
/// use peregrine::App;
///
/// let headers = ResponseHeaders::security()
///     .set_default(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
///     .remove(header::SERVER);
/// let client = App::new().with(headers).get("/", || "hello").test();
/// let response = client.get("/").send_now();
/// assert_eq!(response.header("cache-control"), Some("no-store"));
/// assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ResponseHeaders {
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
struct Change {
    name: HeaderName,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Set(HeaderValue),
    SetDefault(HeaderValue),
    /// As `SetDefault`, for responses on encrypted connections.
    SetDefaultOnTls(HeaderValue),
    Remove,
}

impl ResponseHeaders {
    /// No changes.
    #[must_use]
    pub const fn new() -> Self {
        Self { changes: Vec::new() }
    }

    /// Fields that browsers should get by default. A handler that sets one of these fields itself keeps
    /// its own value.
    ///
    /// | field | value | tells the browser |
    /// |---|---|---|
    /// | `X-Content-Type-Options` | `nosniff` | to believe the `Content-Type` |
    /// | `X-Frame-Options` | `DENY` | that no page may frame this one |
    /// | `Referrer-Policy` | `strict-origin-when-cross-origin` | to tell others no paths |
    /// | `Cross-Origin-Opener-Policy` | `same-origin` | to keep windows of others apart |
    /// | `Cross-Origin-Resource-Policy` | `same-origin` | that only this site may embed this |
    /// | `Strict-Transport-Security` | `max-age=31536000` (one year) | to come back by TLS only |
    ///
    /// The last is sent on encrypted connections only (RFC 6797 §7.2). There is no
    /// `Content-Security-Policy`, because only a page's author knows what it may load.
    #[must_use]
    pub fn security() -> Self {
        let value = HeaderValue::from_static;
        let opener = HeaderName::from_static("cross-origin-opener-policy");
        let resource = HeaderName::from_static("cross-origin-resource-policy");
        Self::new()
            .set_default(X_CONTENT_TYPE_OPTIONS, value("nosniff"))
            .set_default(X_FRAME_OPTIONS, value("DENY"))
            .set_default(REFERRER_POLICY, value("strict-origin-when-cross-origin"))
            .set_default(opener, value("same-origin"))
            .set_default(resource, value("same-origin"))
            .change(STRICT_TRANSPORT_SECURITY, Action::SetDefaultOnTls(value("max-age=31536000")))
    }

    /// Sets the field `name`, replacing the response's fields of that name.
    #[must_use]
    pub fn set(self, name: HeaderName, value: HeaderValue) -> Self {
        self.change(name, Action::Set(value))
    }

    /// Sets the field `name` of responses that do not have it.
    #[must_use]
    pub fn set_default(self, name: HeaderName, value: HeaderValue) -> Self {
        self.change(name, Action::SetDefault(value))
    }

    /// Removes every field called `name`. Fields that the server writes itself (`Date`,
    /// `Content-Length`, `Transfer-Encoding`, `Connection`) are not there yet, so they stay.
    #[must_use]
    pub fn remove(self, name: HeaderName) -> Self {
        self.change(name, Action::Remove)
    }

    fn change(mut self, name: HeaderName, action: Action) -> Self {
        self.changes.push(Change { name, action });
        self
    }
}

impl Middleware for ResponseHeaders {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let on_tls = request.client().is_secure();
        let mut response = next.call(request).await;
        let fields = &mut response.fields;
        for Change { name, action } in &self.changes {
            match action {
                Action::Set(value) => fields.set(name.clone(), value.clone()),
                Action::SetDefault(value) => fields.set_default(name.clone(), value.clone()),
                Action::SetDefaultOnTls(value) if on_tls => {
                    fields.set_default(name.clone(), value.clone());
                }
                Action::SetDefaultOnTls(_) => {}
                Action::Remove => fields.remove(name),
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::{ETAG, VARY};
    use peregrine_web::App;
    use peregrine_web::connection::ConnectionInfo;
    use peregrine_web::test::TestClient;

    fn client(headers: ResponseHeaders) -> TestClient {
        App::new().with(headers).get("/", || [("etag", "own"), ("x-frame-options", "ALLOW")]).test()
    }

    #[test]
    fn set_replaces_default_gives_way_and_remove_removes() {
        let value = HeaderValue::from_static;
        let all = |headers| {
            let response = client(headers).get("/").send_now();
            (response.field("etag").map(str::to_owned), response.field("vary").map(str::to_owned))
        };
        let new = ResponseHeaders::new;
        assert_eq!(all(new().set(ETAG, value("new"))), (Some("new".into()), None));
        assert_eq!(all(new().set_default(ETAG, value("new"))), (Some("own".into()), None));
        let both = new().set_default(VARY, value("accept")).remove(ETAG);
        assert_eq!(all(both), (None, Some("accept".into())));
    }

    #[test]
    fn a_response_without_a_route_has_the_fields_too() {
        let response = client(ResponseHeaders::security()).get("/nowhere").send_now();
        assert_eq!(response.status(), 404);
        assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
    }

    #[test]
    fn the_security_preset_gives_way_to_the_handler_and_promises_tls_only_on_tls() {
        let plain = client(ResponseHeaders::security());
        let response = plain.get("/").send_now();
        assert_eq!(response.field("x-frame-options"), Some("ALLOW"));
        assert_eq!(response.field("referrer-policy"), Some("strict-origin-when-cross-origin"));
        assert_eq!(response.field("strict-transport-security"), None);
        let tls =
            ConnectionInfo { tls: Some(std::sync::Arc::default()), ..ConnectionInfo::default() };
        let response = plain.on(tls).get("/").send_now();
        assert_eq!(response.field("strict-transport-security"), Some("max-age=31536000"));
    }
}
