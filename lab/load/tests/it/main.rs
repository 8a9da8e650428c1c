//! The load generator, its client, and the program `load`.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests may stop a test as well")]

mod client;
mod http2;
mod lies;
mod load;
mod websocket;
