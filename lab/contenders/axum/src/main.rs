//! The rival axum, as its documentation shows it: `axum::serve` on tokio's multi-thread runtime. TLS is
//! served by the loop of axum's own low-level example, because `axum::serve` has none.

mod application;
mod model;
mod relay;
mod settings;
mod tls;

use std::net::Ipv4Addr;

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use application::application;
use settings::Settings;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let settings = Settings::from_environment();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.workers)
        .enable_all()
        .build()
        .expect("threads can be started")
        .block_on(serve(settings));
}

async fn serve(settings: Settings) {
    let app = application();
    let tls = settings.tls.map(|tls| tokio::spawn(tls::serve(tls, app.clone())));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, settings.port))
        .await
        .expect("the port is free")
        .tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
    axum::serve(listener, app)
        .with_graceful_shutdown(terminated())
        .await
        .expect("serving ends without an error");
    if let Some(tls) = tls {
        tls.await.expect("the TLS loop does not panic");
    }
}

/// Completes at SIGTERM.
async fn terminated() {
    signal(SignalKind::terminate()).expect("signals can be received").recv().await;
}
