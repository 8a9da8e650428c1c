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
//! Features add API and never change the behaviour of existing code. `restart`, `tls`, `uring` and
//! `websocket` are enabled by default.
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
//! | `fast-json` | JSON through the crate `simd-json`: `peregrine::web::extract::SimdJson` |
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
//! | `tls` | HTTPS: `Server::listen_tls`. Its cryptography takes most of a clean build's time |
//! | `tls-watch` | reloads certificates when files change: `Server::watch_certificates` |
//! | `tower` | tower services and layers, including axum routers: `peregrine::tower` |
//! | `typed-headers` | typed header fields: `peregrine::web::extract::TypedHeader` |
//! | `uring` | the io_uring driver, on Linux. Without it all workers run on tokio |
//! | `validate` | validation of extracted values: `peregrine::validate` |
//! | `websocket` | WebSockets: `peregrine::websocket` |
//! | `websocket-deflate` | WebSockets with compressed messages |
#![forbid(unsafe_code)]

#[cfg(feature = "acme")]
pub mod acme;
#[cfg(doctest)]
mod guide;
mod reload;
mod server;
pub mod testing;
#[cfg(feature = "tower")]
pub mod tower;
pub mod trace;

pub use bytes;
pub use http;
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
#[cfg(all(target_os = "linux", feature = "restart"))]
pub use peregrine_restart as restart;
pub use peregrine_runtime::{
    Admin, DriverChoice, Error, ListenAddr, Listener, RunningServer, ServerHandle, ShutdownReport,
    spawn_blocking,
};
pub use peregrine_server::{
    ForceClosed, Http1Limits, Http2Limits, InFlightStage, Limits, MemoryMax, OverloadLimits,
    ProxyProtocol, Shutdown, WorkerStats,
};
#[cfg(feature = "sessions")]
pub use peregrine_session as session;
#[cfg(feature = "config")]
pub use peregrine_settings as config;
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
pub use server::make_app::{IntoBuiltApp, MakeApp};
pub use server::{Server, serve};

/// The result of [`Server::serve`] and similar functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The admin listener: serves metrics, probes, and the current state of the server to operators.
///
/// It has its own thread, limits and reserved descriptors, and runs on tokio, so it responds even
/// while all workers are blocked or overloaded. It stops after the workers. To serve its pages from
/// the application instead, use [`app`](admin::app).
pub mod admin {
    pub use peregrine_admin::app;
    pub use peregrine_runtime::Admin;
}

/// The access log: one line per request, written by a separate thread.
///
/// Workers put lines into a queue and never wait. Lines that cannot be written are dropped and
/// counted, for example because the disk or the queue is full, or because a pipe has no reader.
pub mod access_log {
    pub use peregrine_admin::{AccessLogFormat, AccessLogOptions};
}

/// Exports spans to OpenTelemetry collectors, with OTLP over HTTP. Requires the feature `otlp`.
///
/// [`Otlp`](otlp::Otlp) is the complete setup. A separate thread sends the spans. It drops spans
/// that it cannot send, so that no worker waits.
#[cfg(feature = "otlp")]
pub mod otlp {
    pub use peregrine_admin::{Otlp, OtlpError};
}

/// Items that `peregrine-simulate` needs beyond the public API. They can change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::server::SimulatedServer;
    pub use crate::server::make_app::box_make_app;
    pub use peregrine_runtime::internal::{BoxedMakeApp, ListenerSettings, stopped};
}

/// The types that most applications use.
pub mod prelude {
    pub use crate::Server;
    pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
    pub use peregrine_middleware::*;
    #[cfg(feature = "tls")]
    pub use peregrine_tls::TlsConfig;
    pub use peregrine_web::prelude::*;
}
