//! A reverse proxy: a handler that lets other servers answer.
//!
//! [`Proxy`] is the handler, [`Upstreams`] are the servers. hyper speaks HTTP/1.1 with them, and HTTP/2. The connections to them are kept
//! here, not by hyper-util's client, whose bodies must be `Send`: a body of ours goes to the upstream as it is, on the thread
//! that it came on.
//!
//! Start with `proxy.rs`; `fields.rs` is what is said to the other side, without I/O.
#![forbid(unsafe_code)]

mod asked;
mod attempt;
mod body;
mod connect;
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

pub use proxy::Proxy;
#[cfg(feature = "tls")]
pub use rustls;
pub use upstreams::{Balance, UpstreamError, UpstreamState, Upstreams};
