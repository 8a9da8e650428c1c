//! Files from a folder, in five ways.

use axum::Router;
use axum::extract::Request;
use axum::handler::HandlerWithoutStateExt;
use axum::http::StatusCode;
use axum::routing::get;
use std::path::PathBuf;
use tower::ServiceExt;
use tower_http::services::{ServeDir, ServeFile};
use tower_http::set_status::SetStatus;

/// The application, which serves the files in this package's `assets`.
pub fn app() -> Router {
    let assets = assets();
    let index = ServeFile::new(assets.join("index.html"));
    // A single-page application: every path serves the index.
    let page = ServeDir::new(&assets).fallback(index.clone());
    // The same, but with a 404 for unknown paths.
    let strict = SetStatus::new(index, StatusCode::NOT_FOUND);
    Router::new()
        .nest_service("/assets", ServeDir::new(&assets))
        .nest_service("/page", page)
        .nest_service("/strict", ServeDir::new(&assets).not_found_service(strict))
        .route_service("/lines", ServeFile::new(assets.join("lines.txt")))
        .nest_service("/called", get(call))
        .route("/plain", get("no file"))
        .fallback_service(ServeDir::new(&assets).fallback(nothing.into_service()))
}

fn assets() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/assets"))
}

async fn call(request: Request) -> Result<impl axum::response::IntoResponse, StatusCode> {
    let served = ServeDir::new(assets()).oneshot(request).await;
    served.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "There is no such file.")
}
