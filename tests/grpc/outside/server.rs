//! The server for external gRPC clients: `grpc-outside FOLDER`.
//!
//! It binds free ports, prints them in its first line on standard error, writes the certificate
//! that clients should trust to `FOLDER/authority.pem`, and runs until a signal shuts it down.
//! `PEREGRINE_DRIVER` selects the driver.

use peregrine::Server;
use peregrine::prelude::TlsConfig;
use peregrine_grpc_tests::serve::{application, routes};
use peregrine_grpc_tests::service::TestService;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: grpc-outside FOLDER")?);
    let made = TlsConfig::self_signed(&["localhost", "127.0.0.1"])?;
    std::fs::write(folder.join("authority.pem"), &made.certificate_pem)?;
    let routes = routes(TestService::default());
    let server = Server::bind("127.0.0.1:0").listen_tls("127.0.0.1:0", made.tls);
    server.serve(move || application(&routes))?;
    Ok(())
}
