//! Counts events of a few kinds that are not known in advance.

use crate::counter::Counter;
use std::sync::OnceLock;

/// A counter for each of up to `MAX` kinds; all further kinds share one counter. Only one thread
/// may write, as for a [`Counter`].
///
/// Meant for rare events: a kind is found by comparing it with the previous ones, one by one.
#[derive(Debug)]
pub struct CounterSet<K, const MAX: usize> {
    kinds: [OnceLock<K>; MAX],
    counts: [Counter; MAX],
    overflow: Counter,
}

impl<K, const MAX: usize> Default for CounterSet<K, MAX> {
    fn default() -> Self {
        Self {
            kinds: [const { OnceLock::new() }; MAX],
            counts: [const { Counter::new() }; MAX],
            overflow: Counter::new(),
        }
    }
}

impl<K: PartialEq, const MAX: usize> CounterSet<K, MAX> {
    /// Counts an event of this kind.
    pub fn increment(&self, kind: K) {
        for (counted_kind, count) in self.kinds.iter().zip(&self.counts) {
            let is_free = counted_kind.get().is_none();
            if is_free || counted_kind.get() == Some(&kind) {
                if is_free {
                    // This thread is the only writer.
                    let _ = counted_kind.set(kind);
                }
                return count.add(1);
            }
        }
        self.overflow.add(1);
    }

    /// Returns the kinds so far, each with its count. Any thread can call this.
    pub fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        let kinds = self.kinds.iter().map_while(OnceLock::get);
        kinds.zip(self.counts.iter().map(Counter::get))
    }

    /// The number of events of all further kinds.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.overflow.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_beyond_the_limit_share_one_count() {
        let counters = CounterSet::<_, 2>::default();
        for kind in ["a", "b", "a", "c", "d", "b", "a"] {
            counters.increment(kind);
        }
        assert_eq!(counters.iter().collect::<Vec<_>>(), [(&"a", 3), (&"b", 2)]);
        assert_eq!(counters.overflow(), 2);
    }
}
