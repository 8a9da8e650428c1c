//! Values under integer keys, in preallocated memory.

use std::sync::atomic::{AtomicU64, Ordering};

/// The maximum number of slots that are tried for a key.
const PROBE_LEN_MAX: usize = 16;

/// Values under keys. One thread adds entries, and any thread reads all of them. The table never
/// grows: keys without a free slot share one entry.
#[derive(Debug)]
pub struct MetricMap<V> {
    slots: Box<[MapEntry<V>]>,
    shift: u32,
    overflow: V,
}

/// Aligned so that no two slots share a cache line, and thus no two workers write to the same one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct MapEntry<V> {
    /// Zero while the slot is free.
    key: AtomicU64,
    value: V,
}

impl<V: Default> MetricMap<V> {
    /// Creates a table for about `keys` keys, with at most three times the memory of that many
    /// entries.
    #[must_use]
    pub fn with_capacity(keys: usize) -> Self {
        let slots = (keys + keys / 2).next_power_of_two().max(2);
        Self {
            slots: (0..slots).map(|_| MapEntry::default()).collect(),
            shift: u64::BITS - slots.trailing_zeros(),
            overflow: V::default(),
        }
    }

    /// Returns the entry of `key`, which must not be zero, and creates it if necessary. Only for
    /// the thread that writes.
    #[inline]
    #[must_use]
    pub fn entry(&self, key: u64) -> &V {
        debug_assert!(key != 0, "zero is not a key");
        let first = self.home_slot(key);
        let slot = &self.slots[first];
        if slot.key.load(Ordering::Relaxed) == key { &slot.value } else { self.probe(key, first) }
    }

    #[cold]
    /// Finds or creates the entry of a key that is not in its first slot.
    fn probe(&self, key: u64, first: usize) -> &V {
        for probe in 0..PROBE_LEN_MAX.min(self.slots.len()) {
            let slot = &self.slots[(first + probe) & (self.slots.len() - 1)];
            match slot.key.load(Ordering::Relaxed) {
                found if found == key => return &slot.value,
                0 => {
                    slot.key.store(key, Ordering::Release);
                    return &slot.value;
                }
                _ => {}
            }
        }
        &self.overflow
    }

    /// Returns the slot that is tried first for a key.
    fn home_slot(&self, key: u64) -> usize {
        // Fibonacci hashing: the upper bits of the product depend on all bits of the key.
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Returns all entries with their keys, in any order. Any thread can call this.
    pub fn entries(&self) -> impl Iterator<Item = (u64, &V)> {
        let slots = self.slots.iter().map(|slot| (slot.key.load(Ordering::Acquire), &slot.value));
        slots.filter(|(key, _)| *key != 0)
    }

    /// The shared entry of all keys without a slot.
    #[must_use]
    pub fn overflow(&self) -> &V {
        &self.overflow
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::Counter;
    use std::collections::BTreeMap;

    #[test]
    fn keys_have_separate_entries_while_there_is_room() {
        let table = MetricMap::<Counter>::with_capacity(200);
        for round in 1..=3_u64 {
            for key in 1..=200 {
                table.entry(key << 32 | key).add(round);
            }
        }
        let found: BTreeMap<_, _> =
            table.entries().map(|(key, count)| (key >> 32, count.get())).collect();
        assert_eq!(found, (1..=200).map(|key| (key, 6)).collect());
        assert_eq!(table.overflow().get(), 0);
    }

    #[test]
    fn keys_without_a_slot_share_the_overflow_entry() {
        let table = MetricMap::<Counter>::with_capacity(8);
        (1..=1000).for_each(|key| table.entry(key).add(1));
        let counted: u64 = table.entries().map(|(_, count)| count.get()).sum();
        assert!(counted <= 16, "{counted}");
        assert_eq!(counted + table.overflow().get(), 1000);
        assert!(table.entries().all(|(_, count)| count.get() == 1));
    }
}
