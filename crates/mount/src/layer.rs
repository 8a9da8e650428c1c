//! Tower layers around services of ours.

use crate::facts::Facts;
use crate::origin::{Origin, OriginGuard};
use crate::reach::{Direct, Failure};
use crate::response::{BoxError, from_http, to_http, to_ours};
use http::StatusCode;
use http_body::Body as HttpBody;
use peregrine_web::connection::ConnectionInfo;
use peregrine_web::service::Erased;
use peregrine_web::{Body, IntoResponse, Middleware, Problem, Request, Response, Service};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::DerefMut;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};
use tower_layer::Layer;

/// Calls of one request that may wait to be begun.
const WAITING_MAX: usize = 16;

/// A tower layer as a middleware, for whole applications and for scopes.
///
/// As with every middleware here, it goes around the routes that are added **after** it; in axum,
/// `layer` goes around those before. What a layer keeps for itself (the permits of a
/// `ConcurrencyLimitLayer`, say) there is once for each route, as in axum; a layer that shares it
/// (`GlobalConcurrencyLimitLayer`) shares it among the routes of a worker, or of all workers if it
/// is cloned into them.
///
/// Nothing needs to be `Send`, and the layer's service need not be `Clone` beyond what tower asks
/// for waiting: an error of the layer is answered with 500, or with 503 if it comes from
/// `poll_ready`.
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
///     .with(layer(SetResponseHeaderLayer::overriding(stamp, value)))
///     .get("/inside", || "stamped");
/// let client = app.test();
/// assert_eq!(client.get("/inside").send_now().field("x-stamp"), Some("1"));
/// assert_eq!(client.get("/outside").send_now().field("x-stamp"), None);
/// ```
///
/// # Cost
///
/// A layer sees a request of the `http` crate, which is made for it: some six allocations. Several
/// layers share them if they are given as one, by `tower::ServiceBuilder`.
pub fn layer<L, S, B>(layer: L) -> Layered<L>
where
    L: Layer<Inner, Service = S>,
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>>,
{
    Layered { layer, facts: Facts::default() }
}

/// A tower layer as a middleware. Made by [`layer()`].
#[derive(Clone)]
pub struct Layered<L> {
    layer: L,
    facts: Facts,
}

impl<L> Layered<L> {
    /// Puts what `make` makes of the connection's facts into the extensions of each request, unless
    /// there is one of its type already. Layers read it there, and so do handlers inside.
    ///
    /// ```
    /// use peregrine::tower::layer;
    /// use peregrine::App;
    /// use peregrine::web::connection::ConnectionInfo;
    /// use tower_http::trace::TraceLayer;
    ///
    /// let trace = TraceLayer::new_for_http().on_request(|request: &peregrine::http::Request<_>, _: &_| {
    ///     let info = request.extensions().get::<ConnectionInfo>().expect("it is put there");
    ///     println!("from {} over {:?}", info.peer, info.tls);
    /// });
    /// let app = App::new().with(layer(trace).extension(ConnectionInfo::clone));
    /// # let _ = app;
    /// ```
    #[must_use]
    pub fn extension<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(&ConnectionInfo) -> T + Send + Sync + 'static,
    {
        Self { facts: self.facts.and(make), ..self }
    }

    /// Puts what `make` makes of the peer's address into the extensions of each request that came
    /// over TCP, unless there is one of its type already. Layers made for axum, such as those that
    /// limit rates by address, look for its `ConnectInfo<SocketAddr>`: `.connect_info(ConnectInfo)`.
    #[must_use]
    pub fn connect_info<T, F>(self, make: F) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Fn(SocketAddr) -> T + Send + Sync + 'static,
    {
        Self { facts: self.facts.and_address(make), ..self }
    }
}

