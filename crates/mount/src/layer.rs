//! Tower layers around services of ours.

use crate::origin::{Origin, OriginGuard};
use crate::reach::{Direct, Failure};
use crate::response::{BoxError, from_http, to_http, to_ours};
use http::StatusCode;
use http_body::Body as HttpBody;
use peregrine_web::service::Erased;
use peregrine_web::{Body, IntoResponse, Middleware, Problem, Request, Response, Service};
use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::ops::DerefMut;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use tower_layer::Layer;

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
/// use peregrine_mount::layer;
/// use peregrine_web::App;
/// use tower_http::set_header::SetResponseHeaderLayer;
///
/// let stamp = http::HeaderName::from_static("x-stamp");
/// let value = http::HeaderValue::from_static("1");
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
    Layered(layer)
}

/// A tower layer as a middleware. Made by [`layer`].
#[derive(Clone, Copy)]
pub struct Layered<L>(L);

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
        let passage = Rc::new(RefCell::new(Passage::default()));
        let service = Direct::new(self.0.layer(Inner(Next::Passage(Rc::clone(&passage)))));
        let mut outer = pin!(answer(&service, request));
        let mut inner = pin!(None);
        poll_fn(|context| {
            loop {
                if let Poll::Ready(response) = outer.as_mut().poll(context) {
                    return Poll::Ready(response);
                }
                if inner.is_none() {
                    let request = passage.borrow_mut().request.take();
                    let Some(request) = request else { return Poll::Pending };
                    inner.set(Some(next.call(request)));
                }
                let running = inner.as_mut().as_pin_mut().expect("it was put there above");
                let Poll::Ready(response) = running.poll(context) else { return Poll::Pending };
                inner.set(None);
                passage.borrow_mut().response = Some(response);
            }
        })
        .await
    }

    fn around<N: Service + 'static>(self: Rc<Self>, service: N) -> impl Service + 'static {
        Around(Direct::new(self.0.layer(Inner(Next::Route(Erased::new(service))))))
    }
}

/// A route inside a layer.
struct Around<S>(Direct<S>);

impl<S, B> Service for Around<S>
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        answer(&self.0, request)
    }
}

async fn answer<S, B>(service: &Direct<S>, request: Request) -> Response
where
    S: tower_service::Service<http::Request<Body>, Response = http::Response<B>> + Clone + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Error: Into<BoxError>> + 'static,
{
    let polled = poll_fn(|context| Poll::Ready(service.poll_shared(context))).await;
    let (mut parts, body) = request.into_parts();
    let mut request = parts.head.to_http(body);
    *request.extensions_mut() = std::mem::take(parts.extensions_mut());
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
    Passage(Rc<RefCell<Passage>>),
}

/// Where a request waits for a service that belongs to somebody else, and its response for the
/// layer.
#[derive(Default)]
struct Passage {
    request: Option<Request>,
    response: Option<Response>,
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
            let mut response = match next {
                Next::Route(service) => service.call(request).await,
                Next::Passage(passage) => {
                    passage.borrow_mut().request = Some(request);
                    // Whoever polls the layer polls what comes next when this is pending.
                    poll_fn(|_| match passage.borrow_mut().response.take() {
                        Some(response) => Poll::Ready(response),
                        None => Poll::Pending,
                    })
                    .await
                }
            };
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
