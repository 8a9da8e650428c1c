//! Lets a POST request name another method, for clients that can only send POST, such as HTML
//! forms.

use crate::app::guard::query_pairs;
use crate::http::head::RequestHead;
use peregrine_proto::Method;

/// The parts of a POST request that can name another method. Only PUT, PATCH and DELETE are
/// accepted. If the request names any other method, it stays a POST.
///
/// Routes are chosen before the body is read, so a form field cannot name the method. Put the
/// method into the query of the form's `action` URL.
///
/// A page that can make a browser send a POST can then also reach the handlers of PUT, PATCH and
/// DELETE. Protect these methods against cross-site requests as you protect POST.
///
/// ```
/// use peregrine::web::App;
/// use peregrine::web::MethodOverride;
///
/// let app = App::new()
///     .method_override(MethodOverride::new().query("_method").header("x-http-method-override"))
///     .delete("/birds/{id}", || "gone");
/// let client = app.test();
/// assert_eq!(client.post("/birds/7?_method=DELETE").send_blocking().text(), "gone");
/// let post = client.post("/birds/7").header("x-http-method-override", "DELETE");
/// assert_eq!(post.send_blocking().text(), "gone");
/// assert_eq!(client.post("/birds/7").send_blocking().status(), 405);
/// ```
#[derive(Clone, Debug, Default)]
pub struct MethodOverride {
    header: Option<String>,
    query: Option<String>,
}

impl MethodOverride {
    /// Creates an override that reads no part of a request: all requests keep their methods.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the method from this header field, without regard to case. It takes precedence over
    /// the query.
    #[must_use]
    pub fn header(self, name: impl Into<String>) -> Self {
        Self { header: Some(name.into()), ..self }
    }

    /// Reads the method from the query parameter of this name, without regard to case.
    #[must_use]
    pub fn query(self, name: impl Into<String>) -> Self {
        Self { query: Some(name.into()), ..self }
    }

    /// Replaces the method of a POST request with the method that the request names, if any.
    #[cold]
    pub(crate) fn apply(&self, head: &mut RequestHead) {
        let by_header = self.header.as_ref().and_then(|name| parse_method(head.header(name)?));
        let by_query = || {
            let name = self.query.as_ref()?;
            let (_, value) = query_pairs(head).find(|(key, _)| key == name)?;
            parse_method(&value)
        };
        if let Some(method) = by_header.or_else(by_query) {
            head.set_method(method);
        }
    }
}

fn parse_method(name: &str) -> Option<Method> {
    let allowed = [Method::Put, Method::Patch, Method::Delete];
    allowed
        .into_iter()
        .find(|method| method.name().is_some_and(|known| known.eq_ignore_ascii_case(name)))
}
