//! Serves one of the examples with Peregrine: `cargo run -p peregrine-axum-examples -- NAME`.
//!
//! The variable `ADDRESS` is the address to listen on (default `127.0.0.1:3000`), `COMPANION` the
//! address of the second server, for examples that have two (default `127.0.0.1:3001`), and
//! `PEREGRINE_DRIVER` selects the driver.
#![forbid(unsafe_code)]

use peregrine::tls::TlsConfig;
use peregrine::{Error, Server};
use peregrine_axum_examples::catalogue::{EXAMPLES, Program, find};
use std::env;
use std::net::SocketAddr;
use std::process::ExitCode;

const HELP: &str = "\
Serves a program in the style of axum's examples.

Usage: peregrine-axum-examples NAME
       peregrine-axum-examples --list   (all names)

Environment variables:
  ADDRESS=...           where to listen: `127.0.0.1:3000` (default), `unix:/run/app.sock`
  PORT=...              the port of 127.0.0.1 to listen on, if ADDRESS is not set
  COMPANION=...         where the second server listens, if the example has two (127.0.0.1:3001)
  RUST_LOG=...          the log level, as for tracing-subscriber's EnvFilter
  PEREGRINE_DRIVER=...  `uring`, `tokio`, or `auto` (default): io_uring where the kernel allows it
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let name = match arguments.as_slice() {
        [name] if name == "--list" => {
            EXAMPLES.iter().for_each(|example| println!("{:<26}{}", example.name, example.shows));
            return ExitCode::SUCCESS;
        }
        [help] if help == "--help" || help == "-h" => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        [name] => name,
        _ => {
            eprintln!("Name an example: `peregrine-axum-examples NAME`, or `--list` for all.");
            return ExitCode::from(2);
        }
    };
    let Some(example) = find(name) else {
        eprintln!("There is no example `{name}`; `--list` prints all examples.");
        return ExitCode::from(2);
    };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| "info,peregrine_axum_examples=debug".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match serve(example.program) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(program: Program) -> Result<(), Error> {
    let address = variable("ADDRESS", &format!("127.0.0.1:{}", variable("PORT", "3000")));
    match program {
        Program::Plain(app) => Server::bind(address).serve_tower(app()),
        Program::ByPeer(app) => Server::bind(address).serve_tower(app()),
        Program::Pair(apps) => {
            let companion = socket_address(&variable("COMPANION", "127.0.0.1:3001"))?;
            let (app, other) = apps(companion);
            // The signal stops the main server; the companion is shut down after it.
            let running = Server::bind(companion.to_string()).start_tower(other)?;
            Server::bind(address).serve_tower(app)?;
            running.graceful_shutdown().map(drop)
        }
        Program::Secure(app, redirect) => {
            let companion = variable("COMPANION", "127.0.0.1:3001");
            let port = socket_address(&address)?.port();
            let running = Server::bind(companion).start_tower(redirect(port))?;
            let made = TlsConfig::self_signed(&["localhost", "127.0.0.1"])
                .map_err(|error| Error::Config(error.to_string()))?;
            Server::new().listen_tls(address, made.tls).serve_tower(app())?;
            running.graceful_shutdown().map(drop)
        }
        #[cfg(unix)]
        Program::Unix(app) => {
            let path = env::temp_dir().join("peregrine-axum.sock");
            let address = variable("ADDRESS", &format!("unix:{}", path.display()));
            Server::bind(address).serve_tower(app())
        }
    }
}

fn variable(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

fn socket_address(text: &str) -> Result<SocketAddr, Error> {
    text.parse().map_err(|_| Error::Config(format!("{text} is not an address with a port")))
}
