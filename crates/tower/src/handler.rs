//! Tower services as handlers.

use crate::after_response;
use crate::body::SendBody;
use crate::body_channel::{BodyForwarder, poll_with_provider};
use crate::dispatch::{Dispatch, PerConnection, SharedService, TowerError};
use crate::error::BoxError;
use crate::extensions::{self, ClientAddr, ConnectionExtensions};
use crate::grpc::GrpcDeadline;
use crate::request::into_http;
use crate::response::from_http;
use crate::upgrade::PendingUpgrade;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as HttpBody, Frame};
use hyper::upgrade::OnUpgrade;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::extract::RouteRequirements;
use peregrine_web::handler::{OnDisconnect, RouteOptions, Signature};
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::{IdentityMarks, PrivateResponse};
use peregrine_web::{Body, Handler, IntoResponse, Parts, Problem, Request, Response};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::mem::take;
use std::net::SocketAddr;
use std::ops::DerefMut;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A tower service as a handler, with its route options and the values that it adds to the
/// extensions of requests. Created by [`tower`].
///
/// It is `Clone` and `Send` if the service is, so that each worker can have its own.
///
/// # Differences from hyper
///
/// - A request body that has arrived completely is passed to the service as bytes. Any other body
///   stays on the connection's thread, because Peregrine's bodies are not `Send`, and its frames
///   are passed through a channel, one at a time.
/// - Each request polls the service's `poll_ready`, and waits until the service is ready, the
///   route's time limit expires or the peer disconnects. If `poll_ready` fails, the response is a
///   503. If `call` fails, the response is a 500. [`TowerHandler::on_error`] replaces both.
/// - Peregrine's limit on request bodies does not apply, because axum has its own; see
///   [`TowerHandler::body_limit`].
/// - The deadline of a gRPC call (`grpc-timeout`) is enforced, as in tonic's own server: a call
///   whose response has not begun by the deadline is dropped, and the response is
///   `DEADLINE_EXCEEDED`.
/// - If the service panics, the response is a 500. An HTTP/1.1 connection is then closed. The
///   worker continues.
#[doc(alias = "nest_service")]
#[doc(alias = "route_service")]
pub struct TowerHandler<D> {
    dispatch: D,
    options: RouteOptions,
    extensions: ConnectionExtensions,
    on_error: Option<ErrorHandler>,
}

type ErrorHandler = Arc<dyn Fn(BoxError) -> Response + Send + Sync>;

/// Converts `service` into a handler. `service` is an axum `Router` or any other tower service that
/// accepts an `http::Request<SendBody>` and returns an `http::Response`. It can also be a
/// make-service that accepts a peer's address, such as axum's
/// `into_make_service_with_connect_info::<SocketAddr>()`.
///
/// ```
/// use axum::{Router, extract::Path, routing::get};
/// use peregrine::tower::tower;
/// use peregrine::App;
///
/// let router = Router::new()
///     .route("/hello/{name}", get(async |Path(name): Path<String>| format!("Hello, {name}!")));
/// let client = App::new().subtree("/", tower(router)).test();
/// assert_eq!(client.get("/hello/Ada").send_blocking().text(), "Hello, Ada!");
/// ```
pub fn tower<Via, T: IntoTowerHandler<Via>>(service: T) -> TowerHandler<T::Dispatch> {
    service.into_tower_handler()
}

/// Types that can be mounted: tower services, make-services that accept a peer's address, and a
/// [`TowerHandler`] that is already configured. `Via` distinguishes these; it is always inferred.
#[doc(alias = "nest_service")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be mounted",
    label = "not a tower service that can be mounted",
    note = "a service must be `Clone` and implement `tower::Service<http::Request<SendBody>>` with \
            an `http::Response` whose body is an `http_body::Body`",
    note = "an axum `Router` must have its state: call `.with_state(..)`",
    note = "`into_make_service()` is not needed: pass the router itself"
)]
pub trait IntoTowerHandler<Via> {
    /// How requests reach the service.
    type Dispatch: Dispatch;

    /// Converts the service into a handler.
    fn into_tower_handler(self) -> TowerHandler<Self::Dispatch>;
}

/// The `Via` of [`IntoTowerHandler`] for tower services.
#[derive(Debug)]
pub enum ViaService {}

/// The `Via` of [`IntoTowerHandler`] for make-services.
#[derive(Debug)]
pub enum ViaMake {}

/// The `Via` of [`IntoTowerHandler`] for a [`TowerHandler`]. Also marks it as a [`Handler`].
#[derive(Debug)]
pub enum ViaTowerHandler {}

