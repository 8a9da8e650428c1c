//! Rate limiting.
//!
//! [`RateLimit`] is the middleware. It uses the generic cell rate algorithm (`gcra.rs`), with
//! counters in a fixed-size table that all workers share (`table.rs`), or in Redis for several
//! machines (`redis.rs`). Without the feature `redis`, this crate does no I/O.
//!
//! Start reading with `limit.rs`; `check.rs` handles a request.
#![forbid(unsafe_code)]

mod check;
mod gcra;
mod headers;
mod key;
mod limit;
#[cfg(feature = "redis")]
mod redis;
mod spec;
mod stats;
mod table;
#[cfg(test)]
mod tests;

pub use key::RateLimitKey;
pub use limit::RateLimit;
#[cfg(feature = "redis")]
pub use redis::{OnStoreFailure, RedisStore};
pub use stats::RateLimitStats;
