//! HTTP as state machines: bytes in, events and bytes out.
//!
//! This crate implements only HTTP and WebSocket. It does no I/O and has no clock, no `async`, no
//! locks and no dependencies: the owner of the socket passes received bytes to a connection, and
//! sends the bytes that the connection wrote. Waiting, buffering and deadlines are elsewhere.
//!
//! The parser is strict (RFC 9110, RFC 9112, RFC 9113, RFC 6455). Input that two readers could
//! interpret differently is rejected; each reason is a variant of [`RequestError`],
//! [`h2::Http2Error`] or [`ws::WebSocketError`] that names the rule.
//!
//! Start reading at [`h1::Connection`], which combines the two directions of an HTTP/1.1
//! connection; then `h1/receive.rs` (bytes to events) and `h1/send.rs` (responses to bytes).
//! `h1/parse.rs` contains the rules for a head, `h1/framing.rs` those for the end of its content.
//! Heads from elsewhere, including HTTP/2, are created in `head_builder.rs`; an HTTP/2 connection
//! is [`h2::Connection`], and a WebSocket, which follows a handshake over either, is
//! [`ws::Connection`]. A PROXY header before all of that is read by [`proxy_protocol::parse`].
//! `cases/*.txt` contains examples of everything.

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
