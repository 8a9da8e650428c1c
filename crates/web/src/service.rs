//! What every part of an application comes down to: a request in, a response out.

use crate::request::Request;
use crate::response::Response;

/// Answers requests. Handlers, whole scopes with their middleware, and applications are services.
///
/// There is no error type: a failure is a response too. There is no readiness: a service that is
/// overloaded answers so.
pub trait Service {
    /// Answers one request. The future need not be `Send`; it is polled on the connection's thread
    /// and dropped when the peer leaves, unless the route says otherwise.
    fn call(&self, request: Request) -> impl Future<Output = Response>;
}

impl<S: Service + ?Sized> Service for std::rc::Rc<S> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        (**self).call(request)
    }
}
