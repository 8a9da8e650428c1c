//! Counts a few kinds that are not known in advance.

use crate::count::Count;
use std::sync::OnceLock;

/// A counter for each of up to `MAX` kinds; all further kinds share one counter. Only one thread
/// may write, as for a [`Count`].
///
/// Meant for rare events: a kind is found by comparing it with all previous ones.
#[derive(Debug)]
pub struct Few<K, const MAX: usize> {
    kinds: [OnceLock<K>; MAX],
    counts: [Count; MAX],
    others: Count,
}

impl<K, const MAX: usize> Default for Few<K, MAX> {
    fn default() -> Self {
        Self {
            kinds: [const { OnceLock::new() }; MAX],
            counts: [const { Count::new() }; MAX],
            others: Count::new(),
        }
    }
}

impl<K: PartialEq, const MAX: usize> Few<K, MAX> {
    /// Counts an event of this kind.
    pub fn note(&self, kind: K) {
        for (place, count) in self.kinds.iter().zip(&self.counts) {
            let is_free = place.get().is_none();
            if is_free || place.get() == Some(&kind) {
                if is_free {
                    // This thread is the only writer.
                    let _ = place.set(kind);
                }
                return count.add(1);
            }
        }
        self.others.add(1);
    }

    /// The kinds so far, each with its count. May be called by any thread.
    pub fn counts(&self) -> impl Iterator<Item = (&K, u64)> {
        let kinds = self.kinds.iter().map_while(OnceLock::get);
        kinds.zip(self.counts.iter().map(Count::get))
    }

    /// The number of events of all further kinds.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_count_and_those_beyond_have_one_together() {
        let few = Few::<_, 2>::default();
        for kind in ["a", "b", "a", "c", "d", "b", "a"] {
            few.note(kind);
        }
        assert_eq!(few.counts().collect::<Vec<_>>(), [(&"a", 3), (&"b", 2)]);
        assert_eq!(few.others(), 2);
    }
}
