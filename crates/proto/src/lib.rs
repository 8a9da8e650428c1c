//! HTTP as state machines: bytes in, events and bytes out.
//!
//! This crate implements only HTTP and WebSocket. It does no I/O and has no clock, no `async`, no
//! locks and no dependencies: the caller passes received bytes to a connection, and sends the bytes
//! that the connection wrote. The caller is responsible for I/O, buffers and timeouts.
//!
//! The parser is strict (RFC 9110, RFC 9112, RFC 9113, RFC 6455). Input that two implementations
//! could interpret differently is rejected; each reason is a variant of [`RequestError`],
//! [`h2::Http2Error`] or [`ws::WebSocketError`] that names the rule.
//!
//! Start reading at [`h1::Connection`], which combines the two directions of an HTTP/1.1
//! connection; then `h1/receive.rs` (bytes to events) and `h1/send.rs` (responses to bytes).
//! `h1/parse.rs` contains the rules for a head, `h1/framing.rs` those for the end of its content.
//! `head_builder.rs` builds heads that were not received over HTTP/1, such as those of HTTP/2. An
//! HTTP/2 connection is [`h2::Connection`]; a WebSocket, after its handshake over either, is
//! [`ws::Connection`]. [`proxy_protocol::parse`] reads a PROXY header before all of that.
//! `cases/*.txt` contains example inputs for all of these, with their expected results.

#![forbid(unsafe_code)]

mod authority;
pub mod date;
pub mod error;
pub mod field;
pub mod h1;
pub mod h2;
pub mod head;
mod head_builder;
pub mod limits;
pub mod proxy_protocol;
pub mod span;
mod trailers;
pub mod ws;

pub use authority::is_host_and_port;
pub use date::Date;
pub use error::RequestError;
pub use field::KnownField;
pub use head::{BodyLength, FieldIndex, HeadIndex, Method, Scheme, TargetForm, Version};
pub use head_builder::{HeadBuilder, RequestLine};
pub use limits::Limits;
pub use span::Span;
