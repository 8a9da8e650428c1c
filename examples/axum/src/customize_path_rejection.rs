//! A path extractor whose rejections are JSON and name the invalid parameter.

use axum::extract::FromRequestParts;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::get;
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The application.
pub fn app() -> Router {
    Router::new().route("/flocks/{flock}/birds/{bird}", get(find))
}

#[derive(Deserialize, Serialize)]
struct Place {
    flock: String,
    bird: u32,
}

async fn find(Path(place): Path<Place>) -> Json<Place> {
    Json(place)
}

/// axum's `Path` with other error responses.
struct Path<T>(T);

#[derive(Serialize)]
struct Complaint {
    message: String,
    parameter: Option<String>,
}

impl<S, T> FromRequestParts<S> for Path<T>
where
    T: DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = (StatusCode, Json<Complaint>);

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let rejection = match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => return Ok(Self(value)),
            Err(rejection) => rejection,
        };
        let (status, complaint) = match rejection {
            PathRejection::FailedToDeserializePathParams(error) => {
                let kind = error.into_kind();
                let parameter = match &kind {
                    ErrorKind::ParseErrorAtKey { key, .. }
                    | ErrorKind::InvalidUtf8InPathParam { key } => Some(key.clone()),
                    _ => None,
                };
                (StatusCode::BAD_REQUEST, Complaint { message: kind.to_string(), parameter })
            }
            other => {
                let message = other.to_string();
                (StatusCode::INTERNAL_SERVER_ERROR, Complaint { message, parameter: None })
            }
        };
        Err((status, Json(complaint)))
    }
}
