//! Programs in the style of axum's own examples, each in a module, written with nothing but axum,
//! tower, tower-http and tokio: only the server differs.
//!
//! `cargo run -p peregrine-axum-examples -- NAME` serves one; `--list` prints their names. The
//! tests run each of them under `axum::serve` and under Peregrine on both drivers, with the same
//! client.
//!
//! Examples for features that only Peregrine has are in the package `peregrine-examples`.
//!
//! Start with `hello_world.rs`, then `catalogue.rs`, which lists the others.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod chat;
pub mod compression;
pub mod content_type;
pub mod cors;
pub mod customize_path_rejection;
pub mod dependency_injection;
pub mod error_handling;
pub mod form;
pub mod global_404;
pub mod graceful_shutdown;
pub mod handle_head_request;
pub mod hello_world;
pub mod key_value_store;
pub mod metrics;
pub mod multipart_form;
pub mod print_request_response;
pub mod request_id;
pub mod reverse_proxy;
pub mod sessions;
pub mod sse;
pub mod static_file_server;
pub mod stream_to_file;
pub mod testing;
pub mod tls;
pub mod todos;
pub mod tracing_aka_logging;
#[cfg(unix)]
pub mod unix_domain_socket;
pub mod websockets;
