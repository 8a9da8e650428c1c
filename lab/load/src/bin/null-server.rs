//! Answers fixed bytes, for calibration: the fastest server there is for a workload.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    peregrine_lab_load::command::null_server(&arguments)
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("null-server: Linux only");
    ExitCode::FAILURE
}
