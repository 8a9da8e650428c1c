//! Server sessions tested against rustls clients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod challenge;
mod clients;
mod config;
mod handshake;
mod hostile;
mod hosts;
mod key_limits;
mod memory;
mod own_process;
mod peer;
mod records;
mod reload;
mod scan;
mod stages;
