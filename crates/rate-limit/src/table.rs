//! The counters of a process: a fixed-size table that all workers share.
//!
//! An entry is a key's hash and its theoretical arrival time. Once that time has passed, the entry
//! carries no information and is free. A key can be in one set of [`WAYS`] entries only. Each set
//! has its own lock, so that workers rarely contend, and the hash is keyed with a secret, so that
//! an attacker cannot choose a set to fill.
//!
//! When all keys of a set are in debt, a new key replaces the one with the least debt **and
//! inherits that debt**. (Metwally, Agrawal, El Abbadi: *Efficient computation of frequent and
//! top-k elements in data streams*, 2005, do the same with counts. All debts shrink at the same
//! speed, so their argument holds.) A key that is not in the table therefore has at most the least
//! debt of its set: no key is allowed because it was evicted, the keys with the most debt stay
//! longest, and all that a flood of keys can do is to make new clients wait as if they had sent
//! requests before.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries per set. With its lock, a set takes slightly more than two cache lines.
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: u64,
    tat: u64,
}

type TableSet = [Entry; WAYS];

/// Keys and their debts.
#[derive(Debug)]
pub(crate) struct Table {
    hasher: RandomState,
    sets: Box<[Mutex<TableSet>]>,
}

/// The entry of a key, with its set locked.
#[derive(Debug)]
pub(crate) struct LockedEntry<'t> {
    set: MutexGuard<'t, TableSet>,
    way: usize,
    hash: u64,
    /// The key is new and no entry was free.
    pub(crate) evicted_other: bool,
}

impl Table {
    /// Creates a table for `keys` keys, rounded up to a multiple of [`WAYS`].
    pub(crate) fn new(keys: usize) -> Self {
        let sets = keys.div_ceil(WAYS).max(1);
        Self {
            hasher: RandomState::new(),
            sets: std::iter::repeat_with(Mutex::default).take(sets).collect(),
        }
    }

    /// Locks the entry of a key at `now`: its own or, if the key is new, the one with the least
    /// debt in its set.
    pub(crate) fn lock_entry(&self, key: &impl Hash, now: u64) -> LockedEntry<'_> {
        self.lock_entry_by_hash(self.hasher.hash_one(key), now)
    }

    fn lock_entry_by_hash(&self, hash: u64, now: u64) -> LockedEntry<'_> {
        // Scales the upper bits to the index of a set.
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        let set = self.sets[set as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let existing = set.iter().position(|entry| entry.hash == hash);
        let way = existing.unwrap_or_else(|| {
            let ways = set.iter().enumerate();
            ways.min_by_key(|(_, entry)| entry.tat).map_or(0, |(way, _)| way)
        });
        let evicted_other = existing.is_none() && set[way].tat > now;
        LockedEntry { set, way, hash, evicted_other }
    }
}

impl LockedEntry<'_> {
    /// The stored TAT.
    pub(crate) fn tat(&self) -> u64 {
        self.set[self.way].tat
    }

    /// Corrects the stored TAT without changing the entry's key.
    pub(crate) fn correct_tat(&mut self, tat: u64) {
        self.set[self.way].tat = tat;
    }

    /// Stores a TAT for this key.
    pub(crate) fn store(&mut self, tat: u64) {
        self.set[self.way] = Entry { hash: self.hash, tat };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gcra::Quota;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const RATE: Quota = Quota { emission_interval: 100, burst: 5 };

    /// Whether a request is allowed, and whether its key was new with no entry free.
    fn check(table: &Table, key: u64, now: u64) -> (bool, bool) {
        let mut entry = table.lock_entry(&key, now);
        let (decision, next) = RATE.check(entry.tat(), now);
        if decision.conforms() {
            entry.store(next);
        }
        (decision.conforms(), entry.evicted_other)
    }

    proptest! {
        #[test]
        fn the_table_allows_no_more_than_an_unbounded_map(
            requests in prop::collection::vec((0_u64..40, 0_u64..60), 1..600),
        ) {
            let table = Table::new(8);
            let (mut exact, mut now) = (HashMap::<u64, u64>::new(), 1);
            for (key, step) in requests {
                now += step;
                let (is_allowed, _) = check(&table, key, now);
                let stored_tat = exact.entry(key).or_default();
                let (decision, next) = RATE.check(*stored_tat, now);
                prop_assert!(decision.conforms() || !is_allowed, "the table forgot {key}");
                if is_allowed {
                    *stored_tat = next;
                }
            }
        }
    }

    #[test]
    fn keys_are_counted_separately_while_there_is_room() {
        let table = Table::new(64 * 1024);
        for round in 0..6 {
            for key in 0..2_000 {
                assert_eq!(check(&table, key, 1_000), (round < 5, false));
            }
        }
    }

    #[test]
    fn a_flood_of_keys_frees_no_key_with_more_debt_and_takes_no_memory() {
        let table = Table::new(1_000);
        let abusers = 1_000_000..1_000_010;
        for key in abusers.clone() {
            while check(&table, key, 1_000).0 {}
        }
        let capacity = table.sets.len() * WAYS;
        let evictions = (0..50_000).filter(|key| check(&table, *key, 1_000).1).count();
        assert!(evictions > 40_000, "the flood was larger than the table: {evictions}");
        for key in abusers {
            assert!(!check(&table, key, 1_000).0, "{key} is let through after a flood");
        }
        assert_eq!(table.sets.len() * WAYS, capacity);
        // After the time of a burst, no key has a debt.
        assert!((0..500).all(|key| check(&table, key, 1_000 + 501).0));
    }

    #[test]
    fn a_panic_while_an_entry_is_locked_does_not_block_its_set() {
        let table = Table::new(1);
        let panicked = std::thread::scope(|scope| {
            let panic_with_entry = || {
                let _entry = table.lock_entry(&1, 0);
                std::panic::resume_unwind(Box::new("on purpose"));
            };
            scope.spawn(panic_with_entry).join()
        });
        assert!(panicked.is_err());
        assert!(check(&table, 1, 1).0);
    }
}
