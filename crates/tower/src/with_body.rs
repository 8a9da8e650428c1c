//! Tower layers that require one body type.

use crate::body::SendBody;
use crate::error::BoxError;
use crate::layer::{LayerMiddleware, NextFuture, NextService, layer};
use http_body::Body as HttpBody;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Converts a tower layer that requires one body type, usually axum's, into a middleware. Examples
/// are `axum::middleware::from_fn`, `login_required!` of axum-login, and `GovernorLayer`.
/// `convert_body` converts a [`SendBody`] into the required type.
///
/// ```
/// use axum::body::Body;
/// use axum::extract::Request;
/// use axum::middleware::{Next, from_fn};
/// use axum::response::Response;
/// use peregrine::tower::layer_with_body;
/// use peregrine::App;
///
/// async fn stamp(request: Request, next: Next) -> Response {
///     let mut response = next.run(request).await;
///     response.headers_mut().insert("x-stamp", peregrine::http::HeaderValue::from_static("1"));
///     response
/// }
///
/// let app = App::new().wrap(layer_with_body(Body::new, from_fn(stamp))).get("/", || "hello");
/// let response = app.test().get("/").send_blocking();
/// assert_eq!((response.header("x-stamp"), response.text().as_str()), (Some("1"), "hello"));
/// ```
///
/// Otherwise it works like [`layer()`], which is for layers that accept any body type.
///
/// # Cost
///
/// The cost is that of [`layer()`] plus that of `convert_body`. `axum::body::Body::new` boxes each
/// body that is not empty, and Peregrine reads a boxed body as a stream.
pub fn layer_with_body<L, B, S, R>(
    convert_body: fn(SendBody) -> B,
    inner_layer: L,
) -> LayerMiddleware<LayerWithBody<L, B>>
where
    L: Layer<NextServiceWithBody<B>, Service = S>,
    S: Service<http::Request<B>, Response = http::Response<R>>,
{
    layer(LayerWithBody { convert_body, layer: inner_layer })
}

/// Adapts a layer for one body type to [`SendBody`]. Created by [`layer_with_body`].
pub struct LayerWithBody<L, B> {
    convert_body: fn(SendBody) -> B,
    layer: L,
}

impl<L: Clone, B> Clone for LayerWithBody<L, B> {
    fn clone(&self) -> Self {
        Self { convert_body: self.convert_body, layer: self.layer.clone() }
    }
}

impl<L: Layer<NextServiceWithBody<B>>, B> Layer<NextService> for LayerWithBody<L, B> {
    type Service = ServiceWithBody<L::Service, B>;

    fn layer(&self, inner: NextService) -> Self::Service {
        let service =
            self.layer.layer(NextServiceWithBody { convert_body: self.convert_body, inner });
        ServiceWithBody { convert_body: self.convert_body, service }
    }
}

/// Adapts a service that accepts one body type to [`SendBody`].
pub struct ServiceWithBody<S, B> {
    convert_body: fn(SendBody) -> B,
    service: S,
}

impl<S: Clone, B> Clone for ServiceWithBody<S, B> {
    fn clone(&self) -> Self {
        Self { convert_body: self.convert_body, service: self.service.clone() }
    }
}

impl<S: Service<http::Request<B>>, B> Service<http::Request<SendBody>> for ServiceWithBody<S, B> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<SendBody>) -> S::Future {
        self.service.call(request.map(self.convert_body))
    }
}

/// [`NextService`], with its response bodies converted to `B`.
pub struct NextServiceWithBody<B> {
    convert_body: fn(SendBody) -> B,
    inner: NextService,
}

impl<B> Clone for NextServiceWithBody<B> {
    fn clone(&self) -> Self {
        Self { convert_body: self.convert_body, inner: self.inner.clone() }
    }
}

impl<T, B> Service<http::Request<T>> for NextServiceWithBody<B>
where
    T: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    type Response = http::Response<B>;
    type Error = Infallible;
    type Future = NextFutureWithBody<T, B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<T>) -> Self::Future {
        NextFutureWithBody { convert_body: self.convert_body, call: self.inner.call(request) }
    }
}

/// The future of [`NextServiceWithBody`].
pub struct NextFutureWithBody<T, B> {
    convert_body: fn(SendBody) -> B,
    call: NextFuture<T>,
}

impl<T, B> Future for NextFutureWithBody<T, B>
where
    T: HttpBody<Error: Into<BoxError>> + Send + 'static,
{
    type Output = Result<http::Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = Pin::new(&mut self.call).poll(cx);
        polled.map(|result| result.map(|response| response.map(self.convert_body)))
    }
}

impl<L, B> fmt::Debug for LayerWithBody<L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LayerWithBody")
    }
}

impl<S, B> fmt::Debug for ServiceWithBody<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServiceWithBody")
    }
}

impl<B> fmt::Debug for NextServiceWithBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextServiceWithBody")
    }
}

impl<T, B> fmt::Debug for NextFutureWithBody<T, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextFutureWithBody")
    }
}
