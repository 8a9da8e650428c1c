//! What limits have done, counted.

use peregrine_web::panics::contained;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the limits of a [`RateLimit`](crate::RateLimit) have done since it was made, on all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimitCounts {
    /// Requests that were refused.
    pub refused: u64,
    /// Times that a new key found no free place in the table, and took over what another one owed. If these grow, a flood of keys is under
    /// way, or the table is too small: see [`RateLimit::keys_max`](crate::RateLimit::keys_max).
    pub crowded: u64,
    /// Requests for which Redis was not asked, or gave no answer.
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
        // The first, and each time that there are ten times as many: a flood of keys is no flood of lines.
        if std::iter::successors(Some(1_u64), |power| power.checked_mul(10))
            .any(|power| power == before + 1)
        {
            contained(|| {
                tracing::warn!(
                    target: "peregrine", limit = name, times = before + 1,
                    "the table of a rate limit has no place for a new key, which takes over what another one owes: \
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
