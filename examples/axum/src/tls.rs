//! An application behind TLS, and another one that redirects plain HTTP requests to it.

use axum::Router;
use axum::extract::State;
use axum::http::header::HOST;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Redirect;
use axum::routing::{get, post};

/// The application. The server adds TLS.
pub fn app() -> Router {
    Router::new()
        .route("/", get("Hello, in secret!"))
        .route("/echo", post(async |body: String| body))
}

/// Redirects every request to the same host at `https_port`.
pub fn redirect_app(https_port: u16) -> Router {
    Router::new().fallback(redirect).with_state(https_port)
}

async fn redirect(
    State(https_port): State<u16>,
    fields: HeaderMap,
    target: Uri,
) -> Result<Redirect, StatusCode> {
    let host = fields.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host_name(host);
    let path = target.path_and_query().map_or("/", |path| path.as_str());
    if name.is_empty() {
        return Err(StatusCode::BAD_REQUEST);
    }
    Ok(Redirect::permanent(&format!("https://{name}:{https_port}{path}")))
}

/// The host without its port. Colons within brackets are part of an IPv6 address.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}
