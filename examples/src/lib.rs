//! Examples, one idea each, in `src/bin`; `cargo run -p peregrine-examples --bin NAME`.
//!
//! Each listens on `127.0.0.1:8080` or on what the environment variable `ADDRESS` says. The test in
//! `tests/` runs every one of them.
#![forbid(unsafe_code)]

/// Where an example listens.
#[must_use]
pub fn address() -> String {
    std::env::var("ADDRESS").unwrap_or_else(|_| "127.0.0.1:8080".to_owned())
}
