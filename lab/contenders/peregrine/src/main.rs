//! Peregrine, as its guide shows it: extractors and a middleware function. `serve` answers SIGTERM
//! with its graceful shutdown.

mod model;
mod relay;

use std::env;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Duration;

use peregrine::bytes::Bytes;
use peregrine::access_log::AccessLogOptions;
use peregrine::prelude::*;
use peregrine::trace::TraceConfig;
use peregrine::websocket::{Message as WebSocketMessage, WebSocketUpgrade};
use peregrine::{Limits, OverloadLimits};

use model::{
    Event, EventQuery, Example, Health, HookState, Large, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, Uploaded, VERSIONS, collection_text, item_text, numbered_lines,
};
use relay::Pool;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The server's own limit of 2 MiB is for documents.
const UPLOAD_BYTES_MAX: u64 = 16 << 20;

fn main() -> peregrine::Result<()> {
    let port = text("PORT").unwrap_or_else(|| "8080".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"));
    if let (Some(certificate), Some(key)) = (text("TLS_CERT"), text("TLS_KEY")) {
        let port = text("TLS_PORT").unwrap_or_else(|| "8443".to_owned());
        let tls = TlsConfig::from_pem_files(certificate, key)?;
        server = server.listen_tls(format!("127.0.0.1:{port}"), tls);
    }
    if let Some(workers) = text("WORKERS").and_then(|count| count.parse::<NonZeroUsize>().ok()) {
        server = server.workers(workers);
    }
    watched(server).serve(application)
}

/// What costs something where it is switched on. `WATCHED=metrics` counts for the admin listener; `WATCHED=all` also has
/// bounds on what is taken on, a trusted proxy, and samples each hundredth request, whose span nobody takes; `WATCHED=log` all of that, and a
/// line for each request in a file that keeps nothing.
fn watched(mut server: Server) -> Server {
    let watched = text("WATCHED").unwrap_or_default();
    if watched.is_empty() {
        return server;
    }
    server = server.admin("127.0.0.1:0");
    if watched == "metrics" {
        return server;
    }
    let overload = OverloadLimits {
        requests_max: Some(100_000),
        requests_per_client_max: Some(100_000),
        queue_delay_target: Some(Duration::from_millis(100)),
        ..OverloadLimits::default()
    };
    server = server
        .limits(Limits { overload, ..Limits::default() })
        .trusted_proxies(["10.0.0.0/8"])
        .traces(TraceConfig::new().sample_ratio(0.01));
    if watched == "log" {
        server = server.access_log(AccessLogOptions::file("/dev/null"));
    }
    server
}

fn application() -> App {
    let app = App::new()
        .get("/", || async { "Hello, World!" })
        .get("/hello", || async { "Hello, World" })
        .get("/json", json)
        .get("/api/v1/health", health)
        .get("/example", example)
        .post("/json-sort", sort)
        .post("/json-complex", complex)
        .scope("/projects", |scope| scope.wrap(hooks).post("/{project_id}/events", record))
        .post("/upload", upload.body_limit(UPLOAD_BYTES_MAX))
        .get("/large", large)
        .get("/sleep/{ms}", sleep)
        .get("/spawn/{n}", spawn)
        .get("/relay/{text}", relay)
        .get("/download", download)
        .post("/echo", |text: String| async { text })
        .get("/ws", echo)
        .state(Rc::new(Pool::from_environment()));
    app.merge(large_application())
}

/// 400 routes, each with a literal version and resource.
fn large_application() -> App {
    let mut app = App::new();
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
            app = app
                .get(&path, collection("GET"))
                .post(&path, collection("POST"))
                .put(&path, collection("PUT"))
                .delete(&path, collection("DELETE"))
                .get(&item_path, item("GET"))
                .post(&item_path, item("POST"))
                .put(&item_path, item("PUT"))
                .delete(&item_path, item("DELETE"));
        }
    }
    app
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

async fn upload(mut body: Body) -> Result<Json<Uploaded>, Problem> {
    let mut upload = Upload::default();
    while let Some(piece) = body.next().await {
        upload.receive(&piece?);
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
    State(pool): State<Rc<Pool>>,
    Path(text): Path<String>,
) -> Result<String, StatusCode> {
    pool.relay(&text).await.map_err(|_| StatusCode::BAD_GATEWAY)
}

static DOWNLOAD: LazyLock<Bytes> = LazyLock::new(|| numbered_lines().into());

async fn download() -> Bytes {
    DOWNLOAD.clone()
}

async fn echo(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async |mut socket| {
        while let Some(Ok(message)) = socket.recv().await {
            let is_content =
                matches!(message, WebSocketMessage::Text(_) | WebSocketMessage::Binary(_));
            if is_content && socket.send(message).await.is_err() {
                break;
            }
        }
    })
}

async fn hooks(mut request: Request, next: Next<'_>) -> Response {
    request.parts.extensions_mut().insert(HookState { after: "done" });
    let response = next.run(request).await;
    response
        .with_field(HeaderName::from_static("x-benchmark-after"), HeaderValue::from_static("done"))
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

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
