//! The rival Tako, as its documentation shows it: typed extractors, a middleware of the route, and
//! the server builder on tokio's multi-thread runtime, which drains at SIGTERM. It is a library, so
//! that two programs can differ in the allocator alone.

mod model;
mod settings;

use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::BodyExt;
use tako::extractors::extension::Extension;
use tako::extractors::header_map::HeaderMap;
use tako::extractors::json::Json;
use tako::extractors::path::Path;
use tako::extractors::query::Query;
use tako::header::HeaderValue;
use tako::middleware::Next;
use tako::responder::Responder;
use tako::router::Router;
use tako::types::{BoxError, Request, Response};
use tako::{Method, Server, ServerConfig, StatusCode, TlsCert};
use tokio::net::TcpListener;

use model::{
    Event, EventQuery, Example, Health, HookState, LARGE, Large, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, VERSIONS,
};
use settings::Settings;

/// Serves until SIGTERM.
pub fn run() -> Result<(), BoxError> {
    let settings = Settings::from_environment();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .enable_all()
        .build()?
        .block_on(serve(settings))
}

async fn serve(settings: Settings) -> Result<(), BoxError> {
    let config = ServerConfig {
        // The default of 30 seconds would end idle connections while their memory is measured.
        header_read_timeout: Some(Duration::from_secs(75)),
        ..ServerConfig::default()
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port)).await?;
    let plain =
        Server::builder().config(config.clone()).build().try_spawn_http(listener, router())?;
    let Some(tls) = settings.tls else { return Ok(plain.shutdown_on_signal().await?) };
    let certificate =
        TlsCert::PemPaths { cert_path: tls.certificates, key_path: tls.key, client_auth: None };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, tls.port)).await?;
    let secure = Server::builder()
        .config(config)
        .tls(certificate)
        .build()
        .try_spawn_tls(listener, router())?;
    tokio::try_join!(plain.shutdown_on_signal(), secure.shutdown_on_signal())?;
    Ok(())
}

fn router() -> Router {
    let mut router = Router::new();
    router.get("/", || async { "Hello, World!" });
    router.get("/hello", || async { "Hello, World" });
    router.get("/json", json);
    router.get("/api/v1/health", health);
    router.get("/example", example);
    router.post("/json-sort", json_sort);
    router.post("/json-complex", json_complex);
    router.post("/projects/{project_id}/events", record).middleware(hooks);
    router.post("/upload", upload);
    router.get("/large", large);
    router.get("/sleep/{ms}", sleep);
    for version in VERSIONS {
        for resource in RESOURCES {
            for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
                add_resource(&mut router, method, version, resource);
            }
        }
    }
    router
}

fn add_resource(
    router: &mut Router,
    method: Method,
    version: &'static str,
    resource: &'static str,
) {
    let name = method.clone();
    router.route(method.clone(), &format!("/{version}/{resource}"), move || async move {
        format!("{name} {version} {resource}")
    });
    let name = method.clone();
    router.route(
        method,
        &format!("/{version}/{resource}/{{id}}"),
        move |Path(id): Path<String>| async move { format!("{name} {version} {resource} {id}") },
    );
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

async fn json_sort(Json(mut numbers): Json<Vec<i64>>) -> Json<Vec<i64>> {
    numbers.sort_unstable();
    Json(numbers)
}

async fn json_complex(Json(example): Json<Example>) -> String {
    example.a
}

async fn large() -> Json<&'static Large> {
    Json(&*LARGE)
}

async fn sleep(Path(ms): Path<u64>) -> Response {
    if ms > SLEEP_MS_MAX {
        return (StatusCode::BAD_REQUEST, "at most 1000 ms").into_response();
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    ms.to_string().into_response()
}

async fn upload(mut request: Request) -> Response {
    let mut upload = Upload::default();
    while let Some(frame) = request.body_mut().frame().await {
        let Ok(frame) = frame else {
            return (StatusCode::BAD_REQUEST, "the body is cut short").into_response();
        };
        if frame.data_ref().is_some_and(|piece| !upload.add(piece)) {
            return (StatusCode::PAYLOAD_TOO_LARGE, "at most 16 MiB").into_response();
        }
    }
    Json(upload.finish()).into_response()
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
    HeaderMap(headers): HeaderMap,
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
