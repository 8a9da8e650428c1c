//! The program: logging, addresses, and the server.

use peregrine::prelude::*;
use std::env;

fn main() -> peregrine::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    if env::args().any(|argument| argument == "--routes") {
        print!("{}", app::app().routes()?);
        return Ok(());
    }
    let address = env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:8080".to_owned());
    let admin = env::var("ADMIN").unwrap_or_else(|_| "127.0.0.1:9090".to_owned());
    // A socket passed by another process, as in the README, or else the address.
    #[cfg(target_os = "linux")]
    let server = Server::new().listen_activated_or("web", address);
    #[cfg(not(target_os = "linux"))]
    let server = Server::bind(address);
    server.admin(admin).serve(app::app)
}
