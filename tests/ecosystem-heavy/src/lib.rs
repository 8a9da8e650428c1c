//! Libraries of the tokio ecosystem that take long to compile, on servers of ours.
//!
//! It is outside the workspace, so that who tests the framework does not compile them. What is quick
//! to compile is in `tests/ecosystem`, whose servers and client this uses.
//!
//! Start with `tests/libraries/main.rs`.
#![forbid(unsafe_code)]

/// The code in the guide is compiled, and run, with the documentation's tests: its crates are here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/ecosystem.md")]
mod guide {}
