//! Libraries of the tokio ecosystem inside handlers, ours and those of mounted axum routers.
//!
//! A database that is not installed is passed over, and the output says so.
#![cfg(unix)]
#![expect(clippy::duplicate_mod, reason = "one application is compiled for two databases")]

mod forwarding;
mod postgres;
mod redis;
mod sqlite;
mod trailers;
