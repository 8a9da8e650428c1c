//! A table with small stable keys, whose memory grows with its entries and never moves.

use std::fmt;
use std::ops::{Index, IndexMut};

/// The number of slots in the first block; each block has twice as many as the previous one.
const FIRST_BLOCK_LEN: usize = 64;

/// Marks the end of the list of free slots.
const NO_SLOT: usize = usize::MAX;

/// A table of values under small keys. The keys of removed entries are reused.
///
/// A growing `Vec` moves its contents and leaves its old memory behind; a `Vec` that is large from
/// the start wastes memory for most users. A slab grows by blocks that stay in place, and writes to
/// memory only when an entry needs it. An empty slab has no blocks.
pub struct Slab<T> {
    /// All blocks are full, except the last.
    blocks: Vec<Vec<SlabEntry<T>>>,
    /// The number of slots in use, including those of removed entries.
    slots: usize,
    /// The first free slot, or [`NO_SLOT`].
    free: usize,
    len: usize,
}

enum SlabEntry<T> {
    /// The next free slot, or [`NO_SLOT`].
    Vacant(usize),
    Occupied(T),
}

impl<T> Slab<T> {
    /// Creates an empty slab, without allocating.
    #[must_use]
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), slots: 0, free: NO_SLOT, len: 0 }
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the slab is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key that the next entry will get.
    #[must_use]
    pub fn vacant_key(&self) -> usize {
        if self.free == NO_SLOT { self.slots } else { self.free }
    }

    /// Adds `value`. Returns its key, which is smaller than the largest number of entries that the
    /// slab has held at any one time.
    pub fn insert(&mut self, value: T) -> usize {
        let key = self.vacant_key();
        self.len += 1;
        if let Some(entry) = self.entry_mut(key) {
            let SlabEntry::Vacant(next) = std::mem::replace(entry, SlabEntry::Occupied(value))
            else {
                unreachable!("the list of free slots has an occupied one")
            };
            self.free = next;
            return key;
        }
        let (block, _) = locate(key);
        if block == self.blocks.len() {
            self.blocks.push(Vec::with_capacity(FIRST_BLOCK_LEN << block));
        }
        self.blocks[block].push(SlabEntry::Occupied(value));
        self.slots += 1;
        key
    }

    /// Removes the entry with this key, if it exists.
    pub fn remove(&mut self, key: usize) -> Option<T> {
        let free = self.free;
        let entry = self.entry_mut(key)?;
        if matches!(entry, SlabEntry::Vacant(_)) {
            return None;
        }
        let SlabEntry::Occupied(value) = std::mem::replace(entry, SlabEntry::Vacant(free)) else {
            unreachable!("the entry was checked to be occupied")
        };
        self.free = key;
        self.len -= 1;
        Some(value)
    }

    /// The entry with this key.
    #[must_use]
    pub fn get(&self, key: usize) -> Option<&T> {
        let (block, index) = locate(key);
        match self.blocks.get(block)?.get(index)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// The entry with this key, mutably.
    #[must_use]
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        match self.entry_mut(key)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// All entries, in the order of their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flatten().filter_map(|entry| match entry {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        })
    }

    /// Removes all entries, in the order of their keys.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let entries = std::mem::take(self).blocks.into_iter().flatten();
        entries.filter_map(|entry| match entry {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        })
    }

    fn entry_mut(&mut self, key: usize) -> Option<&mut SlabEntry<T>> {
        let (block, index) = locate(key);
        self.blocks.get_mut(block)?.get_mut(index)
    }
}

/// The block of the slot with this key, and the position in that block.
#[inline]
fn locate(key: usize) -> (usize, usize) {
    // The first keys of the blocks are 64 less than powers of two: 0, 64, 192, 448.
    let shifted = key.saturating_add(FIRST_BLOCK_LEN);
    let block = (shifted.ilog2() - FIRST_BLOCK_LEN.ilog2()) as usize;
    (block, shifted - (FIRST_BLOCK_LEN << block))
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Index<usize> for Slab<T> {
    type Output = T;

    fn index(&self, key: usize) -> &T {
        self.get(key).expect("the slab has an entry with this key")
    }
}

impl<T> IndexMut<usize> for Slab<T> {
    fn index_mut(&mut self, key: usize) -> &mut T {
        self.get_mut(key).expect("the slab has an entry with this key")
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_slab_behaves_like_a_map_that_chooses_its_keys() {
        let (mut slab, mut map) = (Slab::new(), BTreeMap::new());
        let mut random = 1_u64;
        let mut len_max = 0;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (random >> 33) as usize % 400;
            // The slab first grows, then shrinks, and again.
            if (random >> 60) < if step / 1_000 % 2 == 0 { 12 } else { 4 } {
                let expected = slab.vacant_key();
                assert_eq!(slab.insert(step), expected);
                assert_eq!(map.insert(expected, step), None, "two entries have the same key");
            } else {
                assert_eq!(slab.remove(key), map.remove(&key));
            }
            len_max = len_max.max(map.len());
            assert_eq!((slab.len(), slab.is_empty()), (map.len(), map.is_empty()));
            assert_eq!(slab.get(key), map.get(&key));
            assert_eq!(slab.get_mut(key), map.get_mut(&key));
        }
        assert!(
            len_max > 3 * FIRST_BLOCK_LEN
                && *map.last_key_value().expect("some entries are left").0 < len_max
        );
        assert!(slab.iter_mut().eq(map.values_mut()));
        assert!(slab.drain().eq(map.into_values()));
        assert_eq!((slab.len(), slab.vacant_key()), (0, 0));
    }

    #[test]
    fn no_entry_moves_while_the_slab_grows() {
        let mut slab = Slab::new();
        let addresses: Vec<_> = (0..1_000)
            .map(|value| {
                let key = slab.insert(value);
                &raw const slab[key]
            })
            .collect();
        assert!((0..1_000).all(|key| std::ptr::eq(&raw const slab[key], addresses[key])));
    }

    #[test]
    fn memory_is_proportional_to_the_entries() {
        let mut slab = Slab::new();
        assert_eq!(slab.blocks.capacity(), 0);
        for used in 1..1_000 {
            slab.insert([0_u8; 100]);
            let capacity: usize = slab.blocks.iter().map(Vec::capacity).sum();
            let capacity_max = 2 * used + FIRST_BLOCK_LEN;
            assert!(
                (used..=capacity_max).contains(&capacity),
                "{capacity} slots for {used} entries"
            );
        }
    }
}
