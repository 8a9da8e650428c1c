//! Statistics of limits.

use peregrine_web::panics::contained;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Statistics of a [`RateLimit`](crate::RateLimit) since it was created, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimitCounts {
    /// Rejected requests.
    pub refused: u64,
    /// How often a new key found no free entry in the table and inherited another key's debt. If
    /// this grows, there is a flood of keys, or the table is too small: see
    /// [`RateLimit::keys_max`](crate::RateLimit::keys_max).
    pub crowded: u64,
    /// Requests for which Redis failed or was skipped.
    pub store_failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    refused: AtomicU64,
    crowded: AtomicU64,
    #[cfg(feature = "redis")]
    store_failed: AtomicU64,
}

impl Counts {
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn crowd(&self, name: &str) {
        let before = self.crowded.fetch_add(1, Relaxed);
        // Logs the 1st, 10th, 100th time and so on: a flood of keys must not flood the log.
        if std::iter::successors(Some(1_u64), |power| power.checked_mul(10))
            .any(|power| power == before + 1)
        {
            contained(|| {
                tracing::warn!(
                    target: "peregrine", limit = name, times = before + 1,
                    "the table of a rate limit has no room for a new key, which inherits another key's debt: \
                     a flood of keys, or `keys_max` is too small"
                )
            });
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn fail(&self) {
        self.store_failed.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self) -> RateLimitCounts {
        RateLimitCounts {
            refused: self.refused.load(Relaxed),
            crowded: self.crowded.load(Relaxed),
            #[cfg(feature = "redis")]
            store_failed: self.store_failed.load(Relaxed),
            #[cfg(not(feature = "redis"))]
            store_failed: 0,
        }
    }
}
