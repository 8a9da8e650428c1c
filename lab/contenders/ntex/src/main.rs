//! The rival ntex, as its documentation shows it: attribute routes, scopes, extractors, a
//! middleware service, and `HttpServer` on its own runtime, neon. `HttpServer` answers SIGTERM with
//! its graceful shutdown.

mod hooks;
mod model;
mod settings;

use std::net::Ipv4Addr;

use ntex::SharedCfg;
use ntex::http::error::PayloadError;
use ntex::http::{HttpServiceConfig, StatusCode};
use ntex::time::{Millis, Seconds};
use ntex::web::{self, App, HttpRequest, HttpResponse, HttpServer, ServiceConfig};

use hooks::Hooks;
use model::{
    Event, EventQuery, Example, Health, HookState, Large, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, Uploaded, VERSIONS, collection_text, item_text,
};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[ntex::main]
async fn main() -> std::io::Result<()> {
    let settings = Settings::from_environment();
    let http = HttpServiceConfig::new()
        // The default of 96 is less than the workload has.
        .set_max_headers(100)
        // The default of 5 seconds would end idle connections while their memory is measured.
        .set_keepalive(Seconds(75));
    let mut server =
        HttpServer::new(async || App::new().configure(application).configure(large_application))
            .workers(settings.workers)
            .config(SharedCfg::new("lab").add(http))
            .bind((Ipv4Addr::LOCALHOST, settings.port))?;
    if let Some(tls) = settings.tls {
        server = server.bind_rustls((Ipv4Addr::LOCALHOST, tls.port), &tls.config)?;
    }
    server.run().await
}

fn application(config: &mut ServiceConfig) {
    config
        .service((hello_world, hello, json, health, example, sort, complex, upload, large, sleep))
        .service(
            web::resource("/projects/{project_id}/events")
                .middleware(Hooks)
                .route(web::post().to(record)),
        );
}

/// 400 routes, each with a literal version and resource.
fn large_application(config: &mut ServiceConfig) {
    for version in VERSIONS {
        let mut scope = web::scope(format!("/{version}"));
        for resource in RESOURCES {
            let collection = |method: &'static str| {
                move || async move { collection_text(method, version, resource) }
            };
            let item = |method: &'static str| {
                move |id: web::types::Path<String>| async move {
                    item_text(method, version, resource, &id)
                }
            };
            scope = scope
                .service(
                    web::resource(format!("/{resource}"))
                        .route(web::get().to(collection("GET")))
                        .route(web::post().to(collection("POST")))
                        .route(web::put().to(collection("PUT")))
                        .route(web::delete().to(collection("DELETE"))),
                )
                .service(
                    web::resource(format!("/{resource}/{{id}}"))
                        .route(web::get().to(item("GET")))
                        .route(web::post().to(item("POST")))
                        .route(web::put().to(item("PUT")))
                        .route(web::delete().to(item("DELETE"))),
                );
        }
        config.service(scope);
    }
}

#[web::get("/")]
async fn hello_world() -> &'static str {
    "Hello, World!"
}

#[web::get("/hello")]
async fn hello() -> &'static str {
    "Hello, World"
}

#[web::get("/json")]
async fn json() -> web::types::Json<Message> {
    web::types::Json(Message { message: "Hello, World!" })
}

#[web::get("/api/v1/health")]
async fn health() -> web::types::Json<Health> {
    web::types::Json(Health { status: "ok" })
}

#[web::get("/example")]
async fn example() -> web::types::Json<Example> {
    web::types::Json(Example::new())
}

#[web::post("/json-sort")]
async fn sort(mut numbers: web::types::Json<Vec<i64>>) -> web::types::Json<Vec<i64>> {
    numbers.sort_unstable();
    numbers
}

#[web::post("/json-complex")]
async fn complex(document: web::types::Json<Example>) -> String {
    document.into_inner().a
}

#[web::post("/upload")]
async fn upload(mut body: web::types::Payload) -> Result<web::types::Json<Uploaded>, PayloadError> {
    let mut upload = Upload::default();
    while let Some(piece) = body.recv().await {
        upload.receive(&piece?);
    }
    Ok(web::types::Json(upload.finish()))
}

#[web::get("/large")]
async fn large() -> web::types::Json<&'static Large> {
    web::types::Json(Large::shared())
}

#[web::get("/sleep/{ms}")]
async fn sleep(ms: web::types::Path<u64>) -> (String, StatusCode) {
    let ms = ms.into_inner();
    if ms > SLEEP_MS_MAX {
        return (String::new(), StatusCode::BAD_REQUEST);
    }
    ntex::time::sleep(Millis(ms as u32)).await;
    (ms.to_string(), StatusCode::OK)
}

async fn record(
    request: HttpRequest,
    project_id: web::types::Path<String>,
    query: web::types::Query<EventQuery>,
    event: web::types::Json<Event>,
) -> HttpResponse {
    if request.extensions().get::<HookState>().is_none_or(|state| state.after != "done") {
        return HttpResponse::InternalServerError().finish();
    }
    let Some(request_id) =
        request.headers().get("x-request-id").and_then(|value| value.to_str().ok())
    else {
        return HttpResponse::BadRequest().body("the header X-Request-ID is missing");
    };
    let event = event.into_inner();
    if !event.is_complete() {
        return HttpResponse::UnprocessableEntity().body("name and quantity are required");
    }
    let tenant = query.into_inner().tenant;
    let recorded = Recorded::new(project_id.into_inner(), tenant, request_id.to_owned(), event);
    HttpResponse::Created().json(&recorded)
}
