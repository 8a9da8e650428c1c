//! The interface beneath every part of an application: a request in, a response out.

use crate::http::request::Request;
use crate::http::response::Response;
use peregrine_slot::{FutureSlot, Held, Pool};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Answers requests. Handlers, whole scopes with their middleware, and applications are services.
///
/// There is no error type: a failure is a response too. There is no readiness check: an overloaded
/// service answers so.
pub trait Service {
    /// Answers one request. The future need not be `Send`; it is polled on the connection's thread
    /// and dropped when the peer leaves, unless the route says otherwise.
    fn call(&self, request: Request) -> impl Future<Output = Response>;

    /// `call`, with its future in `slot`. A service whose type is already erased needs no second slot.
    #[doc(hidden)]
    fn call_in<'s>(&'s self, slot: FutureSlot, request: Request) -> Held<'s, Response> {
        slot.hold(self.call(request))
    }
}

impl<S: Service + ?Sized> Service for Rc<S> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        (**self).call(request)
    }
}

/// A [`Service`] whose type is erased. A call costs one indirect jump and puts the future into a slot,
/// so it allocates nothing.
pub(crate) trait Place {
    fn place<'s>(&'s self, slot: FutureSlot, request: Request) -> Held<'s, Response>;
}

impl<S: Service> Place for S {
    fn place<'s>(&'s self, slot: FutureSlot, request: Request) -> Held<'s, Response> {
        self.call_in(slot, request)
    }
}

/// A [`Place`] whose futures may be kept without a borrow.
pub(crate) trait Endpoint: Place {
    /// As `place`. The service is called when the future is first polled.
    fn hold(self: Rc<Self>, slot: FutureSlot, request: Request) -> Held<'static, Response>;
}

impl<S: Service + 'static> Endpoint for S {
    fn hold(self: Rc<Self>, slot: FutureSlot, request: Request) -> Held<'static, Response> {
        slot.hold(async move { self.call(request).await })
    }
}

/// A service whose type is erased, as a service again, so that more can go around it. Each call borrows
/// one more slot from the thread's stock.
#[derive(Clone)]
pub struct Erased(pub(crate) Rc<dyn Endpoint>);

impl Erased {
    /// `service` with its type erased.
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

    fn call_in<'s>(&'s self, slot: FutureSlot, request: Request) -> Held<'s, Response> {
        self.0.place(slot, request)
    }
}

/// Calls `endpoint` at once, with its future in a slot of the thread's stock.
pub(crate) fn place_in_stock(endpoint: &dyn Place, request: Request) -> InStock<'_> {
    InStock(endpoint.place(Pool::take_local(&SLOTS), request))
}

thread_local! {
    static SLOTS: Pool<FutureSlot> = const { Pool::new(64) };
}

/// A call whose slot goes back to the thread's stock.
pub(crate) struct InStock<'s>(Held<'s, Response>);

impl Future for InStock<'_> {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Drop for InStock<'_> {
    fn drop(&mut self) {
        Pool::give_local(&SLOTS, self.0.take_slot());
    }
}
