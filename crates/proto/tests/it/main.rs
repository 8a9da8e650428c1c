//! Each protocol through its public types.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod h1;
mod h2;
mod proxy;
mod script;
mod ws;
