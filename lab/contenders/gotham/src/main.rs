//! The rival gotham, as its examples show it: a router with extractors, a pipeline of middleware,
//! and `bind_server`, which it offers for sockets that are set up by hand. As in its example of a
//! shutdown, the server is dropped at SIGTERM.

mod handlers;
mod hooks;
mod model;
mod settings;

use std::io;
use std::net::Ipv4Addr;

use futures_util::future::{self, FutureExt, TryFutureExt};
use gotham::pipeline::{finalize_pipeline_set, new_pipeline, new_pipeline_set};
use gotham::prelude::*;
use gotham::router::Router;
use gotham::router::builder::build_router;
use gotham::state::State;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use hooks::Hooks;
use model::{EventQuery, ItemPath, ProjectPath, RESOURCES, SleepPath, VERSIONS};
use settings::{Settings, Tls};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> io::Result<()> {
    let settings = Settings::from_environment();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .enable_all()
        .build()?
        .block_on(serve(settings))
}

async fn serve(settings: Settings) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    if let Some(tls) = settings.tls {
        tokio::spawn(serve_tls(tls));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port)).await?;
    let server = gotham::bind_server(listener, router(), |socket| {
        future::ready(socket.set_nodelay(true).map(|()| socket).map_err(drop))
    });
    future::select(server.boxed(), terminate.recv().boxed()).await;
    Ok(())
}

async fn serve_tls(tls: Tls) {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, tls.port)).await.expect("the TLS port is free");
    let acceptor = TlsAcceptor::from(tls.config);
    gotham::bind_server(listener, router(), move |socket| {
        let _ = socket.set_nodelay(true);
        acceptor.accept(socket).map_err(drop)
    })
    .await
}

fn router() -> Router {
    let pipelines = new_pipeline_set();
    let (pipelines, hooks) = pipelines.add(new_pipeline().add(Hooks).build());
    build_router((), finalize_pipeline_set(pipelines), |route| {
        route.get("/").to(|state: State| (state, "Hello, World!"));
        route.get("/hello").to(|state: State| (state, "Hello, World"));
        route.get("/json").to(handlers::json);
        route.get("/api/v1/health").to(handlers::health);
        route.get("/example").to(handlers::example);
        route.post("/json-sort").to_async_borrowing(handlers::json_sort);
        route.post("/json-complex").to_async_borrowing(handlers::json_complex);
        route.with_pipeline_chain((hooks, ()), |route| {
            route
                .post("/projects/:project_id/events")
                .with_path_extractor::<ProjectPath>()
                .with_query_string_extractor::<EventQuery>()
                .to_async_borrowing(handlers::record);
        });
        route.post("/upload").to_async_borrowing(handlers::upload);
        route.get("/large").to(handlers::large);
        route
            .get("/sleep/:ms")
            .with_path_extractor::<SleepPath>()
            .to_async_borrowing(handlers::sleep);
        for version in VERSIONS {
            for resource in RESOURCES {
                add_resource(route, version, resource);
            }
        }
    })
}

fn add_resource<R, C, P>(route: &mut R, version: &'static str, resource: &'static str)
where
    R: DrawRoutes<C, P>,
    C: gotham::pipeline::PipelineHandleChain<P> + Copy + Send + Sync + 'static,
    P: std::panic::RefUnwindSafe + Send + Sync + 'static,
{
    use gotham::http::Method;
    for (method, name) in [
        (Method::GET, "GET"),
        (Method::POST, "POST"),
        (Method::PUT, "PUT"),
        (Method::DELETE, "DELETE"),
    ] {
        route
            .request(vec![method.clone()], &format!("/{version}/{resource}"))
            .to(move |state: State| (state, format!("{name} {version} {resource}")));
        route
            .request(vec![method], &format!("/{version}/{resource}/:id"))
            .with_path_extractor::<ItemPath>()
            .to(move |mut state: State| {
                let ItemPath { id } = ItemPath::take_from(&mut state);
                (state, format!("{name} {version} {resource} {id}"))
            });
    }
}
