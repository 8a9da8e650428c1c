//! An HTTP server framework: io_uring or epoll, one worker per core.
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
//! This crate adds names, not behaviour: [`Server`] starts workers on the best driver the kernel
//! allows; [`App`] and everything that handlers use come from [`web`]. Start with the [`prelude`].
//!
//! # Features
//!
//! They add names, and never change what code means. On by default: `restart`, `tls`, `uring` and `websocket`.
//!
//! | feature | what it adds |
//! |---|---|
//! | `acme` | certificates by ACME, from Let's Encrypt and others: `peregrine::acme` |
//! | `cache` | entity tags, kept responses and idempotency keys: `peregrine::cache` |
//! | `cbor` | CBOR in requests and responses: `peregrine::web::extract::Cbor` |
//! | `auth` | who asks, by name and password, token or key: `peregrine::auth` |
//! | `auth-jwt` | JSON Web Tokens, and the keys of those who issue them |
//! | `compression` | compressed responses, and request bodies unpacked: `peregrine::compression`; with each of the four below one coding |
//! | `compression-br` | Brotli |
//! | `compression-deflate` | deflate |
//! | `compression-gzip` | gzip |
//! | `compression-zlib-rs` | deflate and gzip by the crate `zlib-rs` |
//! | `compression-zstd` | Zstandard, which compiles C |
//! | `config` | settings from a file and the environment: `peregrine::config` |
//! | `config-schema` | their JSON schema |
//! | `cookies` | cookies, read and set: `peregrine::web::cookies::Cookies` |
//! | `cookies-private` | cookies that nobody else can read |
//! | `cookies-signed` | cookies that nobody else can make |
//! | `cors` | `Cors`: pages of other origins |
//! | `csrf` | `Csrf`: requests that other sites make browsers send |
//! | `fast-json` | JSON by the crate `simd-json`: `peregrine::web::extract::FastJson` |
//! | `files` | files of folders: `peregrine::files` |
//! | `files-embed` | files that are in the program |
//! | `macros` | attributes that give handlers their routes: `peregrine::macros` |
//! | `message-pack` | MessagePack in requests and responses: `peregrine::web::extract::MessagePack` |
//! | `metrics` | what the application counts by the crate `metrics`, on the page of the admin listener |
//! | `multipart` | forms with files: `peregrine::multipart` |
//! | `openapi` | a document of OpenAPI from the handlers, and a page of it: `peregrine::openapi` |
//! | `otlp` | spans to collectors of OpenTelemetry: `peregrine::otlp` |
//! | `protobuf` | messages of protocol buffers in requests and responses: `peregrine::web::extract::Protobuf` |
//! | `proxy` | a reverse proxy as a handler: `peregrine::proxy` |
//! | `proxy-tls` | the same to servers over TLS, and of HTTP/2 |
//! | `rate-limit` | how often clients may ask: `peregrine::rate_limit` |
//! | `rate-limit-redis` | the same, counted in Redis by several machines together |
//! | `restart` | upgrades in place, and sockets of a service manager, on Linux: `peregrine::restart` |
//! | `security-headers` | `SecurityHeaders`: what browsers are to guard |
//! | `sessions` | sessions in stores or in cookies: `peregrine::session` |
//! | `tls` | HTTPS: `Server::tls`. Most of what a build from nothing takes is its cryptography |
//! | `tls-watch` | certificates are read again when their files change: `Server::watch_certificates` |
//! | `tower` | tower services and layers, axum routers among them: `peregrine::tower` |
//! | `typed-headers` | header fields as types of the crate `headers`: `peregrine::web::extract::TypedHeader` |
//! | `uring` | the io_uring driver, on Linux. Without it all workers run on tokio, and less is compiled |
//! | `validate` | rules for what requests bring: `peregrine::validate` |
//! | `websocket` | WebSockets: `peregrine::websocket` |
//! | `websocket-deflate` | the same with compressed messages |
#![forbid(unsafe_code)]

#[cfg(feature = "acme")]
pub mod acme;
mod error;
#[cfg(doctest)]
mod guide;
mod listen;
mod reload;
mod runtime;
mod server;
pub mod test;
#[cfg(feature = "tower")]
pub mod tower;
pub mod trace;

pub use bytes;
pub use error::Error;
pub use http;
pub use listen::admin::Admin;
pub use listen::bind::Place;
pub use listen::listener::Listener;
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
pub use peregrine_server::{
    Cut, Http1Limits, Http2Limits, Limits, MemoryMax, OverloadLimits, ProxyProtocol, Shutdown,
    Snapshot, Unfinished,
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
pub use runtime::driver_choice::DriverChoice;
pub use runtime::handle::Handle;
pub use runtime::make_app::{IntoApplication, MakeApplication};
pub use runtime::report::Stopped;
pub use runtime::running::Running;
pub use runtime::spawn_blocking::offload;
pub use server::{Server, serve};

/// The result of [`Server::serve`] and similar functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The listener for those who run the server: metrics, probes, and what it does at this moment.
///
/// It has a thread, limits and a few descriptors of its own, on tokio, so that it answers while all
/// workers are blocked or flooded, and it ends after them. [`app`](admin::app) is for those who
/// want its pages on their own listener.
pub mod admin {
    pub use crate::listen::admin::Admin;
    pub use peregrine_admin::app;
}

/// The access log: a line for each request, written by a thread of its own.
///
/// Workers hand lines over and never wait. What cannot be written, because the disk is full, a pipe
/// is not read or they make more than it takes, is dropped and counted.
pub mod log {
    pub use peregrine_admin::{Form, Log};
}

/// Spans to collectors of OpenTelemetry, by OTLP over HTTP. With the feature `otlp`.
///
/// [`Otlp`](otlp::Otlp) is the whole set-up. A thread of its own sends; what it cannot send is
/// dropped, and no worker waits.
#[cfg(feature = "otlp")]
pub mod otlp {
    pub use peregrine_admin::{Otlp, OtlpError};
}

/// What `peregrine-simulate` needs beyond the public interface. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::listen::listener::Settings;
    pub use crate::runtime::make_app::{Make, makes};
    pub use crate::runtime::report::stopped;
    pub use crate::server::Simulated;
}

/// Everything that most applications name.
pub mod prelude {
    pub use crate::Server;
    pub use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
    pub use peregrine_middleware::*;
    #[cfg(feature = "tls")]
    pub use peregrine_tls::Tls;
    pub use peregrine_web::prelude::*;
}
