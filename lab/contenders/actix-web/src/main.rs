//! The rival actix-web, as its documentation shows it: attribute routes, extractors, a `from_fn`
//! middleware, and `HttpServer` with a worker per CPU.

mod model;
mod settings;

use std::net::Ipv4Addr;
use std::time::Duration;

use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::{Next, from_fn};
use actix_web::{App, Error, HttpMessage, HttpRequest, HttpResponse, HttpServer, get, post, web};

use model::{Event, EventQuery, HookState, Message, Recorded};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let settings = Settings::from_environment();
    let mut server = HttpServer::new(|| App::new().service(json).service(hello).service(record))
        .workers(settings.workers)
        // The default of 5 seconds would end idle connections while their memory is measured.
        .keep_alive(Duration::from_secs(75))
        .bind((Ipv4Addr::LOCALHOST, settings.port))?;
    if let Some(tls) = settings.tls {
        let config = (*tls.config).clone();
        server = server.bind_rustls_0_23((Ipv4Addr::LOCALHOST, tls.port), config)?;
    }
    server.run().await
}

#[get("/json")]
async fn json() -> HttpResponse {
    HttpResponse::Ok().json(Message { message: "Hello, World!" })
}

#[get("/")]
async fn hello() -> &'static str {
    "Hello, World!"
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
