//! Slow routes, which complete before the server exits, and one that never would.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use futures_util::stream;
use std::convert::Infallible;
use std::future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tower_http::timeout::TimeoutLayer;

/// The application. A response must start within ten seconds.
pub fn app() -> Router {
    app_with_limit(Duration::from_secs(10))
}

/// The application with another time limit.
pub fn app_with_limit(limit: Duration) -> Router {
    Router::new()
        .route("/slow/{pause_ms}", get(slow))
        .route("/drip/{pieces}", get(drip))
        .route("/forever", get(future::pending::<()>))
        // Without this, a handler that never returns would keep the server from exiting.
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, limit))
        .route("/begun", get(begun))
        .with_state(Begun::default())
}

/// The number of slow requests that have started.
#[derive(Clone, Default)]
struct Begun(Arc<AtomicU64>);

async fn begun(State(begun): State<Begun>) -> String {
    begun.0.load(Ordering::SeqCst).to_string()
}

async fn slow(Path(pause_ms): Path<u64>, State(begun): State<Begun>) -> &'static str {
    begun.0.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(pause_ms)).await;
    "slow, but done"
}

/// A slow body.
async fn drip(Path(pieces): Path<u64>, State(begun): State<Begun>) -> Body {
    begun.0.fetch_add(1, Ordering::SeqCst);
    Body::from_stream(stream::unfold(0, move |number| async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let piece = Ok::<_, Infallible>(format!("drop {number}\n"));
        (number < pieces).then_some((piece, number + 1))
    }))
}
