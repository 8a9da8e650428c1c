//! A span for each request with the matched route, and events for its stages.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Path, Request};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use std::time::Duration;
use tower_http::classify::ServerErrorsFailureClass;
use tower_http::trace::TraceLayer;
use tracing::Span;
use tracing::field::Empty;

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/birds/{name}", get(bird))
        .route("/broken/{name}", get(StatusCode::INTERNAL_SERVER_ERROR))
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(span)
                .on_request(|_: &Request, _: &Span| tracing::debug!("began"))
                .on_response(|response: &Response, _: Duration, span: &Span| {
                    span.record("status", response.status().as_u16());
                    tracing::debug!("answered");
                })
                .on_body_chunk(|chunk: &Bytes, _: Duration, _: &Span| {
                    tracing::debug!(bytes = chunk.len(), "sent a piece");
                })
                .on_eos(|_: Option<&HeaderMap>, _: Duration, _: &Span| tracing::debug!("ended"))
                .on_failure(|class: ServerErrorsFailureClass, _: Duration, _: &Span| {
                    tracing::error!(%class, "failed");
                }),
        )
}

fn span(request: &Request) -> Span {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    tracing::info_span!(
        "request",
        method = %request.method(),
        uri = %request.uri(),
        route,
        status = Empty
    )
}

async fn bird(Path(name): Path<String>) -> String {
    tracing::info!("looking for it");
    // The span is still entered after an await, and does not contain events of other requests.
    tokio::time::sleep(Duration::from_millis(5)).await;
    tracing::info!("found it");
    format!("a {name}")
}
