//! The table of complete static paths, searched before anything else.

use crate::hash::{MIX, fold_mul, hash, read_short, read_u64};
use crate::node::Leaf;

/// The longest static path in the table, in bytes; longer ones are found in the tree.
pub(crate) const STATIC_BYTES_MAX: usize = 255;
/// The longest path that the words of a key cover.
const KEY_BYTES_MAX: usize = 32;

/// Full static paths and their leaves.
#[derive(Clone, Debug)]
pub(crate) struct StaticPaths {
    /// For each length of a path, a filter over two of its bytes: it excludes most other paths.
    filters: Box<[u64; STATIC_BYTES_MAX + 1]>,
    entries: Vec<StaticEntry>,
    /// The paths that are too long for an entry's words.
    text: Vec<u8>,
    /// The number of entries, a power of two, minus one.
    mask: usize,
}

/// A path with its leaf, or a free slot.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct StaticEntry {
    words: [u64; 4],
    leaf: Leaf,
    /// The offset in `text` of a path that is longer than its words.
    text: u32,
    /// Zero in a free slot: no path is empty.
    length: u32,
}

/// The data by which a path is looked up and compared.
struct Key {
    /// Four words from the path, which may overlap. They cover a path of up to [`KEY_BYTES_MAX`]
    /// bytes.
    words: [u64; 4],
    hash: u64,
}

impl Key {
    /// Runs the same steps for all lengths from 8 to 32, so that no branch depends on the path.
    #[inline(always)]
    fn new(path: &[u8]) -> Self {
        let length = path.len();
        let words = if length < 8 {
            [read_short(path), 0, 0, 0]
        } else {
            let last = length - 8;
            let offsets = [0, last.min(8), last.saturating_sub(8), last];
            offsets.map(|at| read_u64(path, at))
        };
        let outer = fold_mul(words[0] ^ MIX[0] ^ length as u64, words[3] ^ MIX[1]);
        let mut key_hash = outer ^ fold_mul(words[1] ^ MIX[2], words[2] ^ MIX[3]);
        if length > KEY_BYTES_MAX {
            key_hash ^= hash(&path[16..length - 16], 0);
        }
        Self { words, hash: key_hash }
    }
}

impl StaticPaths {
    /// Creates a table of these distinct paths, each with its leaf. Omits paths that are too long.
    pub(crate) fn new(paths: &[(Vec<u8>, Leaf)]) -> Self {
        // At most a quarter full, so that the first probe nearly always decides.
        let size = (paths.len() * 4).next_power_of_two();
        let mut table = Self {
            filters: Box::new([0; STATIC_BYTES_MAX + 1]),
            entries: vec![StaticEntry::default(); size],
            text: Vec::new(),
            mask: size - 1,
        };
        for (path, leaf) in paths.iter().filter(|(path, _)| path.len() <= STATIC_BYTES_MAX) {
            table.insert(path, *leaf);
        }
        table
    }

    fn insert(&mut self, path: &[u8], leaf: Leaf) {
        let Key { words, hash } = Key::new(path);
        let mut slot = hash as usize & self.mask;
        while self.entries[slot].length != 0 {
            slot = (slot + 1) & self.mask;
        }
        let (text, length) = (self.text.len() as u32, path.len() as u32);
        if path.len() > KEY_BYTES_MAX {
            self.text.extend_from_slice(path);
        }
        self.entries[slot] = StaticEntry { words, leaf, text, length };
        self.filters[path.len()] |= 1 << filter_bit(path);
    }

    /// The leaf for this path.
    #[inline(always)]
    pub(crate) fn find(&self, path: &[u8]) -> Option<Leaf> {
        let filter = self.filters.get(path.len())?;
        if path.is_empty() {
            return None;
        }
        if filter >> filter_bit(path) & 1 == 0 {
            return None;
        }
        let Key { words, hash } = Key::new(path);
        let mut slot = hash as usize & self.mask;
        loop {
            let entry = self.entries.get(slot)?;
            let word_pairs = entry.words.iter().zip(words);
            let diff = word_pairs.fold(0, |diff, (left, right)| diff | (left ^ right));
            let is_same = diff == 0 && entry.length as usize == path.len();
            if is_same && (path.len() <= KEY_BYTES_MAX || self.matches(entry, path)) {
                return Some(entry.leaf);
            }
            if entry.length == 0 {
                return None;
            }
            slot = (slot + 1) & self.mask;
        }
    }

    /// Returns whether the text of an entry of the same length is the path.
    #[inline(never)]
    fn matches(&self, entry: &StaticEntry, path: &[u8]) -> bool {
        let text = entry.text as usize;
        self.text[text..text + path.len()] == *path
    }
}

/// Mixes the last byte and a middle one: paths of the same length usually differ in one of the two.
#[inline(always)]
fn filter_bit(path: &[u8]) -> u32 {
    let middle = u32::from(path[path.len() / 2]);
    let last = u32::from(path[path.len() - 1]);
    (last + middle * 7) & 63
}

#[cfg(test)]
mod tests {
    use super::StaticPaths;
    use crate::node::Leaf;

    #[test]
    fn finds_paths_of_every_length_and_no_similar_ones() {
        let path = |length: usize| -> Vec<u8> {
            let mut path: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
            path[0] = b'/';
            path
        };
        let leaf = |n: usize| Leaf { methods: 1, base: n as u32 };
        let paths: Vec<(Vec<u8>, Leaf)> = (1..256).map(|n| (path(n), leaf(n))).collect();
        let table = StaticPaths::new(&paths);
        for (path, leaf) in &paths {
            assert_eq!(table.find(path), Some(*leaf));
            for at in 0..path.len() {
                let mut other = path.clone();
                other[at] ^= 0x40;
                assert_eq!(table.find(&other), None);
            }
        }
        assert_eq!(table.find(&path(256)), None);
        assert_eq!(StaticPaths::new(&[]).find(b"/"), None);
    }
}
