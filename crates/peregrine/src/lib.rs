//! An HTTP server framework with one worker thread per core, on io_uring or epoll.
//!
//! ```no_run
//! use peregrine::prelude::*;
//!
//! async fn hello(Path(name): Path<String>) -> String {
//!     format!("Hello, {name}!")
//! }
//!
//! fn main() -> peregrine::Result<()> {
//!     Server::bind("127.0.0.1:8080").serve(|| App::new().get("/hello/{name}", hello))
//! }
//! ```
//!
//! [`Server`] starts the workers on the best driver that the kernel allows. [`App`] and everything
//! that handlers use are re-exported from [`web`]. Start with the [`prelude`].
//!
//! # Features
//!
//! Features add API and never change the behaviour of existing code. Enabled by default: `restart`,
//! `tls`, `uring` and `websocket`.
//!
//! | feature | what it adds |
//! |---|---|
//! | `acme` | certificates through ACME, from Let's Encrypt and others: `peregrine::acme` |
//! | `auth` | authentication by password, token or API key: `peregrine::auth` |
//! | `auth-jwt` | JSON Web Tokens, and fetching their issuers' keys |
//! | `cache` | entity tags, cached responses and idempotency keys: `peregrine::cache` |
//! | `cbor` | CBOR in requests and responses: `peregrine::web::extract::Cbor` |
//! | `compression` | compressed bodies (gzip, Brotli, Zstandard): `peregrine::compression` |
//! | `compression-br` | Brotli alone |
//! | `compression-deflate` | deflate alone |
//! | `compression-gzip` | gzip alone |
//! | `compression-zlib-rs` | the crate `zlib-rs` as the implementation of deflate and gzip |
//! | `compression-zstd` | Zstandard alone, which compiles C code |
//! | `config` | settings from a file and the environment: `peregrine::config` |
//! | `config-schema` | the JSON schema of those settings |
//! | `cookies` | reading and setting cookies: `peregrine::web::cookies::Cookies` |
//! | `cookies-private` | encrypted cookies, which clients cannot read |
//! | `cookies-signed` | signed cookies, which clients cannot forge |
//! | `cors` | `Cors`: cross-origin requests |
//! | `csrf` | `Csrf`: protection against cross-site request forgery |
//! | `fast-json` | JSON through the crate `simd-json`: `peregrine::web::extract::FastJson` |
//! | `files` | static files from a directory: `peregrine::files` |
//! | `files-embed` | static files embedded in the program |
//! | `macros` | attribute macros that register handlers as routes: `peregrine::macros` |
//! | `message-pack` | MessagePack bodies: `peregrine::web::extract::MessagePack` |
//! | `metrics` | the application's own metrics (crate `metrics`) on the admin listener |
//! | `multipart` | forms with files: `peregrine::multipart` |
//! | `openapi` | an OpenAPI document generated from the handlers: `peregrine::openapi` |
//! | `otlp` | span export to OpenTelemetry collectors: `peregrine::otlp` |
//! | `protobuf` | Protocol Buffers bodies: `peregrine::web::extract::Protobuf` |
//! | `proxy` | a reverse proxy as a handler: `peregrine::proxy` |
//! | `proxy-tls` | upstreams over TLS and HTTP/2 |
//! | `rate-limit` | rate limits per client: `peregrine::rate_limit` |
//! | `rate-limit-redis` | rate limits that several machines share through Redis |
//! | `restart` | upgrades in place and socket activation, on Linux: `peregrine::restart` |
//! | `security-headers` | `SecurityHeaders`: header fields that browsers enforce |
//! | `sessions` | sessions in stores or in cookies: `peregrine::session` |
//! | `simulate` | tests on a simulated network with virtual time: `peregrine::simulate` |
//! | `tls` | HTTPS: `Server::tls`. Its cryptography takes most of the time of a clean build |
//! | `tls-watch` | reloads certificates when files change: `Server::watch_certificates` |
//! | `tower` | tower services and layers, including axum routers: `peregrine::tower` |
//! | `typed-headers` | typed header fields: `peregrine::web::extract::TypedHeader` |
//! | `uring` | the io_uring driver, on Linux. Without it all workers run on tokio |
//! | `validate` | validation of extracted values: `peregrine::validate` |
//! | `websocket` | WebSockets: `peregrine::websocket` |
//! | `websocket-deflate` | WebSockets with compressed messages |
#![forbid(unsafe_code)]

// A unit test contains code from the guide, which refers to this crate as `peregrine`.
#[cfg(all(test, feature = "simulate"))]
extern crate self as peregrine;

#[cfg(feature = "acme")]
pub mod acme;
pub mod admin;
mod choice;
#[cfg(feature = "config")]
pub mod config;
mod deadline;
mod entrances;
mod error;
#[cfg(feature = "tls")]
mod keeper;
mod listen;
mod listener;
pub mod log;
mod make;
mod memory;
mod offload;
mod orders;
#[cfg(feature = "otlp")]
pub mod otlp;
mod readers;
#[cfg(all(target_os = "linux", feature = "restart"))]
pub mod restart;
#[cfg(not(all(target_os = "linux", feature = "restart")))]
#[path = "restart/absent.rs"]
mod restart;
mod running;
mod server;
mod serving;
mod signals;
#[cfg(feature = "simulate")]
pub mod simulate;
mod socket_file;
mod stopped;
mod tell;
pub mod test;
mod threads;
#[cfg(feature = "tower")]
pub mod tower;
pub mod trace;
mod watch;
#[cfg(feature = "tls-watch")]
mod watched;
mod worker;

