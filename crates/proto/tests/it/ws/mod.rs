//! WebSocket through the public types: table cases, cuts, conversations, floods, compression, and oracles.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cases;
mod compression;
mod conformance;
mod handshake;
mod inflater;
mod notation;
mod play;
#[path = "../h1/script.rs"]
mod script;
mod sending;
mod utf8;
