//! The dynamic table. RFC 7541 §2.3.2 and §4.

use super::decode::FieldInfo;
use std::collections::VecDeque;

/// The overhead of an entry in addition to its bytes. RFC 7541 §4.1.
pub(super) const ENTRY_OVERHEAD: u32 = 32;

/// The largest table, because entries have 16-bit lengths.
pub(super) const SIZE_CEILING: u32 = u16::MAX as u32;

/// Entries in the order of insertion, their bytes stored consecutively in one buffer. Evicted
/// entries leave a gap at the start of the buffer; when the gap is as long as the rest, the rest is
/// moved to the start of the buffer. So each inserted byte is moved at most once on average, and
/// the bytes of an entry stay contiguous.
///
/// `size <= size_max`, and `size` is the sum of all entries' bytes and overheads.
#[derive(Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    /// The oldest entry is first.
    entries: VecDeque<Entry>,
    /// The position of the buffer's first byte, counted from the first byte ever inserted.
    base: u32,
    size: u32,
    size_max: u32,
    /// The number of entries ever inserted, modulo 2^32.
    inserted: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The position of the entry's first byte, counted from the first byte ever inserted, modulo
    /// 2^32.
    start: u32,
    name_bytes: u16,
    value_bytes: u16,
    info: FieldInfo,
}

/// The name of a new entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// The name of the entry that is this many entries older than the newest.
    Entry(usize),
}

impl Table {
    pub(super) const fn new(size_max: u32) -> Self {
        Self {
            bytes: Vec::new(),
            entries: VecDeque::new(),
            base: 0,
            size: 0,
            size_max,
            inserted: 0,
        }
    }

    pub(super) const fn size(&self) -> u32 {
        self.size
    }

