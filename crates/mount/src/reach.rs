//! Calling a tower service: waiting until it is ready, and whose place in a queue is whose.

use crate::body::SendBody;
use crate::response::BoxError;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;
use tower_service::Service;

/// Why there is no response.
#[derive(Debug)]
pub enum Failure {
    /// The service failed before it was called.
    NotReady(BoxError),
    /// The call failed.
    Failed(BoxError),
}

/// How a request gets to a service. Implemented by [`Direct`] and [`PerPeer`] only.
pub trait Reach: Clone + 'static + sealed::Sealed {
    /// The body of responses.
    type Body: HttpBody<Error: Into<BoxError>> + 'static;

    /// Waits until the service is ready, then calls it.
    fn reach(
        &self,
        request: http::Request<SendBody>,
        connection: &ConnectionInfo,
    ) -> impl Future<Output = Result<http::Response<Self::Body>, Failure>>;
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

    async fn reach(
        &self,
        request: http::Request<SendBody>,
        _: &ConnectionInfo,
    ) -> Result<http::Response<B>, Failure> {
        call_shared(&self.0, request).await
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

    async fn reach(
        &self,
        request: http::Request<SendBody>,
        connection: &ConnectionInfo,
    ) -> Result<http::Response<B>, Failure> {
        // A Unix socket has no address; a service that insists on one gets the one that means none.
        let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let peer = connection.peer.tcp().unwrap_or(nobody);
        let mut service = call_shared(&self.0, peer).await?;
        poll_fn(|context| service.poll_ready(context))
            .await
            .map_err(|error| Failure::NotReady(error.into()))?;
        service.call(request).await.map_err(|error| Failure::Failed(error.into()))
    }
}

/// Calls a service that all requests share, once it is ready.
///
/// One that is ready at once is called without being cloned. If it is not, the request keeps the
/// one that it asked and leaves a fresh clone: what waits in an instance (a place in a queue, a
/// permit, a waker) belongs to who asked it, and nobody else may take or forget it.
pub(crate) async fn call_shared<S, T>(
    shared: &RefCell<S>,
    request: T,
) -> Result<S::Response, Failure>
where
    S: Service<T, Error: Into<BoxError>> + Clone,
{
    let ready = poll_fn(|context| Poll::Ready(shared.borrow_mut().poll_ready(context))).await;
    let call = match ready {
        Poll::Ready(Ok(())) => shared.borrow_mut().call(request),
        not_ready => {
            let fresh = shared.borrow().clone();
            let mut own = shared.replace(fresh);
            let ready = match not_ready {
                Poll::Ready(result) => result,
                Poll::Pending => poll_fn(|context| own.poll_ready(context)).await,
            };
            ready.map_err(|error| Failure::NotReady(error.into()))?;
            own.call(request)
        }
    };
    call.await.map_err(|error| Failure::Failed(error.into()))
}
