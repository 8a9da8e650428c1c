//! Another method than the one that was sent: for clients that can only send POST, such as forms of HTML.

use crate::app::guard::pairs;
use crate::http::head::Head;
use peregrine_proto::Method;

/// Where a POST request may say which method is meant. Only PUT, PATCH and DELETE can be; anything else leaves it a POST.
///
/// The route is looked for before content is read, so that a field of a form cannot say it: put it into the query of the
/// form's action.
///
/// Whoever can make a browser send a POST can then make it send a DELETE: what guards the one against requests of other
/// sites has to guard the others.
///
/// ```
/// use peregrine::web::App;
/// use peregrine::web::method_override::MethodOverride;
///
/// let app = App::new()
///     .method_override(MethodOverride::new().query("_method").header("x-http-method-override"))
///     .delete("/birds/{id}", || "gone");
/// let client = app.test();
/// assert_eq!(client.post("/birds/7?_method=DELETE").send_now().text(), "gone");
/// assert_eq!(client.post("/birds/7").header("x-http-method-override", "DELETE").send_now().text(), "gone");
/// assert_eq!(client.post("/birds/7").send_now().status(), 405);
/// ```
#[derive(Clone, Debug, Default)]
pub struct MethodOverride {
    header: Option<String>,
    query: Option<String>,
}

impl MethodOverride {
    /// Nowhere yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A field of this name says the method, in any case. It goes before the query.
    #[must_use]
    pub fn header(self, name: impl Into<String>) -> Self {
        Self { header: Some(name.into()), ..self }
    }

    /// The query says the method by this name, in any case.
    #[must_use]
    pub fn query(self, name: impl Into<String>) -> Self {
        Self { query: Some(name.into()), ..self }
    }

    /// Gives the head of a POST request the method that it says.
    #[cold]
    pub(crate) fn apply(&self, head: &mut Head) {
        let by_header = self.header.as_ref().and_then(|name| method(head.field_text(name)?));
        let by_query = || {
            let name = self.query.as_ref()?;
            let (_, value) = pairs(head).find(|(one, _)| one == name)?;
            method(&value)
        };
        if let Some(said) = by_header.or_else(by_query) {
            head.set_method(said);
        }
    }
}

fn method(said: &str) -> Option<Method> {
    let all = [Method::Put, Method::Patch, Method::Delete];
    all.into_iter().find(|one| one.name().is_some_and(|name| name.eq_ignore_ascii_case(said)))
}
