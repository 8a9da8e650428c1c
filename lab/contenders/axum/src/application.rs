//! The application: extractors and a `from_fn` middleware, as axum's documentation shows them. It
//! knows nothing of the server, so that another contender serves the very same file.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::ws::{Message as WebSocketMessage, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use futures_util::TryStreamExt;

use crate::model::{
    Event, EventQuery, Example, Health, HookState, Large, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, Uploaded, VERSIONS, collection_text, item_text, numbered_lines,
};
use crate::relay::Pool;

pub fn application() -> Router {
    Router::new()
        .route("/", get(|| async { "Hello, World!" }))
        .route("/hello", get(|| async { "Hello, World" }))
        .route("/json", get(json))
        .route("/api/v1/health", get(health))
        .route("/example", get(example))
        .route("/json-sort", post(sort))
        .route("/json-complex", post(complex))
        .route("/projects/{project_id}/events", post(record).layer(middleware::from_fn(hooks)))
        .route("/upload", post(upload))
        .route("/large", get(large))
        .route("/sleep/{ms}", get(sleep))
        .route("/spawn/{n}", get(spawn))
        .route("/relay/{text}", get(relay).with_state(Arc::new(Pool::from_environment())))
        .route("/download", get(download))
        .route("/echo", post(|text: String| async { text }))
        .route("/ws", get(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) }))
        .merge(large_application())
}

/// 400 routes, each with a literal version and resource.
fn large_application() -> Router {
    let mut router = Router::new();
    for version in VERSIONS {
        for resource in RESOURCES {
            let collection = |method: &'static str| {
                move || async move { collection_text(method, version, resource) }
            };
            let item = |method: &'static str| {
                move |Path(id): Path<String>| async move { item_text(method, version, resource, &id) }
            };
            let path = format!("/{version}/{resource}");
            let item_path = format!("/{version}/{resource}/{{id}}");
            router = router
                .route(&path, get(collection("GET")))
                .route(&path, post(collection("POST")))
                .route(&path, put(collection("PUT")))
                .route(&path, delete(collection("DELETE")))
                .route(&item_path, get(item("GET")))
                .route(&item_path, post(item("POST")))
                .route(&item_path, put(item("PUT")))
                .route(&item_path, delete(item("DELETE")));
        }
    }
    router
}

static DOWNLOAD: LazyLock<Bytes> = LazyLock::new(|| numbered_lines().into());

async fn download() -> Bytes {
    DOWNLOAD.clone()
}

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        let is_content = matches!(message, WebSocketMessage::Text(_) | WebSocketMessage::Binary(_));
        if is_content && socket.send(message).await.is_err() {
            break;
        }
    }
}

async fn json() -> Json<Message> {
    Json(Message { message: "Hello, World!" })
}

async fn health() -> Json<Health> {
    Json(Health { status: "ok" })
}

async fn example() -> Json<Example> {
    Json(Example::new())
}

async fn sort(Json(mut numbers): Json<Vec<i64>>) -> Json<Vec<i64>> {
    numbers.sort_unstable();
    Json(numbers)
}

async fn complex(Json(example): Json<Example>) -> String {
    example.a
}

async fn upload(body: Body) -> Result<Json<Uploaded>, StatusCode> {
    let mut pieces = body.into_data_stream();
    let mut upload = Upload::default();
    while let Some(piece) = pieces.try_next().await.map_err(|_| StatusCode::BAD_REQUEST)? {
        upload.receive(&piece);
    }
    Ok(Json(upload.finish()))
}

async fn large() -> Json<&'static Large> {
    Json(Large::shared())
}

async fn sleep(Path(ms): Path<u64>) -> Result<String, StatusCode> {
    if ms > SLEEP_MS_MAX {
        return Err(StatusCode::BAD_REQUEST);
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(ms.to_string())
}

async fn spawn(Path(n): Path<u32>) -> Result<String, StatusCode> {
    let next = tokio::spawn(async move { u64::from(n) + 1 }).await;
    next.map(|next| next.to_string()).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn relay(
    State(pool): State<Arc<Pool>>,
    Path(text): Path<String>,
) -> Result<String, StatusCode> {
    pool.relay(&text).await.map_err(|_| StatusCode::BAD_GATEWAY)
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
