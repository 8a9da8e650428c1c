//! Calls a tower service when it is ready. A request that must wait takes the shared instance of
//! the service, and a clone becomes the shared instance.

use crate::body::SendBody;
use crate::error::BoxError;
use crate::extensions::ClientAddr;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::panic::catch_subscriber_panic;
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

/// Why a service returned no response.
#[derive(Debug)]
pub enum TowerError {
    /// `poll_ready` returned an error.
    PollReady(BoxError),
    /// `call` returned an error.
    Call(BoxError),
}

/// The future of a call whose service was not ready immediately. It is boxed because such calls are
/// rare: otherwise the future of every request would reserve space for it.
pub type OneshotFuture<'r, B> =
    Pin<Box<dyn Future<Output = Result<http::Response<B>, TowerError>> + 'r>>;

/// How a request reaches a service. Implemented by [`SharedService`] and [`PerConnection`] only.
pub trait Dispatch: Clone + 'static + sealed::Sealed {
    /// The body of responses.
    type Body: HttpBody<Error: Into<BoxError>> + 'static;

    /// The future of a call to a service that was ready immediately.
    type Future: Future<Output = Result<http::Response<Self::Body>, Self::Error>>;

    /// The error of a failed call.
    type Error: Into<BoxError>;

    /// Polls whether the service is ready for a request. If it is not, [`Dispatch::oneshot`] waits.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// Calls the service. The last [`Dispatch::poll_ready`] must have returned `Ready(Ok(()))`.
    fn call(&self, request: http::Request<SendBody>) -> Self::Future;

    /// Waits until the service is ready and calls it. `readiness` is the result of the last
    /// [`Dispatch::poll_ready`]: pending, or an error, which is then the result of the call.
    fn oneshot(
        &self,
        readiness: Poll<Result<(), Self::Error>>,
        request: http::Request<SendBody>,
        connection: &Rc<ConnectionInfo>,
    ) -> OneshotFuture<'_, Self::Body>;
}

mod sealed {
    pub trait Sealed {}
    impl<S> Sealed for super::SharedService<S> {}
    impl<M> Sealed for super::PerConnection<M> {}
}

/// One service for all requests of a worker.
#[derive(Clone, Debug)]
pub struct SharedService<S>(RefCell<S>);

impl<S> SharedService<S> {
    pub(crate) fn new(service: S) -> Self {
        Self(RefCell::new(service))
    }

    /// Polls the instance that all requests share. If it is ready, [`SharedService::call_shared`]
    /// can call it without a clone.
    pub(crate) fn poll_shared<T>(&self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<T>,
    {
        self.0.borrow_mut().poll_ready(cx)
    }

    /// Calls the service. The last [`SharedService::poll_shared`] must have returned
    /// `Ready(Ok(()))`.
    pub(crate) fn call_shared<T>(&self, request: T) -> S::Future
    where
        S: Service<T>,
    {
        self.0.borrow_mut().call(request)
    }

    /// Waits until the service is ready and calls it.
    ///
    /// The request takes the instance that was polled, and a fresh clone replaces it. The state of
    /// a polled instance (a position in a queue, a permit, a waker) belongs to the request that
    /// polled it; another request must not use or drop it.
    pub(crate) fn oneshot_owned<'r, T, B>(
        &self,
        readiness: Poll<Result<(), S::Error>>,
        request: T,
    ) -> OneshotFuture<'r, B>
    where
        S: Service<T, Response = http::Response<B>, Error: Into<BoxError>> + Clone + 'r,
        T: 'r,
        B: 'r,
    {
        // In tower, a clone is not ready, even if the original is.
        let unpolled = self.0.borrow().clone();
        let polled = self.0.replace(unpolled);
        let error = match readiness {
            Poll::Ready(Err(error)) => Some(error.into()),
            _ => None,
        };
        Box::pin(async move {
            match error {
                Some(error) => Err(TowerError::PollReady(error)),
                None => call(polled, request).await,
            }
        })
    }
}

impl<S, B> Dispatch for SharedService<S>
where
    S: Service<http::Request<SendBody>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Body = B;
    type Future = S::Future;
    type Error = S::Error;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.poll_shared(cx)
    }

    fn call(&self, request: http::Request<SendBody>) -> S::Future {
        self.call_shared(request)
    }

    fn oneshot(
        &self,
        readiness: Poll<Result<(), S::Error>>,
        request: http::Request<SendBody>,
        _: &Rc<ConnectionInfo>,
    ) -> OneshotFuture<'_, B> {
        self.oneshot_owned(readiness, request)
    }
}

/// Creates a service for each connection from the peer's address, as axum does under hyper. The
/// service is created when the connection's first request arrives, and each request gets a clone of
/// it. If further requests arrive before it is complete, a service is created for each of them too,
/// but all requests get clones of the one that is complete first. On a connection from a trusted
/// proxy, a new service is created for each request, from the address of the request's client.
pub struct PerConnection<M> {
    make: RefCell<M>,
    /// Distinguishes the services of this `PerConnection` from those of others on the same thread.
    id: u64,
}

thread_local! {
    /// The services of each connection on this thread, by the id of its [`ConnectionToken`]. They
    /// cannot be in [`PerConnection`], which is passed to the workers and must be `Send`. They
    /// cannot be in [`ConnectionInfo`] either, because its copies may move to other threads.
    static CONNECTION_SERVICES: RefCell<HashMap<u64, ConnectionServices>> = RefCell::default();
}

/// The services of one connection, each with the id of its [`PerConnection`]. No service is called
/// or dropped while `CONNECTION_SERVICES` is borrowed, because the service's code may borrow
/// `CONNECTION_SERVICES` too.
type ConnectionServices = Vec<(u64, Rc<dyn Any>)>;

