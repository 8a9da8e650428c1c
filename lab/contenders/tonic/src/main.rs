//! The rival tonic, as its documentation shows it: its own server on tokio's multi-thread runtime.

mod greeter;

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Server;

use greeter::Greeter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let workers = number("WORKERS").filter(|&workers| workers > 0).unwrap_or(cores);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .expect("threads can be started")
        .block_on(serve(number("PORT").unwrap_or(8080)));
}

async fn serve(port: u16) {
    Server::builder()
        .add_service(Greeter)
        .serve_with_shutdown(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), terminated())
        .await
        .expect("the port is free");
}

/// Completes at SIGTERM.
async fn terminated() {
    signal(SignalKind::terminate()).expect("signals can be received").recv().await;
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}
