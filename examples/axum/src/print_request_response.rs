//! A middleware that buffers the whole bodies of requests and responses to log them.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::post;

/// The maximum size of a body, in bytes.
pub const SHOWN_BYTES_MAX: usize = 64 * 1024;

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/upper", post(async |text: String| text.to_uppercase()))
        .layer(from_fn(print))
}

async fn print(request: Request, next: Next) -> Result<Response, (StatusCode, String)> {
    let (parts, body) = request.into_parts();
    let bytes = show("request", body, StatusCode::PAYLOAD_TOO_LARGE).await?;
    let response = next.run(Request::from_parts(parts, Body::from(bytes))).await;
    let (parts, body) = response.into_parts();
    let bytes = show("response", body, StatusCode::INTERNAL_SERVER_ERROR).await?;
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

async fn show(what: &str, body: Body, status: StatusCode) -> Result<Bytes, (StatusCode, String)> {
    let bytes = to_bytes(body, SHOWN_BYTES_MAX)
        .await
        .map_err(|error| (status, format!("The {what} cannot be logged: {error}.")))?;
    tracing::info!("{what}: {}", String::from_utf8_lossy(&bytes));
    Ok(bytes)
}
