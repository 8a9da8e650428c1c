//! HEAD requests go to the handler for GET, which may skip producing the body.

use axum::Router;
use axum::http::Method;
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/implicit", get("the whole text"))
        .route("/explicit", get(explicit))
        .route("/length", get(length))
}

async fn explicit(method: Method) -> Response {
    if method == Method::HEAD {
        return [("x-answer", "of HEAD")].into_response();
    }
    ([("x-answer", "of GET")], "what took long").into_response()
}

/// Returns the length without producing the content.
async fn length(method: Method) -> Response {
    if method == Method::HEAD {
        return [(CONTENT_LENGTH, "100000")].into_response();
    }
    "x".repeat(100_000).into_response()
}