    pub(super) const fn size_max(&self) -> u32 {
        self.size_max
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of entries ever inserted, modulo 2^32.
    #[inline]
    pub(super) const fn inserted(&self) -> u32 {
        self.inserted
    }

    /// The memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Name, value and info of the entry that is `age` entries older than the newest.
    #[inline]
    pub(super) fn get(&self, age: usize) -> Option<(&[u8], &[u8], FieldInfo)> {
        let at = self.entries.len().checked_sub(age + 1)?;
        let entry = self.entries.get(at)?;
        let start = entry.start.wrapping_sub(self.base) as usize;
        let (name, value) = (usize::from(entry.name_bytes), usize::from(entry.value_bytes));
        let bytes = &self.bytes[start..start + name + value];
        let (name, value) = bytes.split_at(name);
        Some((name, value, entry.info))
    }

    /// Inserts an entry, and evicts the oldest ones to make room.
    // RFC 7541 §4.4: a name that refers to an entry which is evicted by the insertion must stay; an
    // entry larger than the table empties it and is not inserted, which is not an error.
    pub(super) fn insert(&mut self, name: Name<'_>, value: &[u8], info: FieldInfo) {
        let name_bytes = match name {
            Name::Bytes(name) => name.len(),
            Name::Entry(age) => self.get(age).map_or(0, |(name, ..)| name.len()),
        };
        let bytes = name_bytes.saturating_add(value.len());
        let size = u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(ENTRY_OVERHEAD);
        if size > self.size_max {
            return self.clear();
        }
        self.close_gap();
        let start = self.base.wrapping_add(position(self.bytes.len()));
        match name {
            Name::Bytes(name) => self.bytes.extend_from_slice(name),
            Name::Entry(age) => {
                let at = self.entries[self.entries.len() - 1 - age].start.wrapping_sub(self.base);
                let at = at as usize;
                self.bytes.extend_from_within(at..at + name_bytes);
            }
        }
        self.bytes.extend_from_slice(value);
        self.entries.push_back(Entry {
            start,
            name_bytes: length(name_bytes),
            value_bytes: length(value.len()),
            info,
        });
        self.inserted = self.inserted.wrapping_add(1);
        self.size += size;
        self.evict();
    }

    /// Changes the size and evicts the entries that no longer fit.
    // RFC 7541 §4.3: whenever the maximum size is reduced, entries are evicted from the end.
    pub(super) fn resize(&mut self, size_max: u32) {
        self.size_max = size_max.min(SIZE_CEILING);
        self.evict();
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.size = 0;
    }

    /// Frees memory that no entry needs.
    pub(super) fn shrink(&mut self) {
        let gap = self.gap();
        self.bytes.drain(..gap);
        self.base = self.base.wrapping_add(position(gap));
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    fn evict(&mut self) {
        while self.size > self.size_max {
            let entry = self.entries.pop_front().expect("a non-zero size has entries");
            self.size -= u32::from(entry.name_bytes) + u32::from(entry.value_bytes);
            self.size -= ENTRY_OVERHEAD;
        }
    }

    /// The number of unused bytes at the buffer's start.
    fn gap(&self) -> usize {
        let front = self.entries.front();
        front.map_or(self.bytes.len(), |entry| entry.start.wrapping_sub(self.base) as usize)
    }

    fn close_gap(&mut self) {
        let gap = self.gap();
        if gap > 0 && gap >= self.bytes.len() - gap {
            self.bytes.drain(..gap);
            self.base = self.base.wrapping_add(position(gap));
        }
    }

    /// Checks all invariants.
    pub(super) fn assert_invariants(&self) {
        let sizes = self.entries.iter().map(|entry| {
            u32::from(entry.name_bytes) + u32::from(entry.value_bytes) + ENTRY_OVERHEAD
        });
        assert_eq!(sizes.sum::<u32>(), self.size, "`size` is the sum of the sizes of all entries");
        assert!(self.size <= self.size_max, "the table exceeds its maximum size");
        assert!(self.bytes.len() <= 2 * SIZE_CEILING as usize, "gaps are closed");
        assert!(self.gap() <= self.bytes.len(), "entries lie in the buffer");
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the buffer is at most 128 KiB long")]
fn position(offset: usize) -> u32 {
    offset as u32
}

#[expect(clippy::cast_possible_truncation, reason = "a table is at most 65,535 bytes")]
fn length(bytes: usize) -> u16 {
    bytes as u16
}

#[cfg(test)]
mod tests {
    use super::{Name, SIZE_CEILING, Table};
    use crate::h2::hpack::FieldInfo;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Vec<u8>, Vec<u8>),
        InsertWithNameOf(usize, Vec<u8>),
        Resize(u32),
        Shrink,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let text = || proptest::collection::vec(any::<u8>(), 0..60);
        let step = prop_oneof![
            6 => (text(), text()).prop_map(|(name, value)| Step::Insert(name, value)),
            3 => (0..6_usize, text()).prop_map(|(age, value)| Step::InsertWithNameOf(age, value)),
            1 => (0..300_u32).prop_map(Step::Resize),
            1 => Just(Step::Shrink),
        ];
        proptest::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn table_behaves_like_a_plain_list(steps in steps()) {
            let (mut table, mut expected, mut size_max) = (Table::new(300), VecDeque::new(), 300);
            for step in steps {
                match step {
                    Step::Insert(name, value) => {
                        let info = FieldInfo::new(&name, &value);
                        table.insert(Name::Bytes(&name), &value, info);
                        expected.push_front((name, value));
                    }
                    Step::InsertWithNameOf(age, value) => {
                        let Some((name, _)) = expected.get(age).cloned() else { continue };
                        let info = FieldInfo::new(&name, &value);
                        table.insert(Name::Entry(age), &value, info);
                        expected.push_front((name, value));
                    }
                    Step::Resize(size) => {
                        table.resize(size);
                        size_max = size;
                    }
                    Step::Shrink => table.shrink(),
                }
                let sum = |expected: &VecDeque<(Vec<u8>, Vec<u8>)>| {
                    let sizes = expected.iter().map(|(name, value)| name.len() + value.len() + 32);
                    sizes.sum::<usize>()
                };
                while sum(&expected) > size_max as usize {
                    expected.pop_back();
                }
                table.assert_invariants();
                prop_assert_eq!(table.size() as usize, sum(&expected));
                prop_assert_eq!(table.len(), expected.len());
                for (age, (name, value)) in expected.iter().enumerate() {
                    let (actual_name, actual_value, info) = table.get(age).unwrap();
                    prop_assert_eq!(actual_name, name.as_slice());
                    prop_assert_eq!(actual_value, value.as_slice());
                    prop_assert_eq!(info, FieldInfo::new(name, value));
                }
                prop_assert!(table.get(expected.len()).is_none());
            }
        }
    }

    #[test]
    fn memory_stays_bounded_after_many_insertions() {
        let mut table = Table::new(4096);
        let value = [b'v'; 100];
        for _ in 0..1_000_000 {
            table.insert(Name::Bytes(b"name"), &value, FieldInfo::new(b"name", &value));
        }
        table.assert_invariants();
        assert!(table.memory_bytes() <= 16 * 1024, "{}", table.memory_bytes());
        table.resize(SIZE_CEILING + 1);
        assert_eq!(table.size_max(), SIZE_CEILING);
        table.clear();
        table.shrink();
        assert_eq!(table.memory_bytes(), 0);
    }
}
