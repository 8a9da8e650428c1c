//! A form with files, whose bytes are counted as they arrive.

use axum::extract::DefaultBodyLimit;
use axum::extract::multipart::{Multipart, MultipartError};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tower_http::limit::RequestBodyLimitLayer;

/// The maximum size of a form, in bytes.
pub const FORM_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/", get(page).post(receive))
        .layer(DefaultBodyLimit::disable())
        .layer(RequestBodyLimitLayer::new(FORM_BYTES_MAX))
}

async fn page() -> Html<&'static str> {
    Html(
        "<!doctype html><form method=post enctype=multipart/form-data>\
         <input type=file name=file multiple><button>Send</button></form>",
    )
}

#[derive(Serialize)]
struct Part {
    name: Option<String>,
    file_name: Option<String>,
    content_type: Option<String>,
    bytes: usize,
    sum: u64,
}

async fn receive(mut form: Multipart) -> Result<impl IntoResponse, MultipartError> {
    let mut parts = Vec::new();
    while let Some(mut field) = form.next_field().await? {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let mut part = Part {
            name: owned(field.name()),
            file_name: owned(field.file_name()),
            content_type: owned(field.content_type()),
            bytes: 0,
            sum: 0,
        };
        while let Some(chunk) = field.chunk().await? {
            part.bytes += chunk.len();
            part.sum += chunk.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
        parts.push(part);
    }
    Ok(Json(parts))
}
