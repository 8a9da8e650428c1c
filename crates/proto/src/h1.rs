//! HTTP/1.1 and HTTP/1.0.

mod connection;

pub use connection::{BodyMode, Connection, Event, Next, ResponseLength, Waiting};
