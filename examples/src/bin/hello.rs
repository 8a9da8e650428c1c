//! A first server: HTTP on one port, HTTPS on another, with a certificate generated at start-up.
//!
//! Run it, then: `curl http://127.0.0.1:8080/hello/you` and `curl -k https://127.0.0.1:8443/json`.
#![forbid(unsafe_code)]

use peregrine::prelude::*;
use serde::Serialize;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Serialize)]
struct Message {
    message: &'static str,
}

async fn hello(Path(name): Path<String>) -> String {
    format!("Hello, {name}!\n")
}

const ABOUT: &str = "\
A first server: HTTP on one port, HTTPS on another (TLS_ADDRESS, default 127.0.0.1:8443).

Try: curl http://127.0.0.1:8080/hello/you; curl -k https://127.0.0.1:8443/json";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    let certificate =
        TlsConfig::self_signed(&["localhost", "127.0.0.1"]).expect("both names are valid");
    let tls_address = std::env::var("TLS_ADDRESS").unwrap_or_else(|_| "127.0.0.1:8443".to_owned());
    Server::bind(address).listen_tls(tls_address, certificate.tls).serve(|| {
        App::new()
            .get("/", || async { "Hello, World!" })
            .get("/hello/{name}", hello)
            .get("/json", || async { Json(Message { message: "Hello, World!" }) })
    })
}
