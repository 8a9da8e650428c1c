//! The rival salvo, as its documentation shows it: a tree of routers with handlers by attribute, a
//! hoop around the events route, a listener joined of plain and TLS, and a server whose handle
//! stops it gracefully at SIGTERM.

mod handlers;
mod model;
mod settings;

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use salvo::conn::Acceptor;
use salvo::conn::rustls::{Keycert, RustlsConfig};
use salvo::fuse::FuseConfig;
use salvo::prelude::*;
use tokio::signal::unix::{SignalKind, signal};

use handlers::Resource;
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
    let plain = TcpListener::new((Ipv4Addr::LOCALHOST, settings.port));
    let Some(tls) = settings.tls else { return serve(plain.bind().await).await };
    let certificate = Keycert::new().cert_from_path(tls.certificates)?.key_from_path(tls.key)?;
    let secure =
        TcpListener::new((Ipv4Addr::LOCALHOST, tls.port)).rustls(RustlsConfig::new(certificate));
    serve(plain.join(secure).bind().await).await
}

async fn serve(acceptor: impl Acceptor) -> io::Result<()> {
    // The default of 30 seconds would end idle connections while their memory is measured.
    let fuse = FuseConfig::default().with_http1_header_timeout(Duration::from_secs(75));
    let server = Server::new(acceptor).fuse_config(fuse);
    let handle = server.handle();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        terminate.recv().await;
        handle.stop_graceful(None);
    });
    server.try_serve(router()).await
}

fn router() -> Router {
    Router::new()
        .get(handlers::root)
        .push(Router::with_path("hello").get(handlers::hello))
        .push(Router::with_path("json").get(handlers::json))
        .push(Router::with_path("api/v1/health").get(handlers::health))
        .push(Router::with_path("example").get(handlers::example))
        .push(Router::with_path("json-sort").post(handlers::json_sort))
        .push(Router::with_path("json-complex").post(handlers::json_complex))
        .push(
            Router::with_path("projects/{project_id}/events")
                .hoop(handlers::hooks)
                .post(handlers::record),
        )
        .push(Router::with_path("upload").post(handlers::upload))
        .push(Router::with_path("large").get(handlers::large))
        .push(Router::with_path("sleep/{ms}").get(handlers::sleep))
        .append(&mut VERSIONS.map(version_router).into())
}

fn version_router(version: &'static str) -> Router {
    Router::with_path(version)
        .append(&mut RESOURCES.map(|name| resource_router(Resource { version, name })).into())
}

fn resource_router(resource: Resource) -> Router {
    let all = |router: Router| router.get(resource).post(resource).put(resource).delete(resource);
    all(Router::with_path(resource.name)).push(all(Router::with_path("{id}")))
}
