//! Libraries of the tokio ecosystem inside handlers, ours and those of mounted axum routers.
//!
//! What needs Redis or PostgreSQL is ignored unless it is asked for, with `-- --include-ignored`, and
//! fails where they are not installed.
#![cfg(unix)]
#![expect(clippy::duplicate_mod, reason = "one application is compiled for two databases")]

mod forwarding;
mod layers;
mod postgres;
mod redis;
mod sqlite;
mod templates;
mod trailers;
