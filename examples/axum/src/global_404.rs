//! One response for all unknown paths, and one for all methods that are not allowed.

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::routing::{get, post};

/// The application.
pub fn app() -> Router {
    let birds = Router::new().route("/", get("all")).route("/{name}", post("made"));
    Router::new()
        .route("/", get("home"))
        .nest("/birds", birds)
        .fallback(unknown)
        .method_not_allowed_fallback(refused)
}

async fn unknown(target: Uri) -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, format!("There is nothing at {target}."))
}

async fn refused(method: Method, target: Uri) -> (StatusCode, String) {
    (StatusCode::METHOD_NOT_ALLOWED, format!("{} does not allow {method}.", target.path()))
}
