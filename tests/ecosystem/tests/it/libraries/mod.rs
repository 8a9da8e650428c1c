//! Libraries of the tokio ecosystem inside our handlers and inside mounted axum routers.
//!
//! Cases that need Redis or PostgreSQL are ignored unless requested with `-- --include-ignored`,
//! and fail if the program is not installed.
#![cfg(unix)]
#![expect(clippy::duplicate_mod, reason = "one application is compiled for two databases")]

mod forwarding;
mod layers;
mod postgres;
mod redis;
mod sqlite;
mod templates;
mod trailers;
