//! One error type for all handlers, with a message for the client and details in the log.

use axum::Router;
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::num::ParseIntError;
use std::sync::{Arc, Mutex};

/// The application.
pub fn app() -> Router {
    Router::new()
        .route("/birds", post(create))
        .route("/birds/{id}", get(find))
        .layer(from_fn(log_errors))
        .with_state(Birds::default())
}

type Birds = Arc<Mutex<BTreeMap<u64, Bird>>>;

#[derive(Clone, Deserialize, Serialize)]
struct Bird {
    name: String,
}

async fn create(
    State(birds): State<Birds>,
    AppJson(bird): AppJson<Bird>,
) -> Result<(StatusCode, AppJson<u64>), AppError> {
    let mut birds = birds.lock().expect("no panic while the lock is held");
    let id = birds.len() as u64 + 1;
    if id > 2 {
        return Err(AppError::Full);
    }
    birds.insert(id, bird);
    Ok((StatusCode::CREATED, AppJson(id)))
}

async fn find(
    State(birds): State<Birds>,
    Path(id): Path<String>,
) -> Result<AppJson<Bird>, AppError> {
    let id = id.parse::<u64>()?;
    let birds = birds.lock().expect("no panic while the lock is held");
    birds.get(&id).cloned().map(AppJson).ok_or(AppError::Unknown(id))
}

/// axum's `Json`, with rejections converted to our error type.
#[derive(FromRequest)]
#[from_request(via(axum::Json), rejection(AppError))]
struct AppJson<T>(T);

impl<T: Serialize> IntoResponse for AppJson<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

#[derive(Debug)]
enum AppError {
    Rejected(JsonRejection),
    NoNumber(ParseIntError),
    Unknown(u64),
    Full,
}

impl From<JsonRejection> for AppError {
    fn from(rejection: JsonRejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<ParseIntError> for AppError {
    fn from(error: ParseIntError) -> Self {
        Self::NoNumber(error)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        let (status, message) = match &self {
            Self::Rejected(rejection) => (rejection.status(), rejection.body_text()),
            Self::NoNumber(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            Self::Unknown(id) => (StatusCode::NOT_FOUND, format!("There is no bird {id}.")),
            // The client does not need the details of an internal error.
            Self::Full => (StatusCode::INTERNAL_SERVER_ERROR, "Something failed.".to_owned()),
        };
        let mut response = (status, axum::Json(json!({ "message": message }))).into_response();
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}

/// Logs the errors, including the details that clients do not see.
async fn log_errors(request: Request, next: Next) -> Response {
    let target = request.uri().clone();
    let response = next.run(request).await;
    if let Some(error) = response.extensions().get::<Arc<AppError>>() {
        tracing::error!(%target, ?error, "a handler failed");
    }
    response
}
