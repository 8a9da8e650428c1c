//! Counts requests by route and status, and serves the counts on a second, private address.

use axum::Router;
use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The application that is counted, and the one that serves the counts.
pub fn apps() -> (Router, Router) {
    let counts = Counts::default();
    let public = Router::new()
        .route("/birds/{name}", get(find))
        .route("/slow", get(tokio::task::yield_now))
        .route_layer(from_fn_with_state(counts.clone(), count));
    let private = Router::new().route("/metrics", get(tell)).with_state(counts);
    (public, private)
}

type Counts = Arc<Mutex<BTreeMap<(String, String, u16), u64>>>;

async fn find(Path(name): Path<String>) -> Result<String, StatusCode> {
    if name == "dodo" { Err(StatusCode::GONE) } else { Ok(name) }
}

async fn count(State(counts): State<Counts>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = route.unwrap_or("(none)").to_owned();
    let method = request.method().to_string();
    let response = next.run(request).await;
    let label = (method, route, response.status().as_u16());
    *counts.lock().expect("no panic while the lock is held").entry(label).or_default() += 1;
    response
}

/// The counts in the Prometheus text format.
async fn tell(State(counts): State<Counts>) -> String {
    let counts = counts.lock().expect("no panic while the lock is held");
    let mut text = "# TYPE http_requests_total counter\n".to_owned();
    for ((method, route, status), count) in counts.iter() {
        let labels = format!("method=\"{method}\",path=\"{route}\",status=\"{status}\"");
        text.push_str(&format!("http_requests_total{{{labels}}} {count}\n"));
    }
    text
}
