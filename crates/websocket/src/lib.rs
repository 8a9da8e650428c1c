//! WebSockets (RFC 6455) for applications: an extractor that answers the handshake, and a socket for the
//! messages after it. Over HTTP/2 (RFC 8441) it is the same.
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
//! let mut socket = client.websocket("/echo").connect_now();
//! socket.send_now("hello");
//! assert_eq!(socket.recv_now().unwrap().text(), "hello");
//! ```
//!
//! What a handler need not care about, because `conversation.rs` does it beside the handler, whatever the
//! handler waits for: pings are answered, silent peers are asked whether they are there and are let go if
//! they are not, the close handshake is made and ends in time, and a server that shuts down says goodbye.
//!
//! The protocol is in `peregrine_proto::ws`, which does no I/O; the connection's bytes come by
//! `peregrine_web::upgrade`. Nothing here knows the server. Start reading at [`WebSocketUpgrade`], then
//! [`WebSocket`], then `conversation.rs`.
#![forbid(unsafe_code)]

#[cfg(feature = "deflate")]
mod compress;
mod conversation;
mod error;
mod handle;
mod inbox;
#[cfg(feature = "deflate")]
mod inflate;
mod json;
mod message;
mod origin;
mod settings;
mod share;
mod shared;
mod upgrade;
mod waiters;

#[cfg(feature = "deflate")]
pub use compress::Compress;
pub use error::{Error, JsonError, SendError, TrySendError};
pub use handle::{Receiver, Sender, WebSocket};
pub use json::{JsonReceiver, JsonSender, JsonSocket};
pub use message::{CloseFrame, Message, Text};
pub use peregrine_proto::ws::{CloseCode, Reject};
pub use settings::{CLOSE_TIMEOUT, GOODBYE, IDLE_TIMEOUT, KEEP_ALIVE, Limits};
pub use upgrade::WebSocketUpgrade;

/// The compression of a connection.
#[cfg(feature = "deflate")]
type Codec = compress::Deflate;
#[cfg(not(feature = "deflate"))]
type Codec = peregrine_proto::ws::NoCompression;
