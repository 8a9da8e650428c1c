//! gRPC: services of tonic, mounted, beside tonic's own server.
//!
//! The service is the one of gRPC's own interoperability tests, so that clients of others can try it
//! too (`tests/outside/grpc`). Its messages are derived by hand (`messages.rs`), and its methods called by
//! tonic's codec (`service.rs`): that is less than what a generator writes, and needs no `protoc`.
//!
//! This is a package of its own because it is slow to compile. Start with `tests/calls/main.rs`.
#![forbid(unsafe_code)]

pub mod client;
pub mod messages;
pub mod serve;
pub mod service;

/// The code in the guide is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/grpc.md")]
mod guide {}
