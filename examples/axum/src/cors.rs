//! An API that pages from one other origin may call.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method};
use axum::response::Html;
use axum::routing::get;
use axum::{Json, Router};
use std::time::Duration;
use tower_http::cors::CorsLayer;

/// The origin of the page.
pub const ORIGIN: &str = "http://localhost:3000";

/// The API.
pub fn app() -> Router {
    let cors = CorsLayer::new()
        .allow_origin(HeaderValue::from_static(ORIGIN))
        .allow_methods([Method::GET, Method::PUT])
        .allow_headers([CONTENT_TYPE])
        .max_age(Duration::from_secs(600));
    let birds = get(async || Json(["wren", "rook"])).put(async |Json(name): Json<String>| name);
    Router::new().route("/birds", birds).layer(cors)
}

/// The page, which calls the API at `localhost:3001`.
pub fn page() -> Router {
    let page = "<!doctype html><script>fetch('http://localhost:3001/birds')\
        .then(response => response.json()).then(birds => document.body.append(birds))</script>";
    Router::new().route("/", get(async move || Html(page)))
}
