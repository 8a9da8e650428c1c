//! HTTP/1.1 and HTTP/1.0.

mod chunked;
mod connection;
mod framing;
mod parse;
mod receive;
mod send;
#[cfg(test)]
mod states;
mod write;

pub(crate) use framing::decimal;
pub(crate) use parse::method_and_target;
pub(crate) use write::decimal as write_decimal;

pub use connection::{Connection, Event, Next, Waiting};
pub use framing::Framing;
pub use send::{Announced, BodyMode, ResponseLength};
