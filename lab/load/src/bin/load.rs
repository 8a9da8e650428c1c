//! Asks one HTTP/1.1 server, judges every answer, and measures honestly.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    peregrine_lab_load::command::load(&arguments)
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("load: Linux only");
    ExitCode::FAILURE
}
