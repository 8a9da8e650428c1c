//! The trait of guards, and what a guard sees of a request.

use crate::http::client::Client;
use crate::http::connection::ConnectionInfo;
use crate::http::head::Head;
use http::HeaderName;
use std::borrow::Cow;
use std::rc::Rc;

/// What a guard sees of a request: its head, and who sent it. The body has not been read.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'r> {
    head: &'r Head,
    connection: &'r ConnectionInfo,
    method: &'r str,
}

impl<'r> Asked<'r> {
    pub(crate) fn new(head: &'r Head, connection: &'r ConnectionInfo) -> Self {
        Self { head, connection, method: head.method_name() }
    }

    /// The request that the preflight `head` announces with `method`.
    pub(crate) fn announced(
        head: &'r Head,
        connection: &'r ConnectionInfo,
        method: &'r str,
    ) -> Self {
        Self { head, connection, method }
    }

    /// The request's method. For a preflight of CORS it is the one that the preflight announces.
    #[must_use]
    pub fn method(&self) -> &'r str {
        self.method
    }

    /// The request's head.
    #[must_use]
    pub fn head(&self) -> &'r Head {
        self.head
    }

    /// Who sent the request, behind proxies too: address, host, scheme.
    #[must_use]
    pub fn client(&self) -> Client<'r> {
        Client::of(self.head, self.connection)
    }

    /// The connection that the request came on.
    #[must_use]
    pub fn connection(&self) -> &'r ConnectionInfo {
        self.connection
    }
}

/// Decides whether a route answers a request. Every `Fn(&Asked) -> bool` is one.
///
/// It is called while the route is looked for, perhaps more than once for a request, and on the path of every
/// request that comes near: let it be cheap, and let it have no effect.
pub trait Guard {
    /// Does the route answer this request?
    fn accepts(&self, asked: &Asked<'_>) -> bool;

    /// What it asks for, in lists of routes.
    fn name(&self) -> Cow<'_, str> {
        Cow::Borrowed("a condition holds")
    }

    /// The fields of requests that it looks at, if all else is method, host, scheme, path and
    /// query; `None` if nobody knows. By this, responses have `Vary`, and no cache gives one
    /// route's response for another. Where it is `None`, as for closures, responses of the routes
    /// that it decides about have `Vary: *` and are never stored:
    /// [`varying_by`](crate::guard::varying_by) says it for a closure.
    fn fields(&self) -> Option<&[HeaderName]> {
        None
    }

    /// What it accepts, in a form in which guards that accept the same are equal; `None` if nobody knows. By this a
    /// route that no request comes to, since another one before it takes them all, is an error at start.
    fn identity(&self) -> Option<Cow<'_, str>> {
        None
    }
}

impl<F: Fn(&Asked<'_>) -> bool> Guard for F {
    fn accepts(&self, asked: &Asked<'_>) -> bool {
        self(asked)
    }
}

impl Head {
    /// Notes what these guards look at.
    pub(crate) fn note_guards(&self, guards: &[Rc<dyn Guard>]) {
        guards.iter().for_each(|guard| self.selection().guards.note(guard.fields()));
    }
}
