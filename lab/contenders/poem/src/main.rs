//! The rival poem, as its documentation shows it: routes with handlers by attribute, `around` the
//! events route, a listener combined of plain and TLS, and a server with a graceful shutdown at
//! SIGTERM.

mod handlers;
mod model;
mod settings;

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use poem::endpoint::make_sync;
use poem::listener::{Listener, RustlsCertificate, RustlsConfig, TcpListener};
use poem::{Endpoint, EndpointExt, Request, Result, Route, RouteMethod, Server, get, post};
use tokio::signal::unix::{SignalKind, signal};

use model::{RESOURCES, VERSIONS};
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> io::Result<()> {
    let settings = Settings::from_environment();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .enable_all()
        .build()?
        .block_on(start(settings))
}

async fn start(settings: Settings) -> io::Result<()> {
    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port));
    let Some(tls) = settings.tls else { return serve(plain).await };
    let certificate =
        RustlsCertificate::new().cert(fs::read(tls.certificates)?).key(fs::read(tls.key)?);
    let secure = TcpListener::bind((Ipv4Addr::LOCALHOST, tls.port))
        .rustls(RustlsConfig::new().fallback(certificate));
    serve(plain.combine(secure)).await
}

async fn serve(listener: impl Listener + 'static) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        terminate.recv().await;
    };
    Server::new(listener).run_with_graceful_shutdown(routes(), stop, None).await
}

fn routes() -> Route {
    let mut routes = Route::new()
        .at("/", get(handlers::root))
        .at("/hello", get(handlers::hello))
        .at("/json", get(handlers::json))
        .at("/api/v1/health", get(handlers::health))
        .at("/example", get(handlers::example))
        .at("/json-sort", post(handlers::json_sort))
        .at("/json-complex", post(handlers::json_complex))
        .at("/projects/:project_id/events", post(handlers::record.around(handlers::hooks)))
        .at("/upload", post(handlers::upload))
        .at("/large", get(handlers::large))
        .at("/sleep/:ms", get(handlers::sleep));
    for version in VERSIONS {
        for resource in RESOURCES {
            let collection = resource_route(|method| {
                make_sync(move |_| format!("{method} {version} {resource}"))
            });
            let item = resource_route(|method| {
                make_sync(move |request: Request| -> Result<String> {
                    let id: String = request.path_params()?;
                    Ok(format!("{method} {version} {resource} {id}"))
                })
            });
            routes = routes
                .at(format!("/{version}/{resource}"), collection)
                .at(format!("/{version}/{resource}/:id"), item);
        }
    }
    routes
}

fn resource_route<E>(handler: impl Fn(&'static str) -> E) -> RouteMethod
where
    E: Endpoint + 'static,
{
    RouteMethod::new()
        .get(handler("GET"))
        .post(handler("POST"))
        .put(handler("PUT"))
        .delete(handler("DELETE"))
}
