//! Compressed request and response bodies; the handler sees them uncompressed.

use axum::Router;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderName, HeaderValue};
use axum::routing::{get, post};
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::set_header::SetResponseHeaderLayer;

/// The application.
pub fn app() -> Router {
    let kind = HeaderName::from_static("x-served-by");
    let around = ServiceBuilder::new()
        .layer(SetResponseHeaderLayer::overriding(kind, HeaderValue::from_static("an example")))
        .layer(SetResponseHeaderLayer::if_not_present(
            CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        ))
        .layer(RequestDecompressionLayer::new())
        .layer(CompressionLayer::new());
    Router::new()
        .route("/count", post(async |text: String| text.len().to_string()))
        .route("/text", get(async || "all the same ".repeat(2_000)))
        .route("/kept", get(async || ([(CACHE_CONTROL, "max-age=60")], "kept")))
        .layer(around)
}
