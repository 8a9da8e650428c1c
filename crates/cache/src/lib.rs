//! Middleware that remembers what was answered: [`Etag`], by which clients keep responses; [`Cache`], which keeps them here; and
//! [`Idempotency`], which lets a client send a request twice that must be carried out once.
//!
//! All build on `peregrine-web` only. Start with `etag.rs`, the shortest; `gather.rs` is what all have in common.
#![forbid(unsafe_code)]

mod cache;
mod etag;
mod gather;
mod idempotency;
mod lasting;
mod owned;

pub use cache::{Cache, CacheCounts, CacheStore};
pub use etag::Etag;
pub use idempotency::{
    Begun, Fingerprint, Idempotency, IdempotencyStore, KeptResponse, MemoryStore, Outcome,
    StoreError,
};