pub use admin::Admin;
pub use bytes;
pub use choice::DriverChoice;
pub use error::Error;
pub use http;
pub use listen::Place;
pub use listener::Listener;
pub use make::MakeApplication;
pub use offload::offload;
pub use orders::Handle;
#[cfg(feature = "auth")]
pub use peregrine_auth as auth;
#[cfg(feature = "cache")]
pub use peregrine_cache as cache;
#[cfg(any(
    feature = "compression-br",
    feature = "compression-deflate",
    feature = "compression-gzip",
    feature = "compression-zstd"
))]
pub use peregrine_compression as compression;
pub use peregrine_driver::{Options as DriverOptions, Socket, SocketOptions};
#[cfg(feature = "files")]
pub use peregrine_files as files;
#[cfg(feature = "macros")]
pub use peregrine_macros as macros;
pub use peregrine_middleware as middleware;
#[cfg(feature = "multipart")]
pub use peregrine_multipart as multipart;
#[cfg(feature = "openapi")]
pub use peregrine_openapi as openapi;
#[cfg(feature = "proxy")]
pub use peregrine_proxy as proxy;
#[cfg(feature = "rate-limit")]
pub use peregrine_rate_limit as rate_limit;
pub use peregrine_server::{
    Cut, Http1Limits, Http2Limits, Limits, MemoryMax, OverloadLimits, ProxyProtocol, Shutdown,
    Snapshot, Unfinished,
};
#[cfg(feature = "sessions")]
pub use peregrine_session as session;
#[cfg(feature = "tls")]
pub use peregrine_tls as tls;
#[cfg(feature = "validate")]
pub use peregrine_validate as validate;
pub use peregrine_web as web;
pub use peregrine_web::app::App;
pub use peregrine_web::check_handler;
pub use peregrine_web::client::TrustedProxies;
#[cfg(feature = "websocket")]
pub use peregrine_websocket as websocket;
pub use running::Running;
pub use server::{IntoApplication, Server, serve};
pub use stopped::Stopped;

/// The result of [`Server::serve`] and similar functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The types that most applications use.
pub mod prelude {
    pub use crate::Server;
    pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
    pub use peregrine_middleware::*;
    #[cfg(feature = "tls")]
    pub use peregrine_tls::Tls;
    pub use peregrine_web::prelude::*;
}

/// Compiles the code in the guide and the README as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/README.md")]
mod guide {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/first-steps.md")]
mod first_steps {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/errors.md")]
mod error_messages {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/extractors.md")]
mod extractors {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/responses-and-errors.md")]
mod responses_and_errors {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/middleware.md")]
mod around_handlers {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/state-and-concurrency.md")]
mod state_and_concurrency {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/testing.md")]
mod testing {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/limits.md")]
mod limits_and_ends {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/http2.md")]
mod http2 {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/measuring.md")]
mod measuring {}

#[cfg(all(doctest, feature = "cors", feature = "csrf", feature = "security-headers"))]
#[doc = include_str!("../../../docs/guide/browsers.md")]
mod browsers {}

#[cfg(all(doctest, feature = "compression"))]
#[doc = include_str!("../../../docs/guide/compression.md")]
mod packed {}

#[cfg(all(doctest, feature = "cache"))]
#[doc = include_str!("../../../docs/guide/responses.md")]
mod responses {}

#[cfg(all(
    doctest,
    feature = "cbor",
    feature = "fast-json",
    feature = "message-pack",
    feature = "protobuf"
))]
#[doc = include_str!("../../../docs/guide/bodies.md")]
mod bodies {}

#[cfg(all(doctest, feature = "sessions", feature = "cookies-signed"))]
#[doc = include_str!("../../../docs/guide/sessions.md")]
mod sessions {}

#[cfg(all(doctest, feature = "auth"))]
#[doc = include_str!("../../../docs/guide/auth.md")]
mod auth_of_requests {}

#[cfg(all(doctest, feature = "simulate"))]
#[doc = include_str!("../../../docs/guide/simulation.md")]
mod simulated {}

#[cfg(all(doctest, feature = "rate-limit"))]
#[doc = include_str!("../../../docs/guide/rate-limits.md")]
mod rate_limits {}

#[cfg(all(doctest, feature = "config"))]
#[doc = include_str!("../../../docs/guide/configuration.md")]
mod configuration {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/routing.md")]
mod routing {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/from-go.md")]
mod from_go {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/security.md")]
mod security {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/events.md")]
mod events {}

#[cfg(all(doctest, feature = "proxy"))]
#[doc = include_str!("../../../docs/guide/proxying.md")]
mod proxying {}

#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../../../docs/guide/proxies.md")]
mod proxies {}

#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../../../docs/guide/tls.md")]
mod tls_in_operation {}

#[cfg(all(doctest, target_os = "linux", feature = "restart"))]
#[doc = include_str!("../../../docs/guide/deployment.md")]
mod deployment {}

#[cfg(all(doctest, feature = "websocket"))]
#[doc = include_str!("../../../docs/guide/websocket.md")]
mod websockets {}

#[cfg(all(doctest, feature = "multipart"))]
#[doc = include_str!("../../../docs/guide/forms.md")]
mod forms {}

#[cfg(all(doctest, feature = "validate"))]
#[doc = include_str!("../../../docs/guide/validation.md")]
mod validation {}

#[cfg(all(doctest, feature = "openapi"))]
#[doc = include_str!("../../../docs/guide/openapi.md")]
mod documents {}

#[cfg(all(doctest, feature = "files"))]
#[doc = include_str!("../../../docs/guide/files.md")]
mod files_and_pages {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/observability.md")]
mod observability {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/overload.md")]
mod overload {}

#[cfg(all(doctest, feature = "tower"))]
#[doc = include_str!("../../../docs/guide/from-axum.md")]
mod from_axum {}

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/from-actix-web.md")]
mod from_actix_web {}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
