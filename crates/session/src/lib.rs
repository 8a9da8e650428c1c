//! Sessions: data that the server keeps about a client from one request to the next.
//!
//! [`SessionManager`] is the middleware, and handlers extract [`Session`]. Sessions live in any
//! `tower-sessions` store (memory, SQL, Redis and others) or, encrypted, in the client's cookie.
//! This crate does no I/O itself.
//!
//! Start reading with `manager.rs`.
#![forbid(unsafe_code)]

mod backend;
mod clock;
mod cookie;
mod manager;
mod session;
#[cfg(test)]
mod tests;

pub use manager::SessionManager;
pub use session::{Flash, Session};
pub use tower_sessions_core as core;
