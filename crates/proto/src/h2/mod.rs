//! HTTP/2 (RFC 9113), with HPACK (RFC 7541), priorities (RFC 9218) and extended CONNECT (RFC 8441).
//!
//! Start reading at [`Connection`]. Received bytes go from `receive.rs` (frames) to `data.rs`
//! (content), `headers.rs` (requests and trailers, by the rules in `request.rs`) or `control.rs`
//! (all other frames). Responses are written in `send.rs`; the queues in `priority.rs` decide whose
//! content is next. `shutdown.rs` ends the connection. Open streams are in `streams.rs`, windows in
//! `flow.rs`. `budget.rs` limits the work that a peer can cause without a benefit. `frame.rs` and
//! `hpack/` do not depend on the others.

mod budget;
mod connection;
mod control;
mod data;
mod error;
mod event;
mod flow;
pub mod frame;
mod headers;
mod hold;
pub mod hpack;
mod limits;
mod priority;
mod receive;
mod recent;
mod request;
mod send;
mod shutdown;
#[cfg(test)]
mod states;
mod streams;

pub use connection::Connection;
pub use error::{ErrorScope, Http2Error};
pub use event::{Event, MoreData, NextAction, ReadyStream, Request, ResetCause, WaitingFor};
pub use frame::{ErrorCode, PrefaceMatch, match_preface};
pub use limits::Limits;
pub use priority::Priority;
pub use streams::StreamKey;
