//! The service of the contender tonic, the same file, served by Peregrine: what changes when a tonic
//! user changes the server alone.

#[path = "../../tonic/src/greeter.rs"]
mod greeter;

use std::env;
use std::num::NonZeroUsize;

use peregrine::tower::tower;
use peregrine::{App, Server};
use tonic::service::Routes;

use greeter::Greeter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> peregrine::Result<()> {
    let port = text("PORT").unwrap_or_else(|| "8080".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"));
    if let Some(workers) = text("WORKERS").and_then(|count| count.parse::<NonZeroUsize>().ok()) {
        server = server.workers(workers);
    }
    let services = Routes::new(Greeter).prepare();
    server.serve(move || App::new().subtree("/", tower(services.clone())))
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
