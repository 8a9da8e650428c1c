//! actix-web with one battery, which `BATTERY` names, or none: each as its documentation shows it.

mod model;
mod routes;

use std::fs::File;
use std::net::Ipv4Addr;

use actix_cors::Cors;
use actix_files::Files;
use actix_governor::{Governor, GovernorConfigBuilder};
use actix_request_identifier::RequestIdentifier;
use actix_session::SessionMiddleware;
use actix_session::storage::CookieSessionStore;
use actix_web::cookie::Key;
use actix_web::dev::ServiceRequest;
use actix_web::http::Method;
use actix_web::middleware::{Compress, DefaultHeaders, Logger};
use actix_web::{App, Error, HttpMessage as _, HttpServer, error};
use actix_web_httpauth::extractors::bearer::BearerAuth;
use actix_web_httpauth::middleware::HttpAuthentication;
use actix_web_lab::middleware::CatchPanic;
use tracing_actix_web::TracingLogger;

use model::{ORIGIN, SECRET, TOKEN, text};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves until SIGTERM with this around the routes, or with nothing.
macro_rules! serve {
    ($battery:expr $(, $middleware:expr)?) => {{
        let workers = text("WORKERS").and_then(|count| count.parse().ok()).unwrap_or(1);
        let port = text("PORT").and_then(|port| port.parse().ok()).unwrap_or(8080);
        let folder = model::folder();
        let (battery, path) = ($battery.to_owned(), folder.path().to_owned());
        let app = move || {
            App::new()
                $(.wrap($middleware))?
                .configure(|config| routes::routes(&battery, config))
                .service(Files::new("/files", &path))
        };
        let server = HttpServer::new(app).workers(workers).tcp_nodelay(true);
        server.bind((Ipv4Addr::LOCALHOST, port))?.run().await
    }};
}

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let battery = text("BATTERY").unwrap_or_default();
    match &*battery {
        "request-id" => serve!(battery, RequestIdentifier::with_uuid()),
        "cors" => {
            let cors = || Cors::default().allowed_origin(ORIGIN).allowed_methods([Method::GET]);
            serve!(battery, cors())
        }
        "security-headers" => serve!(battery, security_headers()),
        "session-cookie" => {
            let keys = Key::from(&SECRET);
            let session =
                move || SessionMiddleware::new(CookieSessionStore::default(), keys.clone());
            serve!(battery, session())
        }
        "bearer" => serve!(battery, HttpAuthentication::with_fn(known)),
        "rate-limit" => {
            let limit = GovernorConfigBuilder::default()
                .nanoseconds_per_request(1_000)
                .burst_size(1_000_000)
                .use_headers()
                .finish()
                .expect("a rate and a burst that are not zero");
            serve!(battery, Governor::new(&limit))
        }
        "catch-panic" => serve!(battery, CatchPanic::default()),
        "gzip" => serve!(battery, Compress::default()),
        "access-log" => {
            let file = File::create("/dev/null")?;
            env_logger::Builder::new()
                .filter_level(log::LevelFilter::Info)
                .target(env_logger::Target::Pipe(Box::new(file)))
                .init();
            serve!(battery, Logger::default())
        }
        "trace" => {
            tracing_subscriber::fmt().with_writer(std::io::sink).init();
            serve!(battery, TracingLogger::default())
        }
        _ => serve!(battery),
    }
}

/// The fields that Peregrine's battery sets.
fn security_headers() -> DefaultHeaders {
    DefaultHeaders::new()
        .add((
            "content-security-policy",
            "base-uri 'self'; object-src 'none'; frame-ancestors 'none'",
        ))
        .add(("cross-origin-opener-policy", "same-origin"))
        .add(("cross-origin-resource-policy", "same-origin"))
        .add(("referrer-policy", "strict-origin-when-cross-origin"))
        .add(("x-content-type-options", "nosniff"))
        .add(("x-frame-options", "DENY"))
}

/// Whose token it is, where handlers find it.
struct User(#[expect(dead_code, reason = "no handler asks here")] u32);

async fn known(
    request: ServiceRequest,
    credentials: Option<BearerAuth>,
) -> Result<ServiceRequest, (Error, ServiceRequest)> {
    match credentials {
        Some(credentials) if credentials.token() == TOKEN => {
            request.extensions_mut().insert(User(7));
            Ok(request)
        }
        _ => Err((error::ErrorUnauthorized("no token that is known"), request)),
    }
}