/// A connection's id, stored in its [`ConnectionInfo`]. Dropping the token drops the connection's
/// services.
struct ConnectionToken(u64);

impl ConnectionToken {
    /// Returns the connection's token, and creates it if there is none. Returns `None` if other
    /// code has stored a value of another type as the connection's data.
    fn get_or_init(connection: &ConnectionInfo) -> Option<&Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        connection.data.get_or_init(|| Self(NEXT_ID.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for ConnectionToken {
    fn drop(&mut self) {
        // While a thread exits, `CONNECTION_SERVICES` may already be destroyed.
        let services =
            CONNECTION_SERVICES.try_with(|all_services| all_services.borrow_mut().remove(&self.0));
        drop_services(services.ok().flatten().unwrap_or_default());
    }
}

/// Drops services one by one and catches their panics. Otherwise a panicking destructor would
/// unwind into the server's code for the connection, and a second one would abort the process.
fn drop_services(services: ConnectionServices) {
    for (_, service) in services {
        if catch_unwind(AssertUnwindSafe(|| drop(service))).is_err() {
            catch_subscriber_panic(
                || tracing::error!(target: "peregrine", "a connection's service panicked on drop"),
            );
        }
    }
}

impl<M> PerConnection<M> {
    pub(crate) fn new(make: M) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self { make: RefCell::new(make), id: NEXT_ID.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns a clone of the connection's service, if it has one.
    fn cached<S: Clone + 'static>(&self, connection: &ConnectionInfo) -> Option<S> {
        let token: &ConnectionToken = connection.data.get()?;
        let service = CONNECTION_SERVICES.with_borrow(|all_services| {
            let mut services = all_services.get(&token.0)?.iter();
            services.find(|(id, _)| *id == self.id).map(|(_, service)| Rc::clone(service))
        });
        service?.downcast_ref::<S>().cloned()
    }

    /// Stores a service for the connection's later requests, unless other code uses the
    /// connection's data.
    fn cache<S: 'static>(&self, connection: &ConnectionInfo, service: S) {
        let Some(token) = ConnectionToken::get_or_init(connection) else { return };
        let service = Rc::new(service);
        CONNECTION_SERVICES.with_borrow_mut(|all_services| {
            all_services.entry(token.0).or_default().push((self.id, service))
        });
    }
}

impl<M> Drop for PerConnection<M> {
    fn drop(&mut self) {
        // While a thread exits, `CONNECTION_SERVICES` may already be destroyed.
        let own_services: Option<Vec<_>> = CONNECTION_SERVICES
            .try_with(|all_services| {
                let mut all_services = all_services.borrow_mut();
                let services = all_services.values_mut();
                services
                    .flat_map(|services| services.extract_if(.., |(id, _)| *id == self.id))
                    .collect()
            })
            .ok();
        drop_services(own_services.unwrap_or_default());
    }
}

/// The clone gets its own id, because dropping a `PerConnection` drops the services with its id.
impl<M: Clone> Clone for PerConnection<M> {
    fn clone(&self) -> Self {
        Self::new(self.make.borrow().clone())
    }
}

impl<M, S, B> Dispatch for PerConnection<M>
where
    M: Service<SocketAddr, Response = S, Error = Infallible> + Clone + 'static,
    S: Service<http::Request<SendBody>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Body = B;
    type Future = S::Future;
    type Error = S::Error;

    /// Always pending, so that `oneshot` is used. This method does not know the connection, and the
    /// service depends on it.
    fn poll_ready(&self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Pending
    }

    fn call(&self, _: http::Request<SendBody>) -> S::Future {
        unreachable!("`poll_ready` is always pending")
    }

    fn oneshot(
        &self,
        _: Poll<Result<(), S::Error>>,
        request: http::Request<SendBody>,
        connection: &Rc<ConnectionInfo>,
    ) -> OneshotFuture<'_, B> {
        // Only requests from a trusted proxy have this extension.
        let client_addr = request.extensions().get::<ClientAddr>().copied();
        if client_addr.is_none()
            && let Some(service) = self.cached::<S>(connection)
        {
            return Box::pin(call(service, request));
        }
        let connection = Rc::clone(connection);
        let make = self.make.borrow().clone();
        Box::pin(async move {
            // A peer on a Unix socket has no IP address, so its service is created for 0.0.0.0:0.
            let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let address =
                client_addr.map_or_else(|| connection.peer.socket_addr(), |client| client.address);
            let mut service = make_service(make, address.unwrap_or(unspecified)).await?;
            if client_addr.is_none() {
                // Another request may have created the service while this one waited.
                match self.cached::<S>(&connection) {
                    Some(cached) => service = cached,
                    None => self.cache(&connection, service.clone()),
                }
            }
            drop(connection);
            call(service, request).await
        })
    }
}

async fn make_service<M: Service<SocketAddr, Error = Infallible>>(
    mut make: M,
    peer: SocketAddr,
) -> Result<M::Response, TowerError> {
    wait_until_ready(&mut make).await?;
    match make.call(peer).await {
        Ok(service) => Ok(service),
    }
}

/// Waits until a service is ready and calls it.
async fn call<S, T>(mut service: S, request: T) -> Result<S::Response, TowerError>
where
    S: Service<T, Error: Into<BoxError>>,
{
    wait_until_ready(&mut service).await?;
    service.call(request).await.map_err(|error| TowerError::Call(error.into()))
}

async fn wait_until_ready<S, T>(service: &mut S) -> Result<(), TowerError>
where
    S: Service<T, Error: Into<BoxError>>,
{
    let readiness = poll_fn(|cx| service.poll_ready(cx)).await;
    readiness.map_err(|error| TowerError::PollReady(error.into()))
}

impl<M> fmt::Debug for PerConnection<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerConnection").finish_non_exhaustive()
    }
}
