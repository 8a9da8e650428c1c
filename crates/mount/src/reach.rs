//! Calling a tower service: waiting until it is ready, and keeping places in a queue apart.

use crate::body::SendBody;
use crate::error::BoxError;
use crate::facts::Caller;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::panics::contained;
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// The future of a call whose service was not ready at once. It is boxed because it is rare: otherwise
/// every request would have to keep room for it.
pub type Waiting<'r, B> = Pin<Box<dyn Future<Output = Result<http::Response<B>, Failure>> + 'r>>;

/// How a request reaches a service. Implemented by [`Direct`] and [`PerPeer`] only.
pub trait Reach: Clone + 'static + sealed::Sealed {
    /// The body of responses.
    type Body: HttpBody<Error: Into<BoxError>> + 'static;

    /// A call to a service that was ready at once.
    type Call: Future<Output = Result<http::Response<Self::Body>, Self::Error>>;

    /// The error of a failed call.
    type Error: Into<BoxError>;

    /// Asks whether a request may be passed to the service at once.
    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// Calls the service, which was just found ready.
    fn call(&self, request: http::Request<SendBody>) -> Self::Call;

    /// Calls the service when it is ready; `polled` is the answer it just gave.
    fn wait(
        &self,
        polled: Poll<Result<(), Self::Error>>,
        request: http::Request<SendBody>,
        connection: &Rc<ConnectionInfo>,
    ) -> Waiting<'_, Self::Body>;
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

    /// Asks the service that all requests share. If it is ready, it is called without being cloned.
    pub(crate) fn poll_shared<T>(&self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<T>,
    {
        self.0.borrow_mut().poll_ready(context)
    }

    /// Calls the service, which was just found ready.
    pub(crate) fn call_shared<T>(&self, request: T) -> S::Future
    where
        S: Service<T>,
    {
        self.0.borrow_mut().call(request)
    }

    /// Waits for the service and calls it.
    ///
    /// The request keeps the instance that was asked and leaves a fresh clone: what waits in an
    /// instance (a place in a queue, a permit, a waker) belongs to the request that asked, and no other
    /// may take or forget it.
    pub(crate) fn wait_apart<'r, T, B>(
        &self,
        polled: Poll<Result<(), S::Error>>,
        request: T,
    ) -> Waiting<'r, B>
    where
        S: Service<T, Response = http::Response<B>, Error: Into<BoxError>> + Clone + 'r,
        T: 'r,
        B: 'r,
    {
        let fresh = self.0.borrow().clone();
        let own = self.0.replace(fresh);
        let failed = match polled {
            Poll::Ready(Err(error)) => Some(error.into()),
            _ => None,
        };
        Box::pin(async move {
            match failed {
                Some(error) => Err(Failure::NotReady(error)),
                None => call(own, request).await,
            }
        })
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

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.poll_shared(context)
    }

    fn call(&self, request: http::Request<SendBody>) -> S::Future {
        self.call_shared(request)
    }

    fn wait(
        &self,
        polled: Poll<Result<(), S::Error>>,
        request: http::Request<SendBody>,
        _: &Rc<ConnectionInfo>,
    ) -> Waiting<'_, B> {
        self.wait_apart(polled, request)
    }
}

/// A service for each connection, made for the peer's address when its first request arrives, as under
/// hyper. Each request gets a clone. On a connection of a trusted proxy, each request gets one that is made
/// for its client's address.
pub struct PerPeer<M> {
    make: RefCell<M>,
    /// Distinguishes what this one keeps from what others on the same thread keep.
    number: u64,
}

thread_local! {
    /// Values passed to workers must be `Send`, so they cannot hold anything that knows of connections.
    /// Values kept in connections may travel with a copy of their facts, so they cannot hold services.
    static KEPT: RefCell<HashMap<u64, Services>> = RefCell::default();
}

/// The services of one connection, each with the number of its [`PerPeer`]. None of them is called
/// while the thread's services are borrowed: foreign code may come back here.
type Services = Vec<(u64, Rc<dyn Any>)>;

/// A connection's number on its thread. Dropping it ends the connection's services.
struct Token(u64);

