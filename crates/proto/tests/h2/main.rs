//! HTTP/2 through the public types: table cases, cuts, attacks, and an oracle for HPACK.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod cases;
mod hpack;
mod play;
#[path = "../h1/script.rs"]
mod script;
mod sending;
mod windows;
mod wire;
