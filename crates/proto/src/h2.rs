//! HTTP/2 (RFC 9113).

pub mod frame;
pub mod hpack;
mod reject;

pub use reject::{Reject, Scope};
