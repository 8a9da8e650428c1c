//! Tower services as handlers.

use crate::after_response;
use crate::body::SendBody;
use crate::body_channel::{BodyForwarder, poll_with_task};
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
use peregrine_web::extract::Requirements;
use peregrine_web::handler::{OnDisconnect, RouteOptions, Signature};
use peregrine_web::panic::catch_log_panic;
use peregrine_web::private_response::{PrivateResponse, PrivateResponseWatch};
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
/// - Requests without a body, and those whose body arrived with the head, need no channel and no
///   task.
/// - Each request polls the service's `poll_ready`. While the service is not ready, the request
///   waits until its route's time limit expires or its peer disconnects. If `poll_ready` fails, the
///   response is a 503. If the call fails, it is a 500. [`TowerHandler::on_error`] changes both.
/// - Peregrine's limit on request bodies does not apply, because axum has its own; see
///   [`TowerHandler::body_limit`].
/// - The deadline of a gRPC call (`grpc-timeout`) applies, as in tonic's own server: a call whose
///   response has not begun by the deadline is dropped, and the response is `DEADLINE_EXCEEDED`.
/// - If the service panics, the response is a 500 and the connection is closed. The worker
///   continues.
#[doc(alias = "nest_service")]
#[doc(alias = "route_service")]
pub struct TowerHandler<R> {
    dispatch: R,
    options: RouteOptions,
    extensions: ConnectionExtensions,
    on_error: Option<ErrorHandler>,
}

type ErrorHandler = Arc<dyn Fn(BoxError) -> Response + Send + Sync>;

/// Converts `service` into a handler. `service` is an axum `Router` or any other tower service that
/// takes an `http::Request<SendBody>` and returns an `http::Response`. It can also be a
/// make-service that takes a peer's address, such as axum's
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

/// Types that can be mounted: tower services, make-services that take a peer's address, and a
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

/// Marks tower services.
#[derive(Debug)]
pub enum ViaService {}

/// Marks make-services.
#[derive(Debug)]
pub enum ViaMake {}

/// Marks [`TowerHandler`] itself, here and as a handler.
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

impl<R: Dispatch> IntoTowerHandler<ViaTowerHandler> for TowerHandler<R> {
    type Dispatch = R;

    fn into_tower_handler(self) -> Self {
        self
    }
}

impl<R> TowerHandler<R> {
    fn new(dispatch: R) -> Self {
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

    /// Sets the response to an error of the service's `call` or `poll_ready`, in place of 500 and
    /// 503. Services that cannot fail, such as axum routers, never use them.
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

    /// Limits the bodies of requests, in bytes. Default: none. axum's extractors have their own
    /// limit of 2 MB, and plain services have none, as under hyper.
    #[doc(alias = "DefaultBodyLimit")]
    #[must_use]
    pub fn body_limit(mut self, bytes_max: u64) -> Self {
        self.options.body_bytes_max = Some(bytes_max);
        self
    }

    /// Limits the time until a response begins, including the wait for a service that is not ready.
    /// Default: none. If the limit expires, the call is dropped and the response is a 503.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.options.timeout = Some(limit);
        self
    }

    /// Runs calls to completion when the peer disconnects. Default: their futures are dropped, as
    /// under hyper.
    #[doc(alias = "detach")]
    #[must_use]
    pub fn run_to_completion(mut self) -> Self {
        self.options.on_disconnect = OnDisconnect::RunToCompletion;
        self
    }
}

impl<R: Clone> Clone for TowerHandler<R> {
    fn clone(&self) -> Self {
        Self {
            dispatch: self.dispatch.clone(),
            options: self.options.clone(),
            extensions: self.extensions.clone(),
            on_error: self.on_error.clone(),
        }
    }
}

impl<R: Dispatch> Signature<ViaTowerHandler> for TowerHandler<R> {}

impl<R: Dispatch> Handler<ViaTowerHandler, ()> for TowerHandler<R> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        self.respond(request, false)
    }

    fn require(&self, _: &mut Requirements) {}

    fn configure(&self, options: &mut RouteOptions) {
        *options = self.options.clone();
    }
}

