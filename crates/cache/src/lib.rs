//! Middleware that reuses responses: [`Etag`], so that clients can cache them; [`Cache`], which
//! caches them on the server; and [`Idempotency`], which makes retried requests safe.
//!
//! Start reading with `etag.rs`, the shortest of the three. All of them use `collect.rs`.
#![forbid(unsafe_code)]

mod cache;
mod collect;
mod compact;
mod detach;
mod etag;
mod idempotency;

pub use cache::{Cache, CacheStats, CacheStore};
pub use etag::Etag;
pub use idempotency::{
    ClaimResult, Fingerprint, Idempotency, IdempotencyStore, IdempotencyStoreError,
    IdempotentOutcome, MemoryIdempotencyStore, StoredResponse,
};
