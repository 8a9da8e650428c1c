//! WebSockets (RFC 6455) for applications: an extractor that completes the handshake, and a socket
//! for the messages after it. The API is the same over HTTP/2 (RFC 8441).
//!
//! ```
//! use peregrine::prelude::*;
//! use peregrine::websocket::{Message, WebSocketUpgrade};
//!
//! async fn echo(upgrade: WebSocketUpgrade) -> Response {
//!     upgrade.on_upgrade(async |mut socket| {
//!         while let Some(Ok(message)) = socket.recv().await {
//!             let is_sent = match message {
//!                 Message::Text(_) | Message::Binary(_) => socket.send(message).await,
//!                 _ => continue,
//!             };
//!             if is_sent.is_err() {
//!                 break;
//!             }
//!         }
//!     })
//! }
//!
//! let client = App::new().get("/echo", echo).test();
//! let mut socket = client.websocket("/echo").connect_blocking();
//! socket.send_blocking("hello");
//! assert_eq!(socket.recv_blocking().unwrap().text(), "hello");
//! ```
//!
//! Handlers need not respond to pings, detect silent peers, complete the close handshake in time,
//! or close the WebSocket when the server shuts down: `dispatcher.rs` does this beside the handler,
//! regardless of what the handler waits for.
//!
//! The protocol is in `peregrine_proto::ws`, which does no I/O; the connection's bytes come from
//! `peregrine_web::upgrade`. This crate does not depend on the server. Start reading at
//! [`WebSocketUpgrade`], then [`WebSocket`], then `dispatcher.rs`.
#![forbid(unsafe_code)]

#[cfg(feature = "deflate")]
mod deflate;
mod dispatcher;
mod error;
#[cfg(feature = "deflate")]
mod inflate;
mod json;
mod limits;
mod message;
mod origin;
mod receive_queue;
mod shared;
mod socket;
mod upgrade;
mod waker_list;
mod work_budget;

#[cfg(feature = "deflate")]
pub use deflate::PerMessageDeflate;
pub use error::{JsonError, RecvError, SendError, TrySendError};
pub use json::{JsonReceiver, JsonSender, JsonSocket};
pub use limits::{CLOSE_TIMEOUT, DRAIN_TIMEOUT, PING_INTERVAL, PONG_TIMEOUT, WebSocketLimits};
pub use message::{CloseFrame, Message, Utf8Bytes};
pub use peregrine_proto::ws::{CloseCode, WebSocketError};
pub use socket::{WebSocket, WebSocketReceiver, WebSocketSender};
pub use upgrade::WebSocketUpgrade;

/// The compression state of a connection.
#[cfg(feature = "deflate")]
type Codec = deflate::DeflateContext;
#[cfg(not(feature = "deflate"))]
type Codec = peregrine_proto::ws::NoDeflate;
