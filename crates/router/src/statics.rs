//! The table of full static paths, asked before anything else.

use crate::word::{hash, short_word, word};

/// The longest static path in the table, in bytes; longer ones are found by the walk.
pub(crate) const STATIC_BYTES_MAX: usize = 255;
const WORDS: usize = 6;
/// The longest path whose words fill an entry.
const WORDS_BYTES_MAX: usize = WORDS * 8;

/// Full static paths and their leaves.
#[derive(Clone, Debug)]
pub(crate) struct Statics {
    /// For each length of a path, a filter over two of its bytes: most other paths end here.
    filters: Box<[u64; STATIC_BYTES_MAX + 1]>,
    /// Sixteen bits of each entry's hash, never zero; zero where there is no entry.
    tags: Vec<u16>,
    entries: Vec<Entry>,
    /// The paths that are too long for an entry's words.
    text: Vec<u8>,
    mask: usize,
}

#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The path eight bytes at a time, the last word overlapping the one before; or, of a path
    /// that is too long for that, the place in `text`.
    words: [u64; WORDS],
    length: u32,
    leaf: u32,
}

impl Statics {
    /// A table of these distinct paths, each with its leaf. Leaves out those too long for it.
    pub(crate) fn new(paths: &[(Vec<u8>, u32)]) -> Self {
        // At most a quarter full, so that the first look nearly always decides.
        let size = (paths.len() * 4).next_power_of_two();
        let mut statics = Self {
            filters: Box::new([0; STATIC_BYTES_MAX + 1]),
            tags: vec![0; size],
            entries: vec![Entry::default(); size],
            text: Vec::new(),
            mask: size - 1,
        };
        for (path, leaf) in paths.iter().filter(|(path, _)| path.len() <= STATIC_BYTES_MAX) {
            statics.insert(path, *leaf);
        }
        statics
    }

    fn insert(&mut self, path: &[u8], leaf: u32) {
        let mut entry = Entry { length: path.len() as u32, leaf, ..Entry::default() };
        if path.len() > WORDS_BYTES_MAX {
            entry.words[0] = self.text.len() as u64;
            self.text.extend_from_slice(path);
        } else if path.len() < 8 {
            entry.words[0] = short_word(path);
        } else {
            let last = (path.len() - 1) / 8;
            for (at, target) in entry.words[..last].iter_mut().enumerate() {
                *target = word(path, at * 8);
            }
            entry.words[last] = word(path, path.len() - 8);
        }
        self.filters[path.len()] |= 1 << filter_bit(path);
        let hash = hash(path, 0);
        let mut slot = hash as usize & self.mask;
        while self.tags[slot] != 0 {
            slot = (slot + 1) & self.mask;
        }
        self.tags[slot] = tag(hash);
        self.entries[slot] = entry;
    }

    /// The leaf of this path, which is not empty.
    #[inline(always)]
    pub(crate) fn find(&self, path: &[u8]) -> Option<u32> {
        let filter = self.filters.get(path.len())?;
        if filter >> filter_bit(path) & 1 == 0 {
            return None;
        }
        let hash = hash(path, 0);
        let tag = tag(hash);
        let mut slot = hash as usize & self.mask;
        loop {
            let found = self.tags[slot];
            if found == tag && self.holds(&self.entries[slot], path) {
                return Some(self.entries[slot].leaf);
            }
            if found == 0 {
                return None;
            }
            slot = (slot + 1) & self.mask;
        }
    }

    #[inline(always)]
    fn holds(&self, entry: &Entry, path: &[u8]) -> bool {
        let length = path.len();
        if entry.length as usize != length {
            return false;
        }
        if length < 8 {
            return entry.words[0] == short_word(path);
        }
        if length > WORDS_BYTES_MAX {
            let text = entry.words[0] as usize;
            return self.text[text..text + length] == *path;
        }
        let last = (length - 1) / 8;
        let mut differing = entry.words[last] ^ word(path, length - 8);
        for (at, expected) in entry.words[..last].iter().enumerate() {
            differing |= expected ^ word(path, at * 8);
        }
        differing == 0
    }
}

fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16 | 1
}

/// Mixes the last byte and a middle one: paths of one length mostly differ in one of the two.
#[inline(always)]
fn filter_bit(path: &[u8]) -> u32 {
    let middle = u32::from(path[path.len() / 2]);
    let last = u32::from(path[path.len() - 1]);
    (last + middle * 7) & 63
}

#[cfg(test)]
mod tests {
    use super::Statics;

    #[test]
    fn every_length_of_path_is_found_and_no_neighbour_of_it() {
        let path = |length: usize| -> Vec<u8> {
            let mut path: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
            path[0] = b'/';
            path
        };
        let paths: Vec<(Vec<u8>, u32)> = (1..256).map(|n| (path(n), n as u32)).collect();
        let statics = Statics::new(&paths);
        for (path, leaf) in &paths {
            assert_eq!(statics.find(path), Some(*leaf));
            for at in 0..path.len() {
                let mut other = path.clone();
                other[at] ^= 0x40;
                assert_eq!(statics.find(&other), None);
            }
        }
        assert_eq!(statics.find(&path(256)), None);
        assert_eq!(Statics::new(&[]).find(b"/"), None);
    }
}
