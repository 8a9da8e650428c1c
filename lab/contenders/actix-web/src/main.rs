//! The rival actix-web, as its documentation shows it: attribute routes, scopes, extractors, a
//! `from_fn` middleware, and `HttpServer` with a worker per CPU. `HttpServer` answers SIGTERM with
//! its graceful shutdown.

mod model;
mod relay;
mod settings;

use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::{Next, from_fn};
use actix_web::web::ServiceConfig;
use actix_web::{App, Error, HttpMessage, HttpRequest, HttpResponse, HttpServer, get, post, web};
use futures_util::TryStreamExt;

use model::{
    Event, EventQuery, Example, Health, HookState, Large, Message, RESOURCES, Recorded,
    SLEEP_MS_MAX, Upload, VERSIONS, collection_text, item_text, numbered_lines,
};
use relay::Pool;
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let settings = Settings::from_environment();
    let mut server = HttpServer::new(|| App::new().configure(application))
        .workers(settings.workers)
        .tcp_nodelay(true)
        // The default of 5 seconds would end idle connections while their memory is measured.
        .keep_alive(Duration::from_secs(75))
        .bind_auto_h2c((Ipv4Addr::LOCALHOST, settings.port))?;
    if let Some(tls) = settings.tls {
        let config = (*tls.config).clone();
        server = server.bind_rustls_0_23((Ipv4Addr::LOCALHOST, tls.port), config)?;
    }
    server.run().await
}

fn application(config: &mut ServiceConfig) {
    config
        .service(hello_world)
        .service(hello)
        .service(json)
        .service(health)
        .service(example)
        .service(sort)
        .service(complex)
        .service(record)
        .service(upload)
        .service(large)
        .service(sleep)
        .service(spawn)
        .service(relay_text)
        .service(download)
        .service(echo)
        .service(websocket)
        .app_data(web::Data::new(Pool::from_environment()))
        .configure(large_application);
}

/// 400 routes, each with a literal version and resource.
fn large_application(config: &mut ServiceConfig) {
    for version in VERSIONS {
        let mut scope = web::scope(&format!("/{version}"));
        for resource in RESOURCES {
            let collection = |method: &'static str| {
                move || async move { collection_text(method, version, resource) }
            };
            let item = |method: &'static str| {
                move |id: web::Path<String>| async move { item_text(method, version, resource, &id) }
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

#[get("/")]
async fn hello_world() -> &'static str {
    "Hello, World!"
}

#[get("/hello")]
async fn hello() -> &'static str {
    "Hello, World"
}

#[get("/json")]
async fn json() -> web::Json<Message> {
    web::Json(Message { message: "Hello, World!" })
}

#[get("/api/v1/health")]
async fn health() -> web::Json<Health> {
    web::Json(Health { status: "ok" })
}

#[get("/example")]
async fn example() -> web::Json<Example> {
    web::Json(Example::new())
}

#[post("/json-sort")]
async fn sort(mut numbers: web::Json<Vec<i64>>) -> web::Json<Vec<i64>> {
    numbers.sort_unstable();
    numbers
}

#[post("/json-complex")]
async fn complex(document: web::Json<Example>) -> String {
    document.into_inner().a
}

#[post("/upload")]
async fn upload(mut pieces: web::Payload) -> Result<HttpResponse, Error> {
    let mut upload = Upload::default();
    while let Some(piece) = pieces.try_next().await? {
        upload.receive(&piece);
    }
    Ok(HttpResponse::Ok().json(upload.finish()))
}

#[get("/large")]
async fn large() -> web::Json<&'static Large> {
    web::Json(Large::shared())
}

#[get("/sleep/{ms}")]
async fn sleep(ms: web::Path<u64>) -> HttpResponse {
    let ms = ms.into_inner();
    if ms > SLEEP_MS_MAX {
        return HttpResponse::BadRequest().finish();
    }
    actix_web::rt::time::sleep(Duration::from_millis(ms)).await;
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(ms.to_string())
}

#[get("/spawn/{n}")]
async fn spawn(n: web::Path<u32>) -> HttpResponse {
    let n = n.into_inner();
    match actix_web::rt::spawn(async move { u64::from(n) + 1 }).await {
        Ok(next) => {
            HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(next.to_string())
        }
        Err(_) => HttpResponse::InternalServerError().finish(),
    }
}

#[get("/relay/{text}")]
async fn relay_text(pool: web::Data<Pool>, text: web::Path<String>) -> HttpResponse {
    match pool.relay(&text).await {
        Ok(back) => HttpResponse::Ok().content_type("text/plain; charset=utf-8").body(back),
        Err(_) => HttpResponse::BadGateway().finish(),
    }
}

static DOWNLOAD: LazyLock<web::Bytes> = LazyLock::new(|| numbered_lines().into());

#[get("/download")]
async fn download() -> HttpResponse {
    HttpResponse::Ok().content_type("application/octet-stream").body(DOWNLOAD.clone())
}

#[post("/echo")]
async fn echo(text: String) -> String {
    text
}

#[get("/ws")]
async fn websocket(request: HttpRequest, payload: web::Payload) -> Result<HttpResponse, Error> {
    let (response, mut session, mut messages) = actix_ws::handle(&request, payload)?;
    actix_web::rt::spawn(async move {
        while let Some(Ok(message)) = messages.recv().await {
            let sent = match message {
                actix_ws::Message::Text(text) => session.text(text).await,
                actix_ws::Message::Binary(bytes) => session.binary(bytes).await,
                actix_ws::Message::Ping(bytes) => session.pong(&bytes).await,
                actix_ws::Message::Close(reason) => {
                    let _ = session.close(reason).await;
                    return;
                }
                _ => Ok(()),
            };
            if sent.is_err() {
                return;
            }
        }
    });
    Ok(response)
}

async fn hooks(
    request: ServiceRequest,
    next: Next<impl MessageBody>,
) -> Result<ServiceResponse<impl MessageBody>, Error> {
    request.extensions_mut().insert(HookState { after: "done" });
    let mut response = next.call(request).await?;
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-benchmark-after"), HeaderValue::from_static("done"));
    Ok(response)
}

#[post("/projects/{project_id}/events", wrap = "from_fn(hooks)")]
async fn record(
    request: HttpRequest,
    project_id: web::Path<String>,
    query: web::Query<EventQuery>,
    state: web::ReqData<HookState>,
    event: web::Json<Event>,
) -> HttpResponse {
    if state.after != "done" {
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
    HttpResponse::Created().json(recorded)
}