impl<S> IntoTowerHandler<ViaService> for S
where
    SharedService<S>: Dispatch,
{
    type Dispatch = SharedService<S>;

    fn into_tower_handler(self) -> TowerHandler<SharedService<S>> {
        TowerHandler::new(SharedService::new(self))
    }
}

impl<M> IntoTowerHandler<ViaMake> for M
where
    PerConnection<M>: Dispatch,
{
    type Dispatch = PerConnection<M>;

    fn into_tower_handler(self) -> TowerHandler<PerConnection<M>> {
        TowerHandler::new(PerConnection::new(self))
    }
}

impl<D: Dispatch> IntoTowerHandler<ViaTowerHandler> for TowerHandler<D> {
    type Dispatch = D;

    fn into_tower_handler(self) -> Self {
        self
    }
}

impl<D> TowerHandler<D> {
    fn new(dispatch: D) -> Self {
        // Any service may serve gRPC. The server also checks each request's `Content-Type`.
        let options =
            RouteOptions { lifts_body_limit: true, is_grpc: true, ..RouteOptions::default() };
        Self { dispatch, options, extensions: ConnectionExtensions::default(), on_error: None }
    }

    /// Inserts the value that `make` creates from the [`ConnectionInfo`] into the extensions of
    /// each request, unless they already contain a value of its type.
    ///
    /// ```
    /// use axum::{Extension, Router, routing::get};
    /// use peregrine::tower::tower;
    /// use peregrine::App;
    /// use peregrine::web::connection::ConnectionInfo;
    ///
    /// let router = Router::new().route(
    ///     "/",
    ///     get(async |Extension(info): Extension<ConnectionInfo>| format!("from {}", info.peer)),
    /// );
    /// let mounted = tower(router).extension(ConnectionInfo::clone);
    /// let client = App::new().subtree("/", mounted).test();
    /// assert_eq!(client.get("/").send_blocking().text(), "from (none)");
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
    /// Requests from a trusted proxy also have a
    /// [`ClientIp`](peregrine_web::extract::ClientIp) in their extensions. For axum's
    /// `ConnectInfo` extractor, use `.connect_info(ConnectInfo)`.
    ///
    /// ```
    /// use axum::{Router, extract::ConnectInfo, routing::get};
    /// use peregrine::tower::tower;
    /// use std::net::SocketAddr;
    ///
    /// async fn who(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
    ///     format!("you are {}", peer.ip())
    /// }
    /// let mounted = tower(Router::new().route("/", get(who))).connect_info(ConnectInfo);
    /// # let _ = mounted;
    /// ```
    #[doc(alias = "ConnectInfo")]
    #[must_use]
    pub fn connect_info<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(SocketAddr) -> T + Send + Sync + 'static,
    {
        Self { extensions: self.extensions.with_client_addr(make), ..self }
    }

    /// Sets the function that creates the response if the service's `call` or `poll_ready` fails.
    /// Without it, the response is a 500 if `call` fails and a 503 if `poll_ready` fails. It is
    /// never called for services that cannot fail, such as axum routers.
    ///
    /// ```
    /// use peregrine::http::StatusCode;
    /// use peregrine::tower::tower;
    /// use peregrine::App;
    ///
    /// let fails = tower_service_that_fails();
    /// let mounted = tower(fails).on_error(|error| (StatusCode::BAD_GATEWAY, error.to_string()));
    /// let response = App::new().subtree("/", mounted).test().get("/").send_blocking();
    /// assert_eq!((response.status().as_u16(), response.text().as_str()), (502, "down"));
    /// # use peregrine::tower::SendBody;
    /// # fn tower_service_that_fails() -> impl tower::Service<
    /// #     peregrine::http::Request<SendBody>, Response = peregrine::http::Response<SendBody>,
    /// #     Error = std::io::Error, Future: 'static> + Clone + 'static {
    /// #     tower::service_fn(async |_: peregrine::http::Request<SendBody>| {
    /// #         Err(std::io::Error::other("down"))
    /// #     })
    /// # }
    /// ```
    #[doc(alias = "HandleError")]
    #[doc(alias = "HandleErrorLayer")]
    #[must_use]
    pub fn on_error<F, T>(mut self, respond: F) -> Self
    where
        F: Fn(BoxError) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.on_error = Some(Arc::new(move |error| respond(error).into_response()));
        self
    }

    /// Limits the size of request bodies, in bytes. By default Peregrine sets no limit, as under
    /// hyper: axum's extractors enforce their own limit of 2 MB, and other services must limit the
    /// bodies that they read.
    #[doc(alias = "DefaultBodyLimit")]
    #[must_use]
    pub fn body_limit(mut self, bytes_max: u64) -> Self {
        self.options.body_bytes_max = Some(bytes_max);
        self
    }

    /// Limits the time until a response begins, including the wait for a service that is not ready.
    /// When the limit expires, the call is dropped and the response is a 503. Default: no limit.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options.timeout = Some(limit);
        self
    }

    /// Runs calls to completion even if the peer disconnects. By default the call's future is
    /// dropped when the peer disconnects, as under hyper.
    #[doc(alias = "detach")]
    #[must_use]
    pub fn run_to_completion(mut self) -> Self {
        self.options.on_disconnect = OnDisconnect::RunToCompletion;
        self
    }
}

