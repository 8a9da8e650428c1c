//! The rival xitca-web, as its documentation shows it: handler services, extractors that borrow, an
//! async function as the middleware, and `HttpServer` on tokio. `HttpServer` answers SIGTERM with
//! its graceful shutdown.

mod model;
mod settings;

use std::net::Ipv4Addr;
use std::pin::pin;
use std::time::Duration;

use xitca_web::body::{BodyExt, RequestBody};
use xitca_web::error::{Error, ErrorStatus};
use xitca_web::handler::body::Body;
use xitca_web::handler::extension::ExtensionRef;
use xitca_web::handler::handler_service;
use xitca_web::handler::json::Json;
use xitca_web::handler::params::Params;
use xitca_web::handler::query::Query;
use xitca_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use xitca_web::http::{StatusCode, WebResponse};
use xitca_web::route::{get, post};
use xitca_web::service::{Service, ServiceExt};
use xitca_web::{App, NestApp, WebContext};

use model::{
    Event, EventQuery, Example, Health, HookState, Large, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, Uploaded, VERSIONS, collection_text, item_text,
};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The default of 64 is less than the workload has.
const REQUEST_HEADERS_MAX: usize = 100;

fn main() -> std::io::Result<()> {
    let settings = Settings::from_environment();
    let mut server = application()
        .serve()
        .worker_threads(settings.workers)
        .max_request_headers::<REQUEST_HEADERS_MAX>()
        // The default of 5 seconds would end idle connections while their memory is measured.
        .keep_alive_timeout(Duration::from_secs(75))
        .bind((Ipv4Addr::LOCALHOST, settings.port))?;
    if let Some(tls) = settings.tls {
        let mut config = (*tls.config).clone();
        // `bind_rustls` adds the protocols that it speaks.
        config.alpn_protocols.clear();
        server = server.bind_rustls((Ipv4Addr::LOCALHOST, tls.port), config)?;
    }
    server.run().wait()
}

fn application() -> NestApp<()> {
    let app = App::new()
        .at("/", get(handler_service(async || "Hello, World!")))
        .at("/hello", get(handler_service(async || "Hello, World")))
        .at("/json", get(handler_service(json)))
        .at("/api/v1/health", get(handler_service(health)))
        .at("/example", get(handler_service(example)))
        .at("/json-sort", post(handler_service(sort)))
        .at("/json-complex", post(handler_service(complex)))
        .at("/projects/{project_id}/events", post(handler_service(record).enclosed_fn(hooks)))
        .at("/upload", post(handler_service(upload)))
        .at("/large", get(handler_service(large)))
        .at("/sleep/{ms}", get(handler_service(sleep)));
    with_large_application(app)
}

/// Adds 400 routes, each with a literal version and resource.
fn with_large_application(mut app: NestApp<()>) -> NestApp<()> {
    for version in VERSIONS {
        for resource in RESOURCES {
            let collection = |method: &'static str| {
                handler_service(move || async move { collection_text(method, version, resource) })
            };
            let item = |method: &'static str| {
                handler_service(move |Params(id): Params<String>| async move {
                    item_text(method, version, resource, &id)
                })
            };
            app = app
                .at(
                    &format!("/{version}/{resource}"),
                    get(collection("GET"))
                        .post(collection("POST"))
                        .put(collection("PUT"))
                        .delete(collection("DELETE")),
                )
                .at(
                    &format!("/{version}/{resource}/{{id}}"),
                    get(item("GET")).post(item("POST")).put(item("PUT")).delete(item("DELETE")),
                );
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

async fn upload(Body(body): Body<RequestBody>) -> Result<Json<Uploaded>, Error> {
    let mut body = pin!(body);
    let mut upload = Upload::default();
    while let Some(piece) = body.as_mut().data().await {
        upload.receive(&piece?);
    }
    Ok(Json(upload.finish()))
}

async fn large() -> Json<&'static Large> {
    Json(Large::shared())
}

async fn sleep(Params(ms): Params<u64>) -> Result<String, Error> {
    if ms > SLEEP_MS_MAX {
        return Err(ErrorStatus::bad_request().into());
    }
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(ms.to_string())
}

async fn hooks<S>(service: &S, mut context: WebContext<'_>) -> Result<WebResponse, Error>
where
    S: for<'r> Service<WebContext<'r>, Response = WebResponse, Error = Error>,
{
    context.req_mut().extensions_mut().insert(HookState { after: "done" });
    let mut response = service.call(context).await?;
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-benchmark-after"), HeaderValue::from_static("done"));
    Ok(response)
}

async fn record(
    Params(project_id): Params<String>,
    Query(query): Query<EventQuery>,
    ExtensionRef(state): ExtensionRef<'_, HookState>,
    headers: &HeaderMap,
    Json(event): Json<Event>,
) -> Result<(StatusCode, Json<Recorded>), Error> {
    if state.after != "done" {
        return Err(ErrorStatus::internal().into());
    }
    let Some(request_id) = headers.get("x-request-id").and_then(|value| value.to_str().ok()) else {
        return Err(ErrorStatus::bad_request().into());
    };
    if !event.is_complete() {
        return Err(Error::from(StatusCode::UNPROCESSABLE_ENTITY));
    }
    let recorded = Recorded::new(project_id, query.tenant, request_id.to_owned(), event);
    Ok((StatusCode::CREATED, Json(recorded)))
}
