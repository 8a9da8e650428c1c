//! The application of the contender axum, the same files, served by Peregrine: what changes when an
//! axum user changes the server alone.

#[path = "../../axum/src/application.rs"]
mod application;
#[path = "../../axum/src/model.rs"]
mod model;
#[path = "../../axum/src/relay.rs"]
mod relay;

use std::env;
use std::num::NonZeroUsize;

use peregrine::Server;
use peregrine::tls::TlsConfig;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> peregrine::Result<()> {
    let port = text("PORT").unwrap_or_else(|| "8080".to_owned());
    let mut server = Server::bind(format!("127.0.0.1:{port}"));
    if let (Some(certificate), Some(key)) = (text("TLS_CERT"), text("TLS_KEY")) {
        let port = text("TLS_PORT").unwrap_or_else(|| "8443".to_owned());
        let tls = TlsConfig::from_pem_files(certificate, key)?;
        server = server.listen_tls(format!("127.0.0.1:{port}"), tls);
    }
    if let Some(workers) = text("WORKERS").and_then(|count| count.parse::<NonZeroUsize>().ok()) {
        server = server.workers(workers);
    }
    server.serve_tower(application::application())
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
