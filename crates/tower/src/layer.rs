//! Tower layers as middleware.

use crate::after_response;
use crate::body::{SendBody, SendBoxBody};
use crate::body_channel::{LocalProvider, Progress, poll_with};
use crate::call::{CallOutcome, LocalCall, poll_call};
use crate::dispatch::{SharedService, TowerError};
use crate::error::BoxError;
use crate::extensions::{ClientAddr, ConnectionExtensions};
use crate::request_table::{
    CallStarter, LocalHandle, LocalLookup, LocalValue, QueuedCall, RequestOwner,
    RequestRefExtension,
};
use crate::response::{from_http, to_body, to_http};
use crate::restore::{restore, store_request};
use http::StatusCode;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::service::ErasedService;
use peregrine_web::{IntoResponse, Middleware, Problem, Request, Response, Service};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::net::SocketAddr;
use std::ops::DerefMut;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;
use tower_layer::Layer;

/// Converts a tower layer into a middleware, for whole applications and for scopes.
///
/// As with every middleware here, the layer applies to the routes that are added **after** it; in
/// axum, `layer` applies to the routes before it. The state of a layer's service (such as the
/// permits of a `ConcurrencyLimitLayer`) exists once for each route, as in axum. The state of the
/// layer itself (such as the permits of a `GlobalConcurrencyLimitLayer`) is shared by all routes of
/// a worker, and also by all workers if each of them gets a clone of the layer.
///
/// The layer, its service and the handlers need not be `Send`. The inner service that the layer
/// wraps ([`NextService`]) *is* `Send`, and so are its futures and bodies. Layers that require
/// `Send` therefore work, such as those of tower-sessions and axum-login. The handler's future
/// stays on the request's thread, even if the layer polls the inner service's future or reads a
/// body on another thread. Channels are used only for work that the layer moves to another thread,
/// and for calls of a layer that wraps a borrowed service ([`Middleware::run`]). Layers made for
/// axum's bodies work with [`layer_with_body`](crate::layer_with_body).
///
/// The layer's service must be `Clone`. If the service is not ready for a request, that request
/// takes the service and waits for it, and other requests use a clone. If the service's `call`
/// fails, the response is a 500; if its `poll_ready` fails, the response is a 503. A panic of a
/// handler propagates to the layer's code that polls the inner service's future. If that future is
/// first polled after the layer has responded, it yields a 500.
///
/// ```
/// use peregrine::tower::layer;
/// use peregrine::App;
/// use tower_http::set_header::SetResponseHeaderLayer;
///
/// let stamp = peregrine::http::HeaderName::from_static("x-stamp");
/// let value = peregrine::http::HeaderValue::from_static("1");
/// let app = App::new()
///     .get("/outside", || "plain")
///     .wrap(layer(SetResponseHeaderLayer::overriding(stamp, value)))
///     .get("/inside", || "stamped");
/// let client = app.test();
/// assert_eq!(client.get("/inside").send_blocking().field("x-stamp"), Some("1"));
/// assert_eq!(client.get("/outside").send_blocking().field("x-stamp"), None);
/// ```
///
/// # Cost
///
/// Converting the request to an `http::Request` costs about nine allocations. Layers that are
/// combined with `tower::ServiceBuilder` share this cost. If another thread reads a body or polls
/// the inner service's future, the data passes through channels and the request's thread is woken.
pub fn layer<L, S, B>(layer: L) -> LayerMiddleware<L>
where
    L: Layer<NextService, Service = S>,
    S: tower_service::Service<http::Request<SendBody>, Response = http::Response<B>>,
{
    LayerMiddleware { layer, extensions: ConnectionExtensions::default() }
}

/// A tower layer as a middleware. Created by [`layer()`].
#[doc(alias = "layer")]
#[derive(Clone)]
pub struct LayerMiddleware<L> {
    layer: L,
    extensions: ConnectionExtensions,
}

