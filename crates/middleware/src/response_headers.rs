//! Sets and removes response header fields.

use http::{HeaderName, HeaderValue};
use peregrine_web::{Middleware, Request, Response, Service};

/// Sets and removes header fields of all responses that pass through it, in the order in which they
/// are configured. For the fields with which browsers protect a site, use `SecurityHeaders`
/// (feature `security-headers`).
///
/// ```
/// use peregrine::http::{HeaderValue, header};
/// use peregrine::middleware::ResponseHeaders;
/// use peregrine::App;
///
/// let headers = ResponseHeaders::new()
///     .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
///     .insert_if_not_present(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
///     .remove(header::SERVER);
/// let client = App::new().wrap(headers).get("/", || "hello").test();
/// let response = client.get("/").send_blocking();
/// assert_eq!(response.header("cache-control"), Some("no-store"));
/// assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
/// ```
#[doc(alias = "SetResponseHeader")]
#[derive(Clone, Debug, Default)]
pub struct ResponseHeaders {
    changes: Vec<HeaderChange>,
}

#[derive(Clone, Debug)]
struct HeaderChange {
    name: HeaderName,
    action: HeaderAction,
}

#[derive(Clone, Debug)]
enum HeaderAction {
    Insert(HeaderValue),
    InsertIfNotPresent(HeaderValue),
    Remove,
}

impl ResponseHeaders {
    /// Creates a middleware without changes.
    #[must_use]
    pub const fn new() -> Self {
        Self { changes: Vec::new() }
    }

    /// Sets the field `name`, replacing the response's fields of that name.
    #[doc(alias = "overriding")]
    #[doc(alias = "SetResponseHeader")]
    #[doc(alias = "add_header")]
    #[must_use]
    pub fn insert(self, name: HeaderName, value: HeaderValue) -> Self {
        self.change(name, HeaderAction::Insert(value))
    }

    /// Sets the field `name` of responses that do not have it.
    #[doc(alias = "if_not_present")]
    #[must_use]
    pub fn insert_if_not_present(self, name: HeaderName, value: HeaderValue) -> Self {
        self.change(name, HeaderAction::InsertIfNotPresent(value))
    }

    /// Removes every field called `name`. Fields that the server writes itself (`Date`,
    /// `Content-Length`, `Transfer-Encoding`, `Connection`) are added later, so they stay.
    #[must_use]
    pub fn remove(self, name: HeaderName) -> Self {
        self.change(name, HeaderAction::Remove)
    }

    fn change(mut self, name: HeaderName, action: HeaderAction) -> Self {
        self.changes.push(HeaderChange { name, action });
        self
    }
}

impl Middleware for ResponseHeaders {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        let mut response = next.call(request).await;
        let fields = &mut response.headers;
        for HeaderChange { name, action } in &self.changes {
            match action {
                HeaderAction::Insert(value) => fields.insert(name.clone(), value.clone()),
                HeaderAction::InsertIfNotPresent(value) => {
                    fields.insert_if_not_present(name.clone(), value.clone())
                }
                HeaderAction::Remove => fields.remove(name),
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
    use peregrine_web::testing::TestClient;

    fn client(headers: ResponseHeaders) -> TestClient {
        App::new().wrap(headers).get("/", || [("etag", "own"), ("x-frame-options", "ALLOW")]).test()
    }

    #[test]
    fn insert_replaces_but_insert_if_not_present_does_not() {
        let value = HeaderValue::from_static;
        let etag_and_vary = |headers| {
            let response = client(headers).get("/").send_blocking();
            (response.field("etag").map(str::to_owned), response.field("vary").map(str::to_owned))
        };
        let new = ResponseHeaders::new;
        assert_eq!(etag_and_vary(new().insert(ETAG, value("new"))), (Some("new".into()), None));
        assert_eq!(
            etag_and_vary(new().insert_if_not_present(ETAG, value("new"))),
            (Some("own".into()), None)
        );
        let both = new().insert_if_not_present(VARY, value("accept")).remove(ETAG);
        assert_eq!(etag_and_vary(both), (None, Some("accept".into())));
    }

    #[test]
    fn a_response_without_a_route_has_the_fields_too() {
        let headers =
            ResponseHeaders::new().insert_if_not_present(VARY, HeaderValue::from_static("accept"));
        let response = client(headers).get("/nowhere").send_blocking();
        assert_eq!(response.status(), 404);
        assert_eq!(response.field("vary"), Some("accept"));
    }
}
