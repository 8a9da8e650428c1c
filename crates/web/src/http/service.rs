//! The interface of every part of an application: it takes a request and returns a response.

use crate::http::request::Request;
use crate::http::response::Response;
use peregrine_slot::{FutureSlot, Held, Pool};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Answers requests. Handlers, scopes with their middleware, and applications are services.
///
/// Failures are responses too, so there is no error type. An overloaded service can respond with an
/// error, so there is no readiness check.
pub trait Service {
    /// Answers one request. The future need not be `Send`. It is polled on the connection's thread,
    /// and dropped when the client disconnects, unless the route says otherwise.
    fn call(&self, request: Request) -> impl Future<Output = Response>;

    /// As [`Service::call`], with the future in `slot`. A service whose type is already erased
    /// needs no second slot.
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

/// A [`Service`] whose type is erased. A call costs one indirect jump and stores the future in a
/// slot, so it allocates nothing.
pub(crate) trait Place {
    fn place<'s>(&'s self, slot: FutureSlot, request: Request) -> Held<'s, Response>;
}

impl<S: Service> Place for S {
    fn place<'s>(&'s self, slot: FutureSlot, request: Request) -> Held<'s, Response> {
        self.call_in(slot, request)
    }
}

/// A [`Place`] whose futures can be stored, because they do not borrow it.
pub(crate) trait Endpoint: Place {
    /// As [`Place::place`], but the service is called when the future is first polled.
    fn hold(self: Rc<Self>, slot: FutureSlot, request: Request) -> Held<'static, Response>;
}

impl<S: Service + 'static> Endpoint for S {
    fn hold(self: Rc<Self>, slot: FutureSlot, request: Request) -> Held<'static, Response> {
        slot.hold(async move { self.call(request).await })
    }
}

/// A type-erased service that can be wrapped again, because it is a [`Service`] too. Each call
/// takes one more slot from the thread's pool.
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

/// Calls `endpoint` immediately, with its future in a slot of the thread's pool.
pub(crate) fn place_in_stock(endpoint: &dyn Place, request: Request) -> InStock<'_> {
    InStock(endpoint.place(Pool::take_local(&SLOTS), request))
}

thread_local! {
    static SLOTS: Pool<FutureSlot> = const { Pool::new(64) };
}

/// A call whose slot returns to the thread's pool.
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
