//! Sessions: what a server remembers of a visitor from one request to the next.
//!
//! [`Sessions`] is the middleware, [`Session`] what handlers take. Where sessions are kept is up to a store of
//! `tower-sessions` (in memory, SQL, Redis and others fit as they are), or they are in the visitor's own cookie, encrypted.
//! This crate does no I/O, and builds on `peregrine-web` only.
//!
//! Start with `sessions.rs`.
#![forbid(unsafe_code)]

mod backend;
mod clock;
mod cookie;
mod session;
mod sessions;
#[cfg(test)]
mod tests;

pub use session::{Flash, Session};
pub use sessions::Sessions;
pub use tower_sessions_core as core;
