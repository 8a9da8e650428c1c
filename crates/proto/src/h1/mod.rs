//! HTTP/1.1 and HTTP/1.0.

mod chunked;
mod connection;
mod event;
mod framing;
mod line;
mod parse;
mod receive;
mod send;
#[cfg(test)]
mod states;
mod write;

pub(crate) use framing::parse_decimal;
pub(crate) use parse::parse_method_and_target;
pub(crate) use write::write_decimal;

pub use connection::Connection;
pub use event::{Event, NextAction, WaitingFor};
pub use framing::Framing;
pub use send::{BodyFraming, ExternalData, ResponseLength};
