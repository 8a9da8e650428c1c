//! HTTP/2 through the public types.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hpack;