impl<L> LayerMiddleware<L> {
    /// Inserts the value that `make` creates from the [`ConnectionInfo`] into the extensions of
    /// each request, unless they already contain a value of its type. Both the layer and the
    /// handlers inside it can read the value.
    ///
    /// ```
    /// use peregrine::tower::layer;
    /// use peregrine::App;
    /// use peregrine::web::connection::ConnectionInfo;
    /// use tower_http::trace::TraceLayer;
    ///
    /// let trace = TraceLayer::new_for_http().on_request(
    ///     |request: &peregrine::http::Request<_>, _: &_| {
    ///         let info = request.extensions().get::<ConnectionInfo>().expect("inserted below");
    ///         println!("from {} over {:?}", info.peer, info.tls);
    ///     },
    /// );
    /// let app = App::new().wrap(layer(trace).extension(ConnectionInfo::clone));
    /// # let _ = app;
    /// ```
    #[must_use]
    pub fn extension<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&ConnectionInfo) -> T + Send + Sync + 'static,
    {
        Self { extensions: self.extensions.with(make), ..self }
    }

    /// Inserts the value that `make` creates from the client's address into the extensions of each
    /// request, unless they already contain a value of its type. If the peer is a trusted proxy
    /// (`Server::trusted_proxies`), the client's address is the one that the proxy reports.
    /// Otherwise it is the peer's address, if the peer connected over TCP. If there is no address,
    /// no value is inserted.
    ///
    /// Layers made for axum, such as those that limit rates by address, read
    /// `ConnectInfo<SocketAddr>`; for them use `.connect_info(ConnectInfo)`.
    #[must_use]
    pub fn connect_info<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(SocketAddr) -> T + Send + Sync + 'static,
    {
        Self { extensions: self.extensions.with_client_addr(make), ..self }
    }
}

impl<L, S, B> Middleware for LayerMiddleware<L>
where
    L: Layer<NextService, Service = S>,
    S: tower_service::Service<http::Request<SendBody>, Response = http::Response<B>>
        + Clone
        + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    /// Creates the layer's service for this request only, because `next` is only borrowed.
    /// [`Middleware::wrap_service`], which owns the inner service, creates it once for each route.
    async fn run<N: Service>(&self, request: Request, next: &N) -> Response {
        let service = SharedService::new(self.layer.layer(NextService(())));
        // The calls are stored here, not in the owner, because they borrow `next`. A layer may call
        // its inner service several times, in sequence or concurrently.
        let mut calls: Vec<(LocalCall<'_>, _)> = Vec::new();
        let poll_owner = |owner: &mut RequestOwner, cx: &mut Context<'_>| {
            let mut progress = owner.poll(cx);
            for QueuedCall { request, reply } in owner.take_queued_calls() {
                calls.push((Box::pin(call_next(next, request)), Some(reply)));
            }
            let count_before = calls.len();
            calls.retain_mut(|(call, reply)| poll_call(call, reply, cx));
            if calls.len() < count_before {
                progress = Progress::Advanced;
            }
            progress
        };
        call_layer(&service, &self.extensions, request, None, poll_owner).await
    }

    fn wrap_service<N: Service + 'static>(self: Rc<Self>, service: N) -> impl Service + 'static {
        let next = ErasedService::new(service);
        LayeredRoute {
            service: SharedService::new(self.layer.layer(NextService(()))),
            next,
            extensions: self.extensions.clone(),
        }
    }
}

/// A route, and the service that a layer wraps around it.
struct LayeredRoute<S> {
    service: SharedService<S>,
    next: ErasedService,
    extensions: ConnectionExtensions,
}

impl<S, B> Service for LayeredRoute<S>
where
    S: tower_service::Service<http::Request<SendBody>, Response = http::Response<B>>
        + Clone
        + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        call_layer(
            &self.service,
            &self.extensions,
            request,
            Some(self.next.clone()),
            RequestOwner::poll,
        )
    }
}

/// Passes a request to a layer's service. The layer's calls to its inner service go to `next`. If
/// `next` is `None`, `poll_owner` makes these calls; otherwise `poll_owner` only polls the owner.
async fn call_layer<S, B>(
    service: &SharedService<S>,
    extensions: &ConnectionExtensions,
    request: Request,
    next: Option<ErasedService>,
    poll_owner: impl FnMut(&mut RequestOwner, &mut Context<'_>) -> Progress,
) -> Response
where
    S: tower_service::Service<http::Request<SendBody>, Response = http::Response<B>>
        + Clone
        + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    // Polls the service once, without waiting. If it is ready, it is called directly; otherwise
    // `oneshot_owned` waits for it.
    let readiness = poll_fn(|cx| Poll::Ready(service.poll_shared(cx))).await;
    let (mut parts, body) = request.into_parts();
    // Drops the fields that `Connection` names. If a proxy or a cache inside the layer dropped
    // them, a client could name a field that the layer sets, and so have that field removed.
    parts.head.remove_nominated_headers();
    // The layer may read cookies or credentials, which Peregrine cannot observe. So mark the
    // response as specific to the client in advance.
    PrivateResponse::mark_delegated(&parts);
    let mut request = parts.head.to_http(SendBody::default());
    *request.extensions_mut() = take(parts.extensions_mut());
    extensions.insert_into(
        parts.connection_untracked(),
        ClientAddr::from_parts(&parts),
        request.extensions_mut(),
    );
    let call_starter = if next.is_some() {
        CallStarter::Owner(start_call)
    } else {
        CallStarter::Poller(Vec::new())
    };
    let owner = store_request(parts, next, call_starter, &mut request);
    *request.body_mut() = SendBody::new_local(body, owner.request_ref());
    if let Poll::Ready(Ok(())) = readiness {
        let call = pin!(service.call_shared(request));
        drive_call(call, owner, poll_owner, |error| TowerError::Call(error.into())).await
    } else {
        drive_call(service.oneshot_owned(readiness, request), owner, poll_owner, |error| error)
            .await
    }
}

