//! Forwards every request to another server and streams the response back.

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    CONNECTION, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;

type Forwarder = Client<HttpConnector, Body>;

/// The application, in front of the server at `upstream`.
pub fn app_before(upstream: SocketAddr) -> Router {
    let client: Forwarder = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    Router::new().fallback(forward).with_state((client, upstream))
}

/// An upstream for the proxy.
pub fn upstream() -> Router {
    Router::new()
        .route("/", get("Hello from behind!"))
        .route("/where", get(async |target: Uri| target.to_string()))
        .route("/echo", post(async |body: Body| body))
        .route("/teapot", get(StatusCode::IM_A_TEAPOT))
}

async fn forward(
    State((client, upstream)): State<(Forwarder, SocketAddr)>,
    mut request: Request,
) -> Result<Response, StatusCode> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let target = format!("http://{upstream}{path}");
    *request.uri_mut() = Uri::try_from(target).map_err(|_| StatusCode::BAD_REQUEST)?;
    keep_end_to_end(request.headers_mut());
    let response = client.request(request).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    let mut response = response.into_response();
    keep_end_to_end(response.headers_mut());
    Ok(response)
}

/// Removes hop-by-hop fields, which do not apply to the next connection.
fn keep_end_to_end(fields: &mut HeaderMap) {
    // An intermediary removes Connection, the fields it lists, and fields known to be hop-by-hop
    // whether they are listed or not (RFC 9110 §7.6.1).
    let named: Vec<HeaderName> = fields
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let known = [
        CONNECTION,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in named.into_iter().chain(known) {
        fields.remove(name);
    }
}
