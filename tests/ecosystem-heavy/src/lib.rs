//! Libraries of the tokio ecosystem that take long to compile, on our servers.
//!
//! This package is outside the workspace, so that testing the framework does not compile them.
//! Tests that compile quickly are in `tests/ecosystem`, whose servers and client are used here.
//!
//! Start with `tests/libraries/main.rs`.
#![forbid(unsafe_code)]

/// The code in the guide is compiled and run with the documentation tests here, where its crates
/// are dependencies.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/ecosystem.md")]
mod guide {}
