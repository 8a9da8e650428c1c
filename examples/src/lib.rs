//! Small example programs, each in `src/bin`: `cargo run -p peregrine-examples --bin NAME`.
//!
//! `--help` prints what an example shows and where it listens: on `127.0.0.1:8080` unless the
//! environment variables `ADDRESS` or `PORT` are set. A test in `tests/` runs every example.
#![forbid(unsafe_code)]

use std::env;
use std::process::exit;

const VARIABLES: &str = "\
  ADDRESS=...           where to listen: `127.0.0.1:8080` (default), `[::]:80`, `unix:/run/app.sock`
  PORT=...              the port of 127.0.0.1 to listen on, if ADDRESS is not set
  PEREGRINE_DRIVER=...  `uring`, `tokio`, or `auto` (default): io_uring where the kernel allows it
";

/// The address that an example listens on. With `--help` it prints `about` and exits; if the
/// command line or the environment is invalid it prints an error and exits with status 2.
#[must_use]
pub fn address(about: &str) -> String {
    let name = env!("CARGO_PKG_NAME");
    let program = env::args().next().unwrap_or_default();
    let program = program.rsplit(['/', '\\']).next().unwrap_or(name);
    match env::args().nth(1).as_deref() {
        None => {}
        Some("--help" | "-h") => {
            print!("{about}\n\nUsage: {program} [--help]\n\nEnvironment variables:\n{VARIABLES}");
            exit(0);
        }
        Some(argument) => {
            eprintln!("{program}: unknown argument `{argument}`; see `{program} --help`");
            exit(2);
        }
    }
    place()
}

/// The address to listen on, from the environment variables `ADDRESS` and `PORT`.
#[must_use]
pub fn place() -> String {
    match (env::var("ADDRESS"), env::var("PORT")) {
        (Ok(address), _) => address,
        (Err(_), Err(_)) => "127.0.0.1:8080".to_owned(),
        (Err(_), Ok(port)) => match port.parse::<u16>() {
            Ok(port) => format!("127.0.0.1:{port}"),
            Err(_) => {
                eprintln!("PORT={port} is not a port: use a number from 0 to 65535");
                exit(2);
            }
        },
    }
}
