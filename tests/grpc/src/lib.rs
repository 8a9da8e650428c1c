//! gRPC: mounted tonic services, compared with tonic's own server.
//!
//! The service is the one of gRPC's own interoperability tests, so that external clients can call
//! it too (`tests/outside/grpc`). Its messages are derived by hand (`messages.rs`), and its methods
//! use tonic's codec (`service.rs`): that is less code than a generator writes, and needs no
//! `protoc`.
//!
//! It is a separate package because it is slow to compile. Start with `tests/calls/main.rs`.
#![forbid(unsafe_code)]

pub mod client;
pub mod messages;
pub mod serve;
pub mod service;

/// The code in the guide is compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/grpc.md")]
mod guide {}
