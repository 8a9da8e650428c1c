//! The interface of every part of an application: a service receives a request and returns a
//! response.

use crate::http::request::Request;
use crate::http::response::Response;
use peregrine_slot::{FutureSlot, PinnedFuture, Pool};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Handles requests. Handlers, scopes with their middleware, and applications are services.
///
/// Failures are responses too, so there is no error type. An overloaded service can respond with an
/// error, so there is no readiness check.
pub trait Service {
    /// Handles one request. The future need not be `Send`. It is polled on the connection's thread,
    /// and dropped when the client disconnects, unless the route says otherwise.
    fn call(&self, request: Request) -> impl Future<Output = Response>;

    /// As [`Service::call`], but stores the future in `slot`. [`ErasedService`] overrides this to
    /// pass `slot` to the service that it contains. With the default implementation, `slot` would
    /// contain only a call whose future is in a second slot.
    #[doc(hidden)]
    fn call_in<'s>(&'s self, slot: FutureSlot, request: Request) -> PinnedFuture<'s, Response> {
        slot.pin(self.call(request))
    }
}

impl<S: Service + ?Sized> Service for Rc<S> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        (**self).call(request)
    }
}

/// A [`Service`] whose type is erased. A call costs one indirect jump and stores the future in a
/// slot, so it allocates nothing once the slot is large enough.
pub(crate) trait DynService {
    fn call_dyn<'s>(&'s self, slot: FutureSlot, request: Request) -> PinnedFuture<'s, Response>;
}

impl<S: Service> DynService for S {
    fn call_dyn<'s>(&'s self, slot: FutureSlot, request: Request) -> PinnedFuture<'s, Response> {
        self.call_in(slot, request)
    }
}

/// A [`DynService`] that can also return futures that do not borrow it, so that the server can
/// store them.
pub(crate) trait Endpoint: DynService {
    /// As [`DynService::call_dyn`], but the service is called when the future is first polled.
    fn call_owned(
        self: Rc<Self>,
        slot: FutureSlot,
        request: Request,
    ) -> PinnedFuture<'static, Response>;
}

impl<S: Service + 'static> Endpoint for S {
    fn call_owned(
        self: Rc<Self>,
        slot: FutureSlot,
        request: Request,
    ) -> PinnedFuture<'static, Response> {
        slot.pin(async move { self.call(request).await })
    }
}

/// A type-erased service. It is a [`Service`] itself, so it can be wrapped again. Each
/// [`Service::call`] takes a slot for the inner future from the thread's pool.
#[doc(alias = "BoxService")]
#[doc(alias = "BoxCloneService")]
#[derive(Clone)]
pub struct ErasedService(pub(crate) Rc<dyn Endpoint>);

impl ErasedService {
    /// Erases the type of `service`.
    #[must_use]
    pub fn new<S: Service + 'static>(service: S) -> Self {
        Self(Rc::new(service))
    }
}

impl fmt::Debug for ErasedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErasedService")
    }
}

impl Service for ErasedService {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        call_pooled(&*self.0, request)
    }

    fn call_in<'s>(&'s self, slot: FutureSlot, request: Request) -> PinnedFuture<'s, Response> {
        self.0.call_dyn(slot, request)
    }
}

/// Calls `endpoint` immediately and stores its future in a slot from the thread's pool.
pub(crate) fn call_pooled(endpoint: &dyn DynService, request: Request) -> PooledCall<'_> {
    PooledCall(endpoint.call_dyn(Pool::get_local(&SLOTS), request))
}

thread_local! {
    static SLOTS: Pool<FutureSlot> = const { Pool::new(64) };
}

/// A call whose slot returns to the thread's pool.
pub(crate) struct PooledCall<'s>(PinnedFuture<'s, Response>);

impl Future for PooledCall<'_> {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Drop for PooledCall<'_> {
    fn drop(&mut self) {
        Pool::put_local(&SLOTS, self.0.take_slot());
    }
}
