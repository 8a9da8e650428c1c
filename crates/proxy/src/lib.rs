//! A reverse proxy: a handler that forwards requests to other servers.
//!
//! [`Proxy`] is the handler, and [`Upstreams`] are the servers. hyper speaks HTTP/1.1 and HTTP/2
//! with them. The connections are pooled here and not by hyper-util's client, which requires `Send`
//! bodies: our bodies are sent to the upstream unchanged, on the thread on which they arrived.
//!
//! Start with the module `proxy`; `fields` decides which header fields are forwarded.
#![forbid(unsafe_code)]

mod asked;
mod attempt;
mod body;
mod connect;
mod error;
mod fields;
mod form;
#[cfg(feature = "tls")]
mod greeting;
mod interim;
mod pool;
mod proxy;
mod slots;
#[cfg(feature = "tls")]
mod tls;
mod tunnel;
mod unanswered;
mod upstreams;

pub use error::UpstreamError;
pub use proxy::Proxy;
#[cfg(feature = "tls")]
pub use rustls;
pub use upstreams::{Balance, UpstreamState, Upstreams};