impl Token {
    fn of(connection: &ConnectionInfo) -> Option<&Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        connection.companion.get_or_make(|| Self(NUMBERS.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        // While the thread ends, its services are dropped already.
        let services = KEPT.try_with(|kept| kept.borrow_mut().remove(&self.0));
        let_go(services.ok().flatten().unwrap_or_default());
    }
}

/// Drops services one by one. This happens in the middle of the server's work for a connection, or at
/// its end, and a destructor must not make that work fail, nor two of them the process.
fn let_go(services: Services) {
    for (_, service) in services {
        if catch_unwind(AssertUnwindSafe(|| drop(service))).is_err() {
            contained(
                || tracing::error!(target: "peregrine", "the service of a connection panicked in its drop"),
            );
        }
    }
}

impl<M> PerPeer<M> {
    pub(crate) fn new(make: M) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self { make: RefCell::new(make), number: NUMBERS.fetch_add(1, Ordering::Relaxed) }
    }

    /// A clone of the connection's service, if it has one.
    fn kept<S: Clone + 'static>(&self, connection: &ConnectionInfo) -> Option<S> {
        let token: &Token = connection.companion.get()?;
        let service = KEPT.with_borrow(|kept| {
            let mut services = kept.get(&token.0)?.iter();
            services.find(|(number, _)| *number == self.number).map(|(_, kept)| Rc::clone(kept))
        });
        service?.downcast_ref::<S>().cloned()
    }

    /// Keeps a service for the connection's further requests.
    fn keep<S: 'static>(&self, connection: &ConnectionInfo, service: S) {
        let Some(token) = Token::of(connection) else { return };
        let service = Rc::new(service);
        KEPT.with_borrow_mut(|kept| kept.entry(token.0).or_default().push((self.number, service)));
    }
}

impl<M> Drop for PerPeer<M> {
    fn drop(&mut self) {
        // While the thread ends, its services are dropped already.
        let own: Option<Vec<_>> = KEPT
            .try_with(|kept| {
                let mut kept = kept.borrow_mut();
                let services = kept.values_mut();
                services
                    .flat_map(|services| services.extract_if(.., |(by, _)| *by == self.number))
                    .collect()
            })
            .ok();
        let_go(own.unwrap_or_default());
    }
}

impl<M: Clone> Clone for PerPeer<M> {
    fn clone(&self) -> Self {
        Self::new(self.make.borrow().clone())
    }
}

impl<M, S, B> Reach for PerPeer<M>
where
    M: Service<SocketAddr, Response = S, Error = Infallible> + Clone + 'static,
    S: Service<http::Request<SendBody>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Body = B;
    type Call = S::Future;
    type Error = S::Error;

    /// Which service to use depends on the connection.
    fn poll_ready(&self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Pending
    }

    fn call(&self, _: http::Request<SendBody>) -> S::Future {
        unreachable!("this is never ready at once")
    }

    fn wait(
        &self,
        _: Poll<Result<(), S::Error>>,
        request: http::Request<SendBody>,
        connection: &Rc<ConnectionInfo>,
    ) -> Waiting<'_, B> {
        let told = request.extensions().get::<Caller>().copied();
        if told.is_none()
            && let Some(service) = self.kept::<S>(connection)
        {
            return Box::pin(call(service, request));
        }
        let connection = Rc::clone(connection);
        let make = self.make.borrow().clone();
        Box::pin(async move {
            // A Unix socket has no address; a service that insists on one gets the unspecified address.
            let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let address = told.map_or_else(|| connection.peer.tcp(), |caller| caller.address);
            let made = made(make, address.unwrap_or(nobody)).await?;
            if told.is_none() {
                self.keep(&connection, made.clone());
            }
            drop(connection);
            call(made, request).await
        })
    }
}

async fn made<M: Service<SocketAddr, Error = Infallible>>(
    mut make: M,
    peer: SocketAddr,
) -> Result<M::Response, Failure> {
    ready(&mut make).await?;
    match make.call(peer).await {
        Ok(service) => Ok(service),
    }
}

/// Waits for a service and calls it.
async fn call<S, T>(mut service: S, request: T) -> Result<S::Response, Failure>
where
    S: Service<T, Error: Into<BoxError>>,
{
    ready(&mut service).await?;
    service.call(request).await.map_err(|error| Failure::Failed(error.into()))
}

async fn ready<S, T>(service: &mut S) -> Result<(), Failure>
where
    S: Service<T, Error: Into<BoxError>>,
{
    let ready = poll_fn(|context| service.poll_ready(context)).await;
    ready.map_err(|error| Failure::NotReady(error.into()))
}

impl<M> fmt::Debug for PerPeer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerPeer").finish_non_exhaustive()
    }
}
