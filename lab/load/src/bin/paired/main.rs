//! Paired time slices between HTTP servers: starts them, asks each in turn, and says which one
//! uses less CPU time per request, if that can be said.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod options;
#[cfg(target_os = "linux")]
mod session;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    session::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("paired: Linux only");
}
