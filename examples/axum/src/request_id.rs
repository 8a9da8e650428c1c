//! An id for each request, from the client or generated, in the handler, the log and the response.

use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::HeaderValue;
use axum::routing::get;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tower::ServiceBuilder;
use tower_http::request_id::{
    MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer,
};
use tower_http::trace::TraceLayer;

/// The application.
pub fn app() -> Router {
    let around = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(Counter::default()))
        .layer(TraceLayer::new_for_http().make_span_with(|request: &Request| {
            let id = request.extensions().get::<RequestId>().map(RequestId::header_value);
            tracing::info_span!("request", ?id)
        }))
        .layer(PropagateRequestIdLayer::x_request_id());
    Router::new().route("/", get(tell)).layer(around)
}

async fn tell(Extension(id): Extension<RequestId>) -> Vec<u8> {
    id.header_value().as_bytes().to_vec()
}

/// A counter shared by all workers.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicU64>);

impl MakeRequestId for Counter {
    fn make_request_id<B>(&mut self, _: &axum::http::Request<B>) -> Option<RequestId> {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        HeaderValue::from_str(&format!("request-{number}")).ok().map(RequestId::new)
    }
}
