//! Libraries of the tokio ecosystem: mounted, layered, and inside our handlers.
//!
//! Each is tested over a socket, on both kernel drivers. Differences from axum's own server are
//! asserted too, and described in `docs/guide/ecosystem.md`.
#![cfg(unix)]

mod files;
mod graphql;
mod layers;
mod openapi;
mod server_functions;
