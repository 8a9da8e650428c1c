//! One route that answers with a page.

use axum::Router;
use axum::response::Html;
use axum::routing::get;

/// The application.
pub fn app() -> Router {
    Router::new().route("/", get(hello))
}

async fn hello() -> Html<&'static str> {
    Html("<h1>Hello, World!</h1>")
}