/// Polls a layer's call to completion, together with the owner of its request, and converts the
/// response.
async fn drive_call<C, B, E>(
    mut call: Pin<impl DerefMut<Target = C>>,
    owner: RequestOwner,
    mut poll_owner: impl FnMut(&mut RequestOwner, &mut Context<'_>) -> Progress,
    to_error: impl Fn(E) -> TowerError,
) -> Response
where
    C: Future<Output = Result<http::Response<B>, E>> + ?Sized,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let (mut owner, mut nested_after_response) = (Some(owner), Vec::new());
    poll_fn(|cx| {
        let poll_provider = |cx: &mut Context<'_>| {
            owner.as_mut().map_or(Progress::Unchanged, |owner| poll_owner(owner, cx))
        };
        let result = ready!(poll_with(poll_provider, cx, |cx| {
            after_response::collect(&mut nested_after_response, || call.as_mut().poll(cx))
        }));
        let mut owner = owner.take().expect("a future completes only once");
        let original = owner.finish_request();
        let mut response = match result.map_err(&to_error) {
            Ok(response) => from_http(response, Some(owner), take(&mut nested_after_response), cx),
            Err(TowerError::PollReady(error)) => {
                layer_error_response(&error, StatusCode::SERVICE_UNAVAILABLE)
            }
            Err(TowerError::Call(error)) => {
                layer_error_response(&error, StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        if response.status != StatusCode::SWITCHING_PROTOCOLS {
            return Poll::Ready(response);
        }
        Poll::Ready(match original.and_then(|original| original.into_upgrade(&mut response)) {
            Some(upgrade) => response.with_upgrade(upgrade),
            None => response,
        })
    })
    .await
}

#[cold]
fn layer_error_response(error: &BoxError, status: StatusCode) -> Response {
    catch_subscriber_panic(|| tracing::error!(target: "peregrine", %error, "a tower layer failed"));
    let detail = "The server could not handle this request.";
    Problem::new(status, "layer-failed", detail).into_response()
}

/// The service inside a layer: a tower service that accepts a request with any body and calls the
/// rest of the application. It is `Send`, and so are its futures and bodies. The rest of the
/// application still runs on the request's thread.
#[doc(alias = "Next")]
#[derive(Clone)]
pub struct NextService(());

impl<B> tower_service::Service<http::Request<B>> for NextService
where
    B: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    type Response = http::Response<SendBody>;
    type Error = Infallible;
    type Future = NextFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> NextFuture<B> {
        NextFuture(NextState::NotStarted(Box::new(request)))
    }
}

/// Starts a call that the layer made on another thread. The request's extensions refer to the
/// original request, and so to the inner service.
fn start_call(request: http::Request<SendBoxBody>) -> LocalCall<'static> {
    Box::pin(async move {
        let extension = request.extensions().get::<RequestRefExtension>().cloned();
        match extension.and_then(|RequestRefExtension(request_ref)| {
            request_ref.with_original(|original| original.next_service()).flatten()
        }) {
            Some(next) => call_next(&next, request).await,
            None => request_gone(),
        }
    })
}

/// Handles a layer's call to its inner service.
async fn call_next<N, B>(next: &N, request: http::Request<B>) -> http::Response<SendBody>
where
    N: Service,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let (parts, body) = request.into_parts();
    let (request, request_ref) = match restore(parts, to_body(body)) {
        Ok(restored) => restored,
        Err(problem) => {
            return to_http(problem.into_response(), |body| SendBody::from_body(body).0);
        }
    };
    let mut response = next.call(request).await;
    if let Some(upgrade) = response.take_upgrade() {
        request_ref.with_original(|original| original.store_upgrade(upgrade, &mut response));
    }
    if let Some(work) = response.take_after_response() {
        request_ref.store_after_response(work);
    }
    to_http(response, |body| SendBody::new_local(body, &request_ref))
}

