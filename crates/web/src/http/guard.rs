//! Guards of routes, and the parts of a request that a guard can examine.

use crate::http::client::ClientInfo;
use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use http::HeaderName;
use std::borrow::Cow;
use std::rc::Rc;

/// The parts of a request that a guard can examine: its head and its client. The body has not been
/// read.
#[derive(Clone, Copy, Debug)]
pub struct GuardContext<'r> {
    head: &'r RequestHead,
    connection: &'r ConnectionInfo,
    method: &'r str,
}

impl<'r> GuardContext<'r> {
    pub(crate) fn new(head: &'r RequestHead, connection: &'r ConnectionInfo) -> Self {
        Self { head, connection, method: head.method_str() }
    }

    /// The context for the actual request, which a CORS preflight precedes. `head` is the head of
    /// the preflight, and `method` is the method of the actual request.
    pub(crate) fn preflight(
        head: &'r RequestHead,
        connection: &'r ConnectionInfo,
        method: &'r str,
    ) -> Self {
        Self { head, connection, method }
    }

    /// The request's method. For a CORS preflight, it is the method of the actual request.
    #[must_use]
    pub fn method(&self) -> &'r str {
        self.method
    }

    /// The request's head; for a CORS preflight, that of the preflight itself.
    #[must_use]
    pub fn head(&self) -> &'r RequestHead {
        self.head
    }

    /// The client that sent the request, even through proxies: address, host and scheme.
    #[must_use]
    pub fn client(&self) -> ClientInfo<'r> {
        ClientInfo::new(self.head, self.connection)
    }

    /// The connection on which the request was received.
    #[must_use]
    pub fn connection(&self) -> &'r ConnectionInfo {
        self.connection
    }
}

/// Decides whether a route accepts a request. Every `Fn(&GuardContext) -> bool` is a guard.
///
/// It is called while the route is selected, for every request whose path matches, and possibly
/// more than once for one request. It must be cheap and have no side effects.
pub trait Guard {
    /// Whether the route accepts this request.
    #[doc(alias = "accepts")]
    fn check(&self, context: &GuardContext<'_>) -> bool;

    /// A description of what the guard requires, for lists of routes.
    #[doc(alias = "name")]
    fn description(&self) -> Cow<'_, str> {
        Cow::Borrowed("a condition holds")
    }

    /// The header fields that the guard examines. `None` if they are not known, or if the guard
    /// examines anything other than header fields, method, host, scheme, path and query. Responses
    /// name the fields in `Vary`, so that no cache serves one route's response for another. If the
    /// result is `None`, as for closures, the responses of all routes that the guard may select or
    /// reject have `Vary: *` and are never stored. [`varying_by`](crate::guard::varying_by)
    /// declares the fields of a closure.
    fn header_names(&self) -> Option<&[HeaderName]> {
        None
    }

    /// A value such that guards with equal values accept the same requests; `None` if there is
    /// none. With such a value, start-up can report a route as unreachable because an earlier route
    /// has an equal guard.
    fn equality_key(&self) -> Option<Cow<'_, str>> {
        None
    }
}

impl<F: Fn(&GuardContext<'_>) -> bool> Guard for F {
    fn check(&self, context: &GuardContext<'_>) -> bool {
        self(context)
    }
}

impl RequestHead {
    /// Records the fields that these guards examine.
    pub(crate) fn record_guards(&self, guards: &[Rc<dyn Guard>]) {
        guards.iter().for_each(|guard| self.selection().guards.record(guard.header_names()));
    }
}
