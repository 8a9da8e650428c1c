//! Where the workers of a process count: a table of fixed size.
//!
//! An entry is a key's hash and its theoretical arrival time. Once that has passed, the entry says no more than none would, so its place is
//! free. A key may be in one set of [`WAYS`] places only, each set behind a lock of its own, so that workers meet seldom and an attacker
//! who fills one does not fill the others: the hash has a secret of this table's.
//!
//! When a set is full of keys that owe something, a newcomer takes the place of the one that owes least, **and its debt**. (Metwally,
//! Agrawal, El Abbadi: *Efficient computation of frequent and top-k elements in data streams*, 2005, do the same with counts. All debts
//! shrink at one speed, so the argument holds for them.) So a key that is not in the table owes at most what the least of its set
//! owes: nobody is ever let in for having been forgotten, those who owe most stay longest, and what a flood of keys can do is that newcomers
//! wait as if they had asked before.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Places in a set: two lines of a processor's cache, and a lock.
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: u64,
    tat: u64,
}

type Set = [Entry; WAYS];

/// Keys and what they owe.
#[derive(Debug)]
pub(crate) struct Table {
    hasher: RandomState,
    sets: Box<[Mutex<Set>]>,
}

/// The place of a key, locked.
#[derive(Debug)]
pub(crate) struct Place<'t> {
    set: MutexGuard<'t, Set>,
    way: usize,
    hash: u64,
    /// The key is new, and nobody's place was free.
    pub(crate) is_crowded: bool,
}

impl Table {
    /// A table with places for so many keys, and up to seven more.
    pub(crate) fn new(keys: usize) -> Self {
        let sets = keys.div_ceil(WAYS).max(1);
        Self {
            hasher: RandomState::new(),
            sets: std::iter::repeat_with(Mutex::default).take(sets).collect(),
        }
    }

    /// The place of a key at `now`.
    pub(crate) fn place(&self, key: &impl Hash, now: u64) -> Place<'_> {
        self.place_of(self.hasher.hash_one(key), now)
    }

    fn place_of(&self, hash: u64, now: u64) -> Place<'_> {
        // The upper bits, scaled, choose the set.
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        let set = self.sets[set as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let known = set.iter().position(|entry| entry.hash == hash);
        let way = known.unwrap_or_else(|| {
            let ways = set.iter().enumerate();
            ways.min_by_key(|(_, entry)| entry.tat).map_or(0, |(way, _)| way)
        });
        let is_crowded = known.is_none() && set[way].tat > now;
        Place { set, way, hash, is_crowded }
    }
}

impl Place<'_> {
    /// What is kept for the key.
    pub(crate) fn kept(&self) -> u64 {
        self.set[self.way].tat
    }

    /// Corrects what is kept here, whosever it is.
    pub(crate) fn settle(&mut self, tat: u64) {
        self.set[self.way].tat = tat;
    }

    /// Keeps something else for the key.
    pub(crate) fn keep(&mut self, tat: u64) {
        self.set[self.way] = Entry { hash: self.hash, tat };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gcra::Rate;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const RATE: Rate = Rate { interval: 100, burst: 5 };

    /// Whether a request is let in, and whether its key was new where nothing was free.
    fn ask(table: &Table, key: u64, now: u64) -> (bool, bool) {
        let mut place = table.place(&key, now);
        let (decision, next) = RATE.judge(place.kept(), now);
        if decision.conforms() {
            place.keep(next);
        }
        (decision.conforms(), place.is_crowded)
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_by_counts_without_a_bound(
            asks in prop::collection::vec((0_u64..40, 0_u64..60), 1..600),
        ) {
            let table = Table::new(8);
            let (mut exact, mut now) = (HashMap::<u64, u64>::new(), 1);
            for (key, step) in asks {
                now += step;
                let (is_let_in, _) = ask(&table, key, now);
                let kept = exact.entry(key).or_default();
                let (decision, next) = RATE.judge(*kept, now);
                prop_assert!(decision.conforms() || !is_let_in, "{key} was forgotten");
                if is_let_in {
                    *kept = next;
                }
            }
        }
    }

    #[test]
    fn while_there_is_room_every_key_counts_for_itself() {
        let table = Table::new(64 * 1024);
        for round in 0..6 {
            for key in 0..2_000 {
                assert_eq!(ask(&table, key, 1_000), (round < 5, false));
            }
        }
    }

    #[test]
    fn a_flood_of_keys_frees_nobody_who_owes_more_and_takes_no_memory() {
        let table = Table::new(1_000);
        let abusers = 1_000_000..1_000_010;
        for key in abusers.clone() {
            while ask(&table, key, 1_000).0 {}
        }
        let places = table.sets.len() * WAYS;
        let crowded = (0..50_000).filter(|key| ask(&table, *key, 1_000).1).count();
        assert!(crowded > 40_000, "the flood was larger than the table: {crowded}");
        for key in abusers {
            assert!(!ask(&table, key, 1_000).0, "{key} is let in after a flood");
        }
        assert_eq!(table.sets.len() * WAYS, places);
        // When a burst's time is over, everybody is as new.
        assert!((0..500).all(|key| ask(&table, key, 1_000 + 501).0));
    }

    #[test]
    fn a_thread_that_panicked_keeps_nobody_out() {
        let table = Table::new(1);
        let panicked = std::thread::scope(|scope| {
            let holding = || {
                let _place = table.place(&1, 0);
                std::panic::resume_unwind(Box::new("on purpose"));
            };
            scope.spawn(holding).join()
        });
        assert!(panicked.is_err());
        assert!(ask(&table, 1, 1).0);
    }
}
