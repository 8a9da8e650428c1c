//! Counts of a few kinds that are not known before they come.

use crate::count::Count;
use std::sync::OnceLock;

/// A count for each of up to `MAX` kinds; what more kinds there are is counted together. One thread
/// writes, as to a [`Count`].
///
/// For what happens seldom: a kind is found by comparing it with all that came before.
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
    /// Counts one of this kind.
    pub fn note(&self, kind: K) {
        for (place, count) in self.kinds.iter().zip(&self.counts) {
            let is_free = place.get().is_none();
            if is_free || place.get() == Some(&kind) {
                if is_free {
                    // There is no other writer.
                    let _ = place.set(kind);
                }
                return count.add(1);
            }
        }
        self.others.add(1);
    }

    /// The kinds that came, each with its count, for any thread.
    pub fn counts(&self) -> impl Iterator<Item = (&K, u64)> {
        let kinds = self.kinds.iter().map_while(OnceLock::get);
        kinds.zip(self.counts.iter().map(Count::get))
    }

    /// How many were of kinds for which there was no place.
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
