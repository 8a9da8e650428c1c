//! The rival axum, as its documentation shows it: extractors, a `from_fn` middleware, and
//! `axum::serve` on tokio's multi-thread runtime. TLS is served by the loop of axum's own
//! low-level example, because `axum::serve` has none.

mod model;
mod settings;

use std::net::Ipv4Addr;

use axum::extract::{Extension, Path, Query, Request};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use model::{Event, EventQuery, HookState, Message, Recorded};
use settings::{Settings, Tls};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let settings = Settings::from_environment();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .enable_all()
        .build()
        .expect("threads can be started")
        .block_on(serve(settings));
}

async fn serve(settings: Settings) {
    let app = Router::new()
        .route("/json", get(json))
        .route("/", get(|| async { "Hello, World!" }))
        .route("/projects/{project_id}/events", post(record).layer(middleware::from_fn(hooks)));
    if let Some(tls) = settings.tls {
        tokio::spawn(serve_tls(tls, app.clone()));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port))
        .await
        .expect("the port is free")
        .tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
    axum::serve(listener, app).await.expect("serving does not end");
}

async fn serve_tls(tls: Tls, app: Router) {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, tls.port)).await.expect("the TLS port is free");
    let acceptor = TlsAcceptor::from(tls.config);
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let acceptor = acceptor.clone();
        let app = app.clone();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            // A peer that goes away is not this program's error.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(app))
                .await;
        });
    }
}

async fn json() -> Json<Message> {
    Json(Message { message: "Hello, World!" })
}

async fn hooks(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(HookState { after: "done" });
    let mut response = next.run(request).await;
    response.headers_mut().insert("x-benchmark-after", HeaderValue::from_static("done"));
    response
}

async fn record(
    Path(project_id): Path<String>,
    Query(query): Query<EventQuery>,
    Extension(state): Extension<HookState>,
    headers: HeaderMap,
    Json(event): Json<Event>,
) -> Response {
    if state.after != "done" {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let Some(request_id) = headers.get("x-request-id").and_then(|value| value.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "the header X-Request-ID is missing").into_response();
    };
    if !event.is_complete() {
        return (StatusCode::UNPROCESSABLE_ENTITY, "name and quantity are required")
            .into_response();
    }
    let recorded = Recorded::new(project_id, query.tenant, request_id.to_owned(), event);
    (StatusCode::CREATED, Json(recorded)).into_response()
}
