//! WebSocket (RFC 6455), with permessage-deflate (RFC 7692).
//!
//! Start reading at [`Connection`]. Received bytes become frames in `receive.rs`, whose payloads
//! become messages in `message.rs`; messages become bytes in `send.rs`; `connection.rs` contains
//! the shared state and the close handshake. `utf8.rs` validates text incrementally, `budget.rs`
//! limits the work that a peer can cause without a benefit, and `frame.rs` does not depend on the
//! others.
//!
//! Before the first frame there is a handshake over HTTP: [`handshake`] checks its fields,
//! [`key`] answers its key, and [`deflate`] negotiates the parameters of the compression. The
//! compression itself is provided by the owner, through [`DeflateCodec`].

mod budget;
mod close;
mod compression;
mod connection;
pub mod deflate;
mod error;
mod event;
pub mod frame;
pub mod handshake;
pub mod key;
mod limits;
mod message;
mod receive;
mod send;
#[cfg(test)]
mod states;
mod utf8;

pub use close::{Close, CloseCode};
pub use compression::{DeflateCodec, InflateError, NoDeflate};
pub use connection::{Connection, Role};
pub use error::WebSocketError;
pub use event::{Event, MessageType, NextAction, WaitingFor};
pub use limits::Limits;
pub use send::{MessagePayload, WriteError};
pub use utf8::Utf8Validator;
