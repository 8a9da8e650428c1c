//! Examples, one idea each, in `src/bin`; `cargo run -p peregrine-examples --bin NAME`.
//!
//! Each tells with `--help` what it shows and where it listens: on `127.0.0.1:8080`, or on what the
//! environment variables `ADDRESS` or `PORT` say. The test in `tests/` runs every one of them.
#![forbid(unsafe_code)]

use std::env;
use std::process::exit;

const VARIABLES: &str = "\
  ADDRESS=...           where to listen: `127.0.0.1:8080` (default), `[::]:80`, `unix:/run/app.sock`
  PORT=...              the port of 127.0.0.1 to listen on, where there is no ADDRESS
  PEREGRINE_DRIVER=...  `uring`, `tokio`, or `auto` (default): io_uring where the kernel allows it
";

/// Where an example listens. Answers `--help` with `about` and ends the process then, as it does where
/// the command line or the environment cannot be understood.
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
            eprintln!("{program} does not know `{argument}`; see `{program} --help`");
            exit(2);
        }
    }
    place()
}

/// Where the environment says that an example listens.
#[must_use]
pub fn place() -> String {
    match (env::var("ADDRESS"), env::var("PORT")) {
        (Ok(address), _) => address,
        (Err(_), Err(_)) => "127.0.0.1:8080".to_owned(),
        (Err(_), Ok(port)) => match port.parse::<u16>() {
            Ok(port) => format!("127.0.0.1:{port}"),
            Err(_) => {
                eprintln!("PORT={port} is no port: write a number from 0 to 65535");
                exit(2);
            }
        },
    }
}