/// The response to a call whose original request cannot be found.
#[cold]
fn request_gone() -> http::Response<SendBody> {
    let error = "the layer called its inner service after its response, or without the request's \
                 extensions";
    let response = layer_error_response(&error.into(), StatusCode::INTERNAL_SERVER_ERROR);
    to_http(response, |body| SendBody::from_body(body).0)
}

/// The future of [`NextService`]. The call begins when the future is first polled.
pub struct NextFuture<B>(NextState<B>);

enum NextState<B> {
    /// The call has not begun. The request is boxed to keep this future small, because layers move
    /// the futures that contain this one.
    NotStarted(Box<http::Request<B>>),
    /// The call is stored in its request's row (module `request_table`).
    Local(LocalHandle),
    /// The request's [`RequestOwner`], or the code that polls the owner, makes the call and sends
    /// its outcome.
    AwaitingOutcome(oneshot::Receiver<CallOutcome>),
    /// The call is over, or cannot be made.
    Done,
}

/// No field is pinned: a call is boxed, and a oneshot receiver is `Unpin`.
impl<B> Unpin for NextFuture<B> {}

impl<B> NextFuture<B>
where
    B: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    /// Begins the call, on this thread if possible. Most handlers also complete within this poll.
    fn start(
        &mut self,
        request: Box<http::Request<B>>,
        cx: &mut Context<'_>,
    ) -> Poll<http::Response<SendBody>> {
        let Some(RequestRefExtension(request_ref)) = request.extensions().get().cloned() else {
            return Poll::Ready(request_gone());
        };
        // There is no inner service here if this is not the request's thread, if `run` has only
        // borrowed the service, or if the layer has responded. The owner or its poller then makes
        // the call, but rejects it if the layer has responded.
        let Some(next) = request_ref.with_original(|original| original.next_service()).flatten()
        else {
            self.0 =
                NextState::AwaitingOutcome(request_ref.send_call(request.map(SendBoxBody::new)));
            return self.resume(cx);
        };
        let mut call: LocalCall<'_> = Box::pin(async move { call_next(&next, *request).await });
        if let Poll::Ready(response) = call.as_mut().poll(cx) {
            return Poll::Ready(response);
        }
        match request_ref.store(LocalValue::Call(call)) {
            Ok(handle) => self.0 = NextState::Local(handle),
            Err(_request_is_over) => return Poll::Ready(request_gone()),
        }
        Poll::Pending
    }

    /// Polls a call that has begun.
    fn resume(&mut self, cx: &mut Context<'_>) -> Poll<http::Response<SendBody>> {
        if let NextState::Local(handle) = &mut self.0 {
            let lookup = handle.with(|value| match value {
                LocalValue::Call(call) => call.as_mut().poll(cx),
                LocalValue::Body(_) => unreachable!("the handle belongs to a call"),
            });
            match (lookup, std::mem::replace(&mut self.0, NextState::Done)) {
                // The layer has moved this future to another thread.
                (LocalLookup::OtherThread, NextState::Local(handle)) => {
                    self.0 = NextState::AwaitingOutcome(handle.resume_call());
                }
                (LocalLookup::Local(Poll::Pending), state) => {
                    self.0 = state;
                    return Poll::Pending;
                }
                // This drops the handle, and so the completed call, even if the layer keeps this
                // future.
                (LocalLookup::Local(Poll::Ready(response)), _) => return Poll::Ready(response),
                _ => return Poll::Ready(request_gone()),
            }
        }
        let NextState::AwaitingOutcome(outcome) = &mut self.0 else {
            return Poll::Ready(request_gone());
        };
        match ready!(Pin::new(outcome).poll(cx)) {
            Ok(Ok(response)) => Poll::Ready(response),
            Ok(Err(panic)) => resume_unwind(panic),
            // The owner was dropped or has rejected the call.
            Err(_) => Poll::Ready(request_gone()),
        }
    }
}

impl<B> Future for NextFuture<B>
where
    B: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    type Output = Result<http::Response<SendBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Only `NotStarted` is moved out of `self`; the other states stay in place.
        if matches!(self.0, NextState::NotStarted(_))
            && let NextState::NotStarted(request) = std::mem::replace(&mut self.0, NextState::Done)
        {
            return self.start(request, cx).map(Ok);
        }
        self.resume(cx).map(Ok)
    }
}

impl<L> fmt::Debug for LayerMiddleware<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LayerMiddleware")
    }
}

impl fmt::Debug for NextService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextService")
    }
}

impl<B> fmt::Debug for NextFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextFuture")
    }
}
