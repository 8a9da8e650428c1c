//! A reverse proxy: a handler that forwards requests to other servers.
//!
//! [`ReverseProxy`] is the handler, and [`Upstreams`] are the servers. hyper speaks HTTP/1.1 and
//! HTTP/2 with them. The connections are pooled here and not by hyper-util's client, which requires
//! `Send` bodies: our bodies are sent to the upstream unchanged, on the thread on which they
//! arrived.
//!
//! Start with the module `proxy`; `headers` decides which header fields are forwarded.
#![forbid(unsafe_code)]

mod attempt;
mod body;
mod connect;
mod error;
mod error_response;
mod headers;
mod interim;
mod pool;
mod proxy;
#[cfg(feature = "tls")]
mod settings_sniffer;
mod slots;
mod tunnel;
mod upstream_request;
#[cfg(feature = "tls")]
mod upstream_tls;
mod upstreams;
mod version;

pub use error::UpstreamError;
pub use proxy::ReverseProxy;
#[cfg(feature = "tls")]
pub use rustls;
pub use upstreams::{LoadBalancing, UpstreamStatus, Upstreams};