impl<D: Clone> Clone for TowerHandler<D> {
    fn clone(&self) -> Self {
        Self {
            dispatch: self.dispatch.clone(),
            options: self.options.clone(),
            extensions: self.extensions.clone(),
            on_error: self.on_error.clone(),
        }
    }
}

impl<D: Dispatch> Signature<ViaTowerHandler> for TowerHandler<D> {}

impl<D: Dispatch> Handler<ViaTowerHandler, ()> for TowerHandler<D> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        self.respond(request, false) // keeps the path's prefix
    }

    fn require(&self, _: &mut RouteRequirements) {}

    fn configure(&self, options: &mut RouteOptions) {
        *options = self.options.clone();
    }
}

impl<D: Dispatch> TowerHandler<D> {
    /// Passes a request to the service and converts its response. If `strip_mount_prefix` is true,
    /// the service sees the path without the mount's prefix.
    ///
    /// The future is moved once for each request, so its size matters: it stores each large value
    /// (the request for the service, its call, a response) only once, and no longer than necessary.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` stores its arguments twice")]
    pub(crate) fn respond(
        &self,
        request: Request,
        strip_mount_prefix: bool,
    ) -> impl Future<Output = Response> {
        async move {
            let head = &request.parts.head;
            let wants_upgrade = head.index().wants_upgrade(head.as_bytes());
            // Polls the service once, without waiting. If it is ready, it is called directly;
            // otherwise `oneshot` waits for it.
            let (readiness, upgrade_pair) = poll_fn(|cx| {
                let upgrade_pair = if wants_upgrade { PendingUpgrade::new(cx) } else { None };
                Poll::Ready((self.dispatch.poll_ready(cx), upgrade_pair))
            })
            .await;
            let (parts, body) = request.into_parts();
            let (body, forwarder) = SendBody::from_body(body);
            let is_head = parts.head.index().method == peregrine_proto::Method::Head;
            let (on_upgrade, pending_upgrade) = upgrade_pair.unzip();
            let deadline = GrpcDeadline::from_head(&parts.head);
            // The parts are moved into the service's request, but `finish_response` must still be
            // able to mark this request.
            let identity_marks = PrivateResponse::watch(&parts);
            let mut state = CallState {
                forwarder,
                pending_upgrade,
                is_head,
                deadline,
                nested_after_response: Vec::new(),
                identity_marks,
            };
            if let Poll::Ready(Ok(())) = readiness {
                let request = self.convert_request(parts, body, strip_mount_prefix, on_upgrade).0;
                let call = pin!(self.dispatch.call(request));
                state
                    .run_call(call, |error| self.error_response(TowerError::Call(error.into())))
                    .await
            } else {
                let (request, connection) =
                    self.convert_request(parts, body, strip_mount_prefix, on_upgrade);
                let call = self.dispatch.oneshot(readiness, request, &connection);
                drop(connection);
                state.run_call(call, |error| self.error_response(error)).await
            }
        }
    }

    /// Converts a request to the type that the service accepts. Also returns the connection,
    /// because [`PerConnection`] creates a service for it.
    #[inline]
    fn convert_request(
        &self,
        mut parts: Parts,
        body: SendBody,
        strip_mount_prefix: bool,
        on_upgrade: Option<OnUpgrade>,
    ) -> (http::Request<SendBody>, Rc<ConnectionInfo>) {
        let (connection, client_addr) =
            (Rc::clone(parts.connection_untracked()), ClientAddr::from_parts(&parts));
        // The service may read cookies or credentials, which Peregrine cannot observe. So mark the
        // response as specific to the client in advance.
        PrivateResponse::mark_delegated(&parts);
        if extensions::may_have_nested_app() {
            // A Peregrine application inside the service reads the marks from the extensions.
            PrivateResponse::export_marks(&mut parts);
        }
        let mut request = into_http(parts, body, strip_mount_prefix);
        self.extensions.insert_into(&connection, client_addr, request.extensions_mut());
        if let Some(on_upgrade) = on_upgrade {
            request.extensions_mut().insert(on_upgrade);
        }
        (request, connection)
    }

