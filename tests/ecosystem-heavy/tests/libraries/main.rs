//! Libraries of the tokio ecosystem: mounted, layered, and inside handlers of ours.
//!
//! Each is asked over a socket, on both drivers that use the kernel. What differs from axum's own server is
//! asserted too, and written down in `docs/guide/ecosystem.md`.
#![cfg(unix)]

mod files;
mod graphql;
mod layers;
mod openapi;
mod server_functions;
