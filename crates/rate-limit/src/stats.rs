//! Statistics of limits.

use peregrine_web::panic::catch_subscriber_panic;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Statistics of a [`RateLimit`](crate::RateLimit) since it was created, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimitStats {
    /// Rejected requests.
    pub refused: u64,
    /// How often a new key found no free entry in the table and inherited another key's debt. If
    /// this grows, there is a flood of keys, or the table is too small: see
    /// [`RateLimit::keys_max`](crate::RateLimit::keys_max).
    pub evicted: u64,
    /// Requests for which Redis failed or was skipped.
    pub store_errors: u64,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicStats {
    refused: AtomicU64,
    evicted: AtomicU64,
    #[cfg(feature = "redis")]
    store_errors: AtomicU64,
}

impl AtomicStats {
    pub(crate) fn record_refusal(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn record_eviction(&self, name: &str) {
        let before = self.evicted.fetch_add(1, Relaxed);
        // Logs the 1st, 10th, 100th time and so on: a flood of keys must not flood the log.
        if std::iter::successors(Some(1_u64), |power| power.checked_mul(10))
            .any(|power| power == before + 1)
        {
            catch_subscriber_panic(|| {
                tracing::warn!(
                    target: "peregrine", limit = name, times = before + 1,
                    "the table of a rate limit has no room for a new key, which inherits another key's debt: \
                     a flood of keys, or `keys_max` is too small"
                )
            });
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn record_store_error(&self) {
        self.store_errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> RateLimitStats {
        RateLimitStats {
            refused: self.refused.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            #[cfg(feature = "redis")]
            store_errors: self.store_errors.load(Relaxed),
            #[cfg(not(feature = "redis"))]
            store_errors: 0,
        }
    }
}