    #[cold]
    fn error_response(&self, failure: TowerError) -> Response {
        let (error, status, kind, detail) = match failure {
            TowerError::PollReady(error) => {
                let detail = "The server cannot respond now. Try again later.";
                (error, StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail)
            }
            TowerError::Call(error) => {
                let detail = "The server failed while handling this request.";
                (error, StatusCode::INTERNAL_SERVER_ERROR, "service-failed", detail)
            }
        };
        if let Some(on_error) = &self.on_error {
            return on_error(error);
        }
        catch_subscriber_panic(
            || tracing::error!(target: "peregrine", %error, kind, "a mounted service failed"),
        );
        Problem::new(status, kind, detail).into_response()
    }
}

/// What is polled together with a request's call to the service, and what the conversion of the
/// response needs.
struct CallState {
    /// Forwards the request's body to the service, if the body was incomplete.
    forwarder: Option<BodyForwarder>,
    pending_upgrade: Option<Box<PendingUpgrade>>,
    /// Whether the request's method is HEAD.
    is_head: bool,
    /// The deadline of a gRPC call.
    deadline: Option<Box<GrpcDeadline>>,
    /// Work that nested applications leave to be done after the response.
    nested_after_response: Vec<peregrine_web::response::AfterResponse>,
    /// Records which parts of the client's identity the response depends on.
    identity_marks: IdentityMarks,
}

impl CallState {
    /// Polls `call` to completion and converts the response.
    async fn run_call<C, B, E>(
        &mut self,
        mut call: Pin<impl DerefMut<Target = C>>,
        on_error: impl FnOnce(E) -> Response,
    ) -> Response
    where
        C: Future<Output = Result<http::Response<B>, E>> + ?Sized,
        B: HttpBody<Error: Into<BoxError>> + 'static,
    {
        let mut on_error = Some(on_error);
        poll_fn(|cx| {
            let Self { forwarder, nested_after_response, .. } = self;
            let polled = poll_with_provider(forwarder, cx, |cx| {
                after_response::collect(nested_after_response, || call.as_mut().poll(cx))
            });
            match polled {
                Poll::Ready(Ok(response)) => Poll::Ready(self.finish_response(response, cx)),
                Poll::Ready(Err(error)) => {
                    Poll::Ready(on_error.take().expect("a future completes only once")(error))
                }
                Poll::Pending => match &mut self.deadline {
                    Some(deadline) => deadline.poll(cx),
                    None => Poll::Pending,
                },
            }
        })
        .await
    }

    /// Converts the service's response.
    fn finish_response<B>(&mut self, response: http::Response<B>, cx: &mut Context<'_>) -> Response
    where
        B: HttpBody<Error: Into<BoxError>> + 'static,
    {
        let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let mut response =
            from_http(response, self.forwarder.take(), take(&mut self.nested_after_response), cx);
        // The extensions of a nested application's response contain the identities that it has
        // read, such as its sessions.
        if let Some(sources) = response.extensions().and_then(|extensions| extensions.get()) {
            self.identity_marks.mark(*sources);
        }
        if self.is_head {
            suppress_content_length(&mut response);
        }
        match self.pending_upgrade.take() {
            Some(pending) if is_upgraded => response.with_upgrade(pending.into_upgrade_handler()),
            _ => response,
        }
    }
}

/// Prevents the server from adding `Content-Length: 0` to a response to HEAD. The service may have
/// removed the content because of HEAD, so the response to GET is not necessarily empty. A
/// `Content-Length` that the service set is sent unchanged.
#[cold]
fn suppress_content_length(response: &mut Response) {
    if response.body.as_slice().is_some_and(<[u8]>::is_empty) {
        response.body = Body::new(UnknownLengthBody);
    }
}

/// An empty body that does not report its length.
struct UnknownLengthBody;

impl HttpBody for UnknownLengthBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}

impl<D> fmt::Debug for TowerHandler<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerHandler").field("options", &self.options).finish_non_exhaustive()
    }
}
