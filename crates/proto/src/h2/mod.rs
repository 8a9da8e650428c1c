//! HTTP/2 (RFC 9113), with HPACK (RFC 7541), priorities (RFC 9218) and extended CONNECT (RFC 8441).
//!
//! Start reading at [`Connection`]. Received bytes go from `receive.rs` (frames, content) to
//! `blocks.rs` (requests and trailers, by the rules in `request.rs`) or `control.rs` (all other
//! frames). Responses are written in `send.rs`; the queues in `priority.rs` decide whose content is
//! next. Open streams are in `streams.rs`, windows in `flow.rs`. `budget.rs` limits the work that a
//! peer can cause without a benefit. `frame.rs` and `hpack/` do not depend on the others.

mod headers;
mod budget;
mod connection;
mod control;
mod event;
mod flow;
pub mod frame;
mod hold;
pub mod hpack;
mod limits;
mod priority;
mod receive;
mod recent;
mod error;
mod request;
mod send;
#[cfg(test)]
mod states;
mod streams;

pub use connection::Connection;
pub use event::{MoreData, ResetCause, Event, NextAction, ReadyStream, Request, WaitingFor};
pub use frame::{ErrorCode, PrefaceMatch, match_preface};
pub use limits::Limits;
pub use priority::Priority;
pub use error::{Http2Error, ErrorScope};
pub use streams::StreamKey;
