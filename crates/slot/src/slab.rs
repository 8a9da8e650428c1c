//! A table with small stable numbers, whose memory grows with its entries and never moves.

use std::fmt;
use std::ops::{Index, IndexMut};

/// The number of slots in the first block; each block has twice as many as the previous one.
const FIRST_BLOCK_LEN: usize = 64;

/// The end of the list of free slots.
const NO_ENTRY: usize = usize::MAX;

/// Values under small numbers, which are reused.
///
/// A growing `Vec` moves its contents and leaves its old memory behind; a `Vec` that is large from
/// the start wastes memory for most users. A table grows by blocks that stay in place, and writes
/// to memory only when an entry needs it. An empty table has no blocks. The slots of removed
/// entries are reused.
pub struct Slab<T> {
    /// All blocks are full, except the last.
    blocks: Vec<Vec<SlabEntry<T>>>,
    entries: usize,
    /// The first free slot.
    free: usize,
    len: usize,
}

enum SlabEntry<T> {
    /// The next free slot.
    Vacant(usize),
    Occupied(T),
}

impl<T> Slab<T> {
    /// Creates an empty table, without allocating.
    #[must_use]
    pub const fn new() -> Self {
        Self { blocks: Vec::new(), entries: 0, free: NO_ENTRY, len: 0 }
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number that the next entry will get.
    #[must_use]
    pub fn vacant_key(&self) -> usize {
        if self.free == NO_ENTRY { self.entries } else { self.free }
    }

    /// Adds `value`. Returns its number, which is smaller than the largest number of entries held
    /// at any one time.
    pub fn insert(&mut self, value: T) -> usize {
        let number = self.vacant_key();
        self.len += 1;
        if let Some(place) = self.entry_mut(number) {
            let SlabEntry::Vacant(next) = std::mem::replace(place, SlabEntry::Occupied(value))
            else {
                unreachable!("the list of free places has an occupied one")
            };
            self.free = next;
            return number;
        }
        let (block, _) = locate(number);
        if block == self.blocks.len() {
            self.blocks.push(Vec::with_capacity(FIRST_BLOCK_LEN << block));
        }
        self.blocks[block].push(SlabEntry::Occupied(value));
        self.entries += 1;
        number
    }

    /// Removes the entry `number`, if it exists.
    pub fn remove(&mut self, number: usize) -> Option<T> {
        let free = self.free;
        let place = self.entry_mut(number)?;
        if matches!(place, SlabEntry::Vacant(_)) {
            return None;
        }
        let SlabEntry::Occupied(value) = std::mem::replace(place, SlabEntry::Vacant(free)) else {
            unreachable!("the place was checked to be occupied")
        };
        self.free = number;
        self.len -= 1;
        Some(value)
    }

    /// The entry `number`.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&T> {
        let (block, index) = locate(number);
        match self.blocks.get(block)?.get(index)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// The entry `number`, mutably.
    #[must_use]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        match self.entry_mut(number)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// All entries, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flatten().filter_map(|place| match place {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        })
    }

    /// Removes all entries, in the order of their numbers.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        let places = std::mem::take(self).blocks.into_iter().flatten();
        places.filter_map(|place| match place {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        })
    }

    fn entry_mut(&mut self, number: usize) -> Option<&mut SlabEntry<T>> {
        let (block, index) = locate(number);
        self.blocks.get_mut(block)?.get_mut(index)
    }
}

/// The block of the slot `number`, and the position in that block.
#[inline]
fn locate(number: usize) -> (usize, usize) {
    // The first numbers of the blocks are 64 less than powers of two: 0, 64, 192, 448.
    let shifted = number.saturating_add(FIRST_BLOCK_LEN);
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

    fn index(&self, number: usize) -> &T {
        self.get(number).expect("no entry with this number")
    }
}

impl<T> IndexMut<usize> for Slab<T> {
    fn index_mut(&mut self, number: usize) -> &mut T {
        self.get_mut(number).expect("no entry with this number")
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
    fn a_table_does_what_a_map_does_that_picks_the_numbers() {
        let (mut table, mut map) = (Slab::new(), BTreeMap::new());
        let mut random = 1_u64;
        let mut most = 0;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (random >> 33) as usize % 400;
            // The table first grows, then shrinks, and again.
            if (random >> 60) < if step / 1_000 % 2 == 0 { 12 } else { 4 } {
                let expected = table.vacant_key();
                assert_eq!(table.insert(step), expected);
                assert_eq!(map.insert(expected, step), None, "a number was given to two entries");
            } else {
                assert_eq!(table.remove(number), map.remove(&number));
            }
            most = most.max(map.len());
            assert_eq!((table.len(), table.is_empty()), (map.len(), map.is_empty()));
            assert_eq!(table.get(number), map.get(&number));
            assert_eq!(table.get_mut(number), map.get_mut(&number));
        }
        assert!(
            most > 3 * FIRST_BLOCK_LEN
                && *map.last_key_value().expect("some entries are left").0 < most
        );
        assert!(table.iter_mut().eq(map.values_mut()));
        assert!(table.drain().eq(map.into_values()));
        assert_eq!((table.len(), table.vacant_key()), (0, 0));
    }

    #[test]
    fn no_entry_moves_while_the_table_grows() {
        let mut table = Slab::new();
        let addresses: Vec<_> = (0..1_000)
            .map(|value| {
                let number = table.insert(value);
                &raw const table[number]
            })
            .collect();
        assert!((0..1_000).all(|number| std::ptr::eq(&raw const table[number], addresses[number])));
    }

    #[test]
    fn memory_is_in_proportion_to_the_entries() {
        let mut table = Slab::new();
        assert_eq!(table.blocks.capacity(), 0);
        for used in 1..1_000 {
            table.insert([0_u8; 100]);
            let places: usize = table.blocks.iter().map(Vec::capacity).sum();
            let most = 2 * used + FIRST_BLOCK_LEN;
            assert!((used..=most).contains(&places), "{places} places for {used} entries");
        }
    }
}
