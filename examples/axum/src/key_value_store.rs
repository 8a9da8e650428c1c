//! A key-value store behind a stack of tower layers: load shedding, limits on concurrency, time and
//! body size, compression, and routes that require a token.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::error_handling::HandleErrorLayer;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::handler::Handler;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{delete, get};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::Notify;
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;
use tower::{BoxError, ServiceBuilder};
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::trace::TraceLayer;
use tower_http::validate_request::ValidateRequestHeaderLayer;

/// The maximum size of a value, in bytes.
pub const VALUE_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The token that requests to the routes below `/admin` must have.
pub const TOKEN: &str = "open-sesame";

/// The application: at most 1,024 concurrent calls of a route, with a timeout of ten seconds.
pub fn app() -> Router {
    app_with_limits(1_024, Duration::from_secs(10))
}

/// The application with other limits.
pub fn app_with_limits(calls_max: usize, limit: Duration) -> Router {
    let store = Store::default();
    let values = get(read.layer(CompressionLayer::new())).put_service(
        write
            .layer((DefaultBodyLimit::disable(), RequestBodyLimitLayer::new(VALUE_BYTES_MAX)))
            .with_state(store.clone()),
    );
    Router::new()
        .route("/values/{key}", values)
        .route("/values/{key}/awaited", get(wait_for))
        .route("/keys", get(keys))
        .nest("/admin", admin())
        .layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(answer_for))
                .load_shed()
                .concurrency_limit(calls_max)
                .timeout(limit)
                .layer(TraceLayer::new_for_http()),
        )
        .with_state(store)
}

fn admin() -> Router<Store> {
    Router::new()
        .route("/keys", delete(remove_all))
        .route("/keys/{key}", delete(remove))
        .layer(ValidateRequestHeaderLayer::custom(check_token))
}

#[expect(clippy::result_large_err, reason = "tower-http requires this type")]
fn check_token(request: &mut Request<Body>) -> Result<(), Response<Body>> {
    let given = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    // A constant-time comparison: the duration of `==` would reveal how much of the token is right.
    if given.ct_eq(TOKEN.as_bytes()).into() {
        return Ok(());
    }
    Err((StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")]).into_response())
}

async fn answer_for(error: BoxError) -> impl IntoResponse {
    if error.is::<Elapsed>() {
        (StatusCode::REQUEST_TIMEOUT, "The request timed out.".to_owned())
    } else if error.is::<Overloaded>() {
        (StatusCode::SERVICE_UNAVAILABLE, "Too many requests.".to_owned())
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("The request failed: {error}"))
    }
}

#[derive(Clone, Default)]
struct Store(Arc<Shared>);

#[derive(Default)]
struct Shared {
    values: Mutex<BTreeMap<String, Bytes>>,
    written: Notify,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.0.values.lock().expect("no panic while the lock is held")
    }
}

async fn read(Path(key): Path<String>, State(store): State<Store>) -> Result<Bytes, StatusCode> {
    store.lock().get(&key).cloned().ok_or(StatusCode::NOT_FOUND)
}

async fn write(Path(key): Path<String>, State(store): State<Store>, value: Bytes) {
    store.lock().insert(key, value);
    store.0.written.notify_waiters();
}

/// Responds as soon as the key has a value.
async fn wait_for(Path(key): Path<String>, State(store): State<Store>) -> Bytes {
    loop {
        let written = store.0.written.notified();
        if let Some(value) = store.lock().get(&key).cloned() {
            return value;
        }
        written.await;
    }
}

async fn keys(State(store): State<Store>) -> String {
    store.lock().keys().map(|key| format!("{key}\n")).collect()
}

async fn remove_all(State(store): State<Store>) {
    store.lock().clear();
}

async fn remove(Path(key): Path<String>, State(store): State<Store>) -> StatusCode {
    match store.lock().remove(&key) {
        Some(_) => StatusCode::NO_CONTENT,
        None => StatusCode::NOT_FOUND,
    }
}