impl<R: Dispatch> TowerHandler<R> {
    /// Passes a request to the service and converts its response.
    ///
    /// The future is moved once for each request, so its size matters: it holds each large value
    /// (the request for the service, its call, a response) only once, and no longer than necessary.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` keeps its arguments twice")]
    pub(crate) fn respond(
        &self,
        request: Request,
        is_stripped: bool,
    ) -> impl Future<Output = Response> {
        async move {
            let head = &request.parts.head;
            let is_upgrade = head.index().wants_upgrade(head.as_bytes());
            let (readiness, pending_upgrade) = poll_fn(|cx| {
                let pending_upgrade = if is_upgrade { PendingUpgrade::new(cx) } else { None };
                Poll::Ready((self.dispatch.poll_ready(cx), pending_upgrade))
            })
            .await;
            let (parts, body) = request.into_parts();
            let (body, forwarder) = SendBody::into_forwarded(body);
            let is_head = parts.head.index().method == peregrine_proto::Method::Head;
            let (on_upgrade, upgrade) = pending_upgrade.unzip();
            let deadline = GrpcDeadline::from_head(&parts.head);
            let watch = PrivateResponse::watch(&parts);
            let mut cleanup = CallCleanup {
                forwarder,
                upgrade,
                is_head,
                deadline,
                after_response: Vec::new(),
                watch,
            };
            if let Poll::Ready(Ok(())) = readiness {
                let request = self.convert_request(parts, body, is_stripped, on_upgrade).0;
                let call = pin!(self.dispatch.call(request));
                cleanup
                    .respond(call, |error| self.error_response(TowerError::Call(error.into())))
                    .await
            } else {
                let (request, connection) =
                    self.convert_request(parts, body, is_stripped, on_upgrade);
                let call = self.dispatch.oneshot(readiness, request, &connection);
                drop(connection);
                cleanup.respond(call, |error| self.error_response(error)).await
            }
        }
    }

    /// Converts a request to the type that the service takes. Also returns the connection, which
    /// some services are created for.
    #[inline]
    fn convert_request(
        &self,
        mut parts: Parts,
        body: SendBody,
        is_stripped: bool,
        upgrade: Option<OnUpgrade>,
    ) -> (http::Request<SendBody>, Rc<ConnectionInfo>) {
        let (connection, client_addr) =
            (Rc::clone(parts.peek_connection()), ClientAddr::from_parts(&parts));
        PrivateResponse::mark_delegated(&parts);
        if extensions::is_nested() {
            PrivateResponse::export_marks(&mut parts);
        }
        let mut request = into_http(parts, body, is_stripped);
        self.extensions.insert_into(&connection, client_addr, request.extensions_mut());
        if let Some(upgrade) = upgrade {
            request.extensions_mut().insert(upgrade);
        }
        (request, connection)
    }

    #[cold]
    fn error_response(&self, failure: TowerError) -> Response {
        let (error, status, kind, detail) = match failure {
            TowerError::NotReady(error) => {
                let detail = "The server cannot answer now. Try again later.";
                (error, StatusCode::SERVICE_UNAVAILABLE, "not-ready", detail)
            }
            TowerError::Call(error) => {
                let detail = "The server failed while it worked on this request.";
                (error, StatusCode::INTERNAL_SERVER_ERROR, "service-failed", detail)
            }
        };
        if let Some(on_error) = &self.on_error {
            return on_error(error);
        }
        catch_log_panic(
            || tracing::error!(target: "peregrine", %error, kind, "a mounted service failed"),
        );
        Problem::new(status, kind, detail).into_response()
    }
}

/// What must be done for a request beside its call, and when the service has responded.
struct CallCleanup {
    forwarder: Option<BodyForwarder>,
    upgrade: Option<Box<PendingUpgrade>>,
    is_head: bool,
    /// The deadline of a gRPC call.
    deadline: Option<Box<GrpcDeadline>>,
    /// Work that nested applications leave to be done after the response.
    after_response: Vec<peregrine_web::response::AfterResponse>,
    watch: PrivateResponseWatch,
}

impl CallCleanup {
    /// Polls a call to its end and converts the response.
    async fn respond<C, B, E>(
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
            let Self { forwarder, after_response, .. } = self;
            let polled = poll_with_task(forwarder, cx, |cx| {
                after_response::collect(after_response, || call.as_mut().poll(cx))
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

    fn finish_response<B>(&mut self, response: http::Response<B>, cx: &mut Context<'_>) -> Response
    where
        B: HttpBody<Error: Into<BoxError>> + 'static,
    {
        let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let mut response =
            from_http(response, self.forwarder.take(), take(&mut self.after_response), cx);
        // A nested application may have identified the client from state that only it can read.
        if let Some(sources) = response.extensions().and_then(|extensions| extensions.get()) {
            self.watch.mark(*sources);
        }
        if self.is_head {
            remove_content_length(&mut response);
        }
        match self.upgrade.take() {
            Some(upgrade) if is_upgraded => response.with_upgrade(upgrade.into_on_upgrade()),
            _ => response,
        }
    }
}

/// Prevents the server from adding `Content-Length: 0` to a response to HEAD. A service may remove
/// the content of such a response, and then the body's length is not that of the response to GET.
/// A `Content-Length` that the service set is sent unchanged.
#[cold]
fn remove_content_length(response: &mut Response) {
    if response.body.as_slice().is_some_and(<[u8]>::is_empty) {
        response.body = Body::new(UnknownLengthBody);
    }
}

/// A body without bytes that does not announce its length.
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

impl<R> fmt::Debug for TowerHandler<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerHandler").field("options", &self.options).finish_non_exhaustive()
    }
}
