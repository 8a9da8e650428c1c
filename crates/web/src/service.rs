//! What every part of an application comes down to: a request in, a response out.

use crate::request::Request;
use crate::response::Response;
use peregrine_slot::{FutureSlot, Held, Placed, Pool};
use std::fmt;
use std::rc::Rc;

/// Answers requests. Handlers, whole scopes with their middleware, and applications are services.
///
/// There is no error type: a failure is a response too. There is no readiness: a service that is
/// overloaded answers so.
pub trait Service {
    /// Answers one request. The future need not be `Send`; it is polled on the connection's thread
    /// and dropped when the peer leaves, unless the route says otherwise.
    fn call(&self, request: Request) -> impl Future<Output = Response>;
}

impl<S: Service + ?Sized> Service for Rc<S> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        (**self).call(request)
    }
}

/// A [`Service`] whose type is forgotten. A call costs one indirect jump and puts the future into a
/// slot, so it allocates nothing.
pub(crate) trait Place {
    fn place<'s>(&'s self, slot: &'s mut FutureSlot, request: Request) -> Placed<'s, Response>;
}

impl<S: Service> Place for S {
    fn place<'s>(&'s self, slot: &'s mut FutureSlot, request: Request) -> Placed<'s, Response> {
        slot.place(self.call(request))
    }
}

/// A [`Place`] whose futures may be kept without a borrow.
pub(crate) trait Endpoint: Place {
    /// As `place`. The service is called when the future is polled first.
    fn hold(self: Rc<Self>, slot: FutureSlot, request: Request) -> Held<Response>;
}

impl<S: Service + 'static> Endpoint for S {
    fn hold(self: Rc<Self>, slot: FutureSlot, request: Request) -> Held<Response> {
        slot.hold(async move { self.call(request).await })
    }
}

/// A service whose type is forgotten, as a service again, so that more can go around it. Each call
/// borrows one slot more from the thread's stock.
#[derive(Clone)]
pub struct Erased(pub(crate) Rc<dyn Endpoint>);

impl Erased {
    /// `service` with its type forgotten.
    #[must_use]
    pub fn new<S: Service + 'static>(service: S) -> Self {
        Self(Rc::new(service))
    }
}

impl fmt::Debug for Erased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Erased")
    }
}

impl Service for Erased {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        place_in_stock(&*self.0, request)
    }
}

/// Calls `endpoint` with its future in a slot of the thread's stock.
pub(crate) async fn place_in_stock(endpoint: &dyn Place, request: Request) -> Response {
    let mut slot = StockSlot(Pool::take_local(&SLOTS));
    endpoint.place(&mut slot.0, request).await
}

thread_local! {
    static SLOTS: Pool<FutureSlot> = const { Pool::new(64) };
}

struct StockSlot(FutureSlot);

impl Drop for StockSlot {
    fn drop(&mut self) {
        Pool::give_local(&SLOTS, std::mem::take(&mut self.0));
    }
}
