//! Peregrine, as its guide shows it: extractors and a middleware function.

mod model;

use std::env;
use std::num::NonZeroUsize;

use peregrine::prelude::*;

use model::{Event, EventQuery, HookState, Message, Recorded};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> peregrine::Result<()> {
    let port = text("PORT").unwrap_or_else(|| "8080".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"));
    if let (Some(certificate), Some(key)) = (text("TLS_CERT"), text("TLS_KEY")) {
        let port = text("TLS_PORT").unwrap_or_else(|| "8443".to_owned());
        let tls = Tls::from_pem_files(certificate, key).expect("a certificate and its key");
        server = server.tls(format!("127.0.0.1:{port}"), tls);
    }
    if let Some(workers) = text("WORKERS").and_then(|count| count.parse::<NonZeroUsize>().ok()) {
        server = server.workers(workers);
    }
    server.serve(|| {
        App::new()
            .get("/json", json)
            .get("/", || async { "Hello, World!" })
            .scope("/projects", |scope| scope.with(hooks).post("/{project_id}/events", record))
    })
}

async fn json() -> Json<Message> {
    Json(Message { message: "Hello, World!" })
}

async fn hooks(mut request: Request, next: Next<'_>) -> Response {
    request.parts.extensions_mut().insert(HookState { after: "done" });
    let response = next.run(request).await;
    response.with_field(
        HeaderName::from_static("x-benchmark-after"),
        HeaderValue::from_static("done"),
    )
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
