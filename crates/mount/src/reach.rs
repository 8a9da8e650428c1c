//! Calling a tower service: waiting until it is ready, and whose place in a queue is whose.

use crate::body::SendBody;
use crate::response::BoxError;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// Why there is no response.
#[derive(Debug)]
pub enum Failure {
    /// The service failed before it was called.
    NotReady(BoxError),
    /// The call failed.
    Failed(BoxError),
}

/// A call that has begun, or that has to wait for its service.
pub enum Begun<'r, C, B> {
    /// The service was ready and was called.
    Called(C),
    /// It was not, and will be called when it is.
    Waiting(Waiting<'r, B>),
}

/// The future of a call whose service was not ready at once. It is boxed because it is rare: all
/// other requests would have to keep room for it.
pub type Waiting<'r, B> = Pin<Box<dyn Future<Output = Result<http::Response<B>, Failure>> + 'r>>;

/// How a request gets to a service. Implemented by [`Direct`] and [`PerPeer`] only.
pub trait Reach: Clone + 'static + sealed::Sealed {
    /// The body of responses.
    type Body: HttpBody<Error: Into<BoxError>> + 'static;

    /// A call of a service that was ready at once.
    type Call: Future<Output = Result<http::Response<Self::Body>, Self::Error>>;

    /// Why a call fails.
    type Error: Into<BoxError>;

    /// Calls the service if it is ready, else begins to wait for it.
    fn begin(
        &self,
        request: http::Request<SendBody>,
        connection: &ConnectionInfo,
        context: &mut Context<'_>,
    ) -> Begun<'_, Self::Call, Self::Body>;
}

mod sealed {
    pub trait Sealed {}
    impl<S> Sealed for super::Direct<S> {}
    impl<M> Sealed for super::PerPeer<M> {}
}

/// One service for all requests of a worker.
#[derive(Clone, Debug)]
pub struct Direct<S>(RefCell<S>);

impl<S> Direct<S> {
    pub(crate) fn new(service: S) -> Self {
        Self(RefCell::new(service))
    }
}

impl<S, B> Reach for Direct<S>
where
    S: Service<http::Request<SendBody>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Body = B;
    type Call = S::Future;
    type Error = S::Error;

    fn begin(
        &self,
        request: http::Request<SendBody>,
        _: &ConnectionInfo,
        context: &mut Context<'_>,
    ) -> Begun<'_, S::Future, B> {
        begin_shared(&self.0, request, context)
    }
}

/// A service for each request, made for the peer's address. Under hyper there is one for each
/// connection; one that counts requests would count differently here.
#[derive(Clone, Debug)]
pub struct PerPeer<M>(RefCell<M>);

impl<M> PerPeer<M> {
    pub(crate) fn new(make: M) -> Self {
        Self(RefCell::new(make))
    }
}

impl<M, S, B> Reach for PerPeer<M>
where
    M: Service<SocketAddr, Response = S, Error = Infallible> + Clone + 'static,
    S: Service<http::Request<SendBody>, Response = http::Response<B>> + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Body = B;
    type Call = S::Future;
    type Error = S::Error;

    fn begin(
        &self,
        request: http::Request<SendBody>,
        connection: &ConnectionInfo,
        _: &mut Context<'_>,
    ) -> Begun<'_, S::Future, B> {
        // A Unix socket has no address; a service that insists on one gets the one that means none.
        let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let peer = connection.peer.tcp().unwrap_or(nobody);
        let fresh = self.0.borrow().clone();
        Begun::Waiting(Box::pin(async move {
            let Ok(mut service) = call(fresh, peer).await?;
            ready(&mut service).await?;
            service.call(request).await.map_err(|error| Failure::Failed(error.into()))
        }))
    }
}

/// Calls a service that all requests share, or begins to wait for it.
///
/// One that is ready at once is called without being cloned. If it is not, the request keeps the
/// one that it asked and leaves a fresh clone: what waits in an instance (a place in a queue, a
/// permit, a waker) belongs to who asked it, and nobody else may take or forget it.
pub(crate) fn begin_shared<'r, S, T, B>(
    shared: &'r RefCell<S>,
    request: T,
    context: &mut Context<'_>,
) -> Begun<'r, S::Future, B>
where
    S: Service<T, Response = http::Response<B>, Error: Into<BoxError>> + Clone + 'static,
    T: 'static,
{
    let polled = shared.borrow_mut().poll_ready(context);
    if let Poll::Ready(Ok(())) = polled {
        return Begun::Called(shared.borrow_mut().call(request));
    }
    let fresh = shared.borrow().clone();
    let own = shared.replace(fresh);
    Begun::Waiting(Box::pin(async move {
        if let Poll::Ready(Err(error)) = polled {
            return Err(Failure::NotReady(error.into()));
        }
        call(own, request).await?.map_err(|error| Failure::Failed(error.into()))
    }))
}

/// Waits for a service and calls it.
async fn call<S, T>(mut service: S, request: T) -> Result<Result<S::Response, S::Error>, Failure>
where
    S: Service<T, Error: Into<BoxError>>,
{
    ready(&mut service).await?;
    Ok(service.call(request).await)
}

async fn ready<S, T>(service: &mut S) -> Result<(), Failure>
where
    S: Service<T, Error: Into<BoxError>>,
{
    let ready = poll_fn(|context| service.poll_ready(context)).await;
    ready.map_err(|error| Failure::NotReady(error.into()))
}

impl<C, B> fmt::Debug for Begun<'_, C, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Called(_) => "Called",
            Self::Waiting(_) => "Waiting",
        })
    }
}
