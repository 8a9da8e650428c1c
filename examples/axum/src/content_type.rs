//! One handler for JSON and for forms: an extractor that reads the content type, and a version in
//! the path.

use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Form, Json, RequestExt, RequestPartsExt, Router};
use serde::Deserialize;
use std::collections::HashMap;

/// The application.
pub fn app() -> Router {
    Router::new().route("/{version}/birds", post(create))
}

#[derive(Deserialize)]
struct Bird {
    name: String,
}

async fn create(version: Version, JsonOrForm(bird): JsonOrForm<Bird>) -> String {
    format!("{} by {version:?}", bird.name)
}

#[derive(Debug)]
enum Version {
    V1,
    V2,
}

impl<S: Send + Sync> FromRequestParts<S> for Version {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let parameters = parts.extract::<Path<HashMap<String, String>>>().await;
        let parameters = parameters.map_err(IntoResponse::into_response)?;
        match parameters.get("version").map(String::as_str) {
            Some("v1") => Ok(Self::V1),
            Some("v2") => Ok(Self::V2),
            _ => Err((StatusCode::NOT_FOUND, "no such version").into_response()),
        }
    }
}

struct JsonOrForm<T>(T);

impl<S, T> FromRequest<S> for JsonOrForm<T>
where
    S: Send + Sync,
    T: 'static,
    Json<T>: FromRequest<()>,
    Form<T>: FromRequest<()>,
{
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        match kind {
            Some(kind) if kind.starts_with("application/json") => {
                let Json(value) = request.extract().await.map_err(IntoResponse::into_response)?;
                Ok(Self(value))
            }
            Some(kind) if kind.starts_with("application/x-www-form-urlencoded") => {
                let Form(value) = request.extract().await.map_err(IntoResponse::into_response)?;
                Ok(Self(value))
            }
            _ => Err(StatusCode::UNSUPPORTED_MEDIA_TYPE.into_response()),
        }
    }
}