impl<L, S, B> Middleware for Layered<L>
where
    L: Layer<Inner, Service = S>,
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    /// Whoever calls this instead of `around` has a service that lives for one request only, so the
    /// layer's service does so too.
    async fn run<N: Service>(&self, request: Request, next: &N) -> Response {
        let (asking, mut asked) = mpsc::channel(WAITING_MAX);
        let service = Direct::new(self.layer.layer(Inner(Next::Borrowed(asking))));
        let mut outer = pin!(answer(&service, &self.facts, request));
        // A layer may ask more than once, one after the other or side by side.
        let mut calls = Vec::new();
        poll_fn(|context| {
            loop {
                if let Poll::Ready(response) = outer.as_mut().poll(context) {
                    return Poll::Ready(response);
                }
                while let Poll::Ready(Some(Call { request, reply })) = asked.poll_recv(context) {
                    calls.push((Box::pin(next.call(request)), Some(reply)));
                }
                let before = calls.len();
                calls.retain_mut(|(call, reply)| {
                    let Some(asker) = reply else { return false };
                    // What the layer gave up goes away, as it would with its peer.
                    if asker.poll_closed(context).is_ready() {
                        return false;
                    }
                    let Poll::Ready(response) = call.as_mut().poll(context) else { return true };
                    reply.take().map(|asker| asker.send(response)).is_none()
                });
                if calls.len() == before {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    fn around<N: Service + 'static>(self: Rc<Self>, service: N) -> impl Service + 'static {
        let service = Direct::new(self.layer.layer(Inner(Next::Route(Erased::new(service)))));
        Around { service, facts: self.facts.clone() }
    }
}

/// A route inside a layer.
struct Around<S> {
    service: Direct<S>,
    facts: Facts,
}

impl<S, B> Service for Around<S>
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        answer(&self.service, &self.facts, request)
    }
}

async fn answer<S, B>(service: &Direct<S>, facts: &Facts, request: Request) -> Response
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let polled = poll_fn(|context| Poll::Ready(service.poll_shared(context))).await;
    let (mut parts, body) = request.into_parts();
    let mut request = parts.head.to_http(body);
    *request.extensions_mut() = std::mem::take(parts.extensions_mut());
    facts.tell(parts.connection(), request.extensions_mut());
    let origin = Origin::keep(parts, &mut request);
    let response = if let Poll::Ready(Ok(())) = polled {
        let call = pin!(service.call_shared(request));
        answered(call, |error| Failure::Failed(error.into())).await
    } else {
        answered(service.wait_apart(polled, request), |failure| failure).await
    };
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        return response;
    }
    match origin.take_upgrade() {
        Some(upgrade) => response.with_upgrade(upgrade),
        None => response,
    }
}

/// Polls a call to its end, and makes its response ours.
async fn answered<C, B, E>(
    mut call: Pin<impl DerefMut<Target = C>>,
    failure: impl Fn(E) -> Failure,
) -> Response
where
    C: Future<Output = Result<http::Response<B>, E>> + ?Sized,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    poll_fn(|context| {
        call.as_mut().poll(context).map(|answered| match answered {
            Ok(response) => from_http(response, None, context),
            Err(error) => match failure(error) {
                Failure::NotReady(error) => failed(&error, StatusCode::SERVICE_UNAVAILABLE),
                Failure::Failed(error) => failed(&error, StatusCode::INTERNAL_SERVER_ERROR),
            },
        })
    })
    .await
}

#[cold]
fn failed(error: &BoxError, status: StatusCode) -> Response {
    tracing::error!(target: "peregrine", %error, "a tower layer failed");
    let detail = "The server could not answer this request.";
    Problem::new(status, "layer-failed", detail).into_response()
}

/// What a layer is put around: a tower service that takes a request with any body, and answers by
/// what comes next in our application.
#[derive(Clone)]
pub struct Inner(Next);

#[derive(Clone)]
enum Next {
    Route(Erased),
    /// What comes next belongs to somebody else, who calls it.
    Borrowed(mpsc::Sender<Call>),
}

/// A request on its way to whoever may call what comes next, and where its response goes.
struct Call {
    request: Request,
    reply: oneshot::Sender<Response>,
}

impl Next {
    async fn answer(self, request: Request) -> Response {
        let asking = match self {
            Self::Route(service) => return service.call(request).await,
            Self::Borrowed(asking) => asking,
        };
        let (reply, response) = oneshot::channel();
        if asking.send(Call { request, reply }).await.is_ok()
            && let Ok(response) = response.await
        {
            return response;
        }
        let error = "it called what it is around after it had answered its request";
        failed(&error.into(), StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl<B> tower_service::Service<http::Request<B>> for Inner
where
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = InnerFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> InnerFuture {
        let next = self.0.clone();
        InnerFuture(Box::pin(async move {
            let (parts, body) = request.into_parts();
            let (request, origin) = match OriginGuard::restore(parts, to_ours(body)) {
                Ok(restored) => restored,
                Err(problem) => return to_http(problem.into_response(), |body| body),
            };
            let mut response = next.answer(request).await;
            if let Some(upgrade) = response.take_upgrade() {
                origin.put_upgrade(upgrade);
            }
            to_http(response, |body| body)
        }))
    }
}

/// The future of [`Inner`].
pub struct InnerFuture(Pin<Box<dyn Future<Output = http::Response<Body>>>>);

impl Future for InnerFuture {
    type Output = Result<http::Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context).map(Ok)
    }
}

impl<L> fmt::Debug for Layered<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Layered")
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inner")
    }
}

impl fmt::Debug for InnerFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InnerFuture")
    }
}
