//! The flat tree of segments: nodes, their tables of children, and leaves.
//!
//! Everything that a lookup reads is an index into one of a few arrays. Because a node is reached
//! by one path only, where to go on after a dead end is known at build: each node names the
//! nearest ancestor with an alternative left, so a walk needs no stack.

use crate::word::{hash, leading_word, word};

/// No such node, leaf or list.
pub(crate) const NONE: u32 = u32::MAX;

/// One place in the tree: the segments up to here have matched.
///
/// The alternatives of a node are numbered as *stages*, in order of precedence: its affixed
/// parameters from 0, then its parameter at `affix_count`, then its catch-all.
#[repr(align(64))]
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Bit `n`: a child's fixed text has `n` bytes; bit 63: 63 or more. Zero without children.
    pub(crate) lengths: u64,
    pub(crate) table: Table,
    /// The child for an empty segment.
    pub(crate) empty: u32,
    pub(crate) affix_start: u32,
    pub(crate) affix_count: u16,
    /// How many segments lead here.
    pub(crate) depth: u16,
    /// The child for any segment that is not empty.
    pub(crate) parameter: u32,
    /// The leaf for whatever is left of the path, if something is.
    pub(crate) rest: u32,
    /// The leaf for a path that ends here.
    pub(crate) leaf: u32,
    /// The ancestor to go on with when nothing here matches.
    pub(crate) fallback: u32,
    /// The alternative of the ancestor to go on with.
    pub(crate) fallback_stage: u16,
}

/// Where a node's children with fixed text are in [`Tree::children`], without collisions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Table {
    /// Spreads the keys of a small table; a large one has a multiplier for each bucket.
    multiplier: u64,
    start: u32,
    /// Where the multipliers of the buckets start, or [`NONE`] for a small table.
    bucket_start: u32,
    slot_shift: u8,
    bucket_shift: u8,
}

/// A child with fixed text, or a free place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    /// The first eight bytes, padded with zeros.
    first: u64,
    /// The last eight bytes if there are more than eight.
    last: u64,
    length: u32,
    /// Where the text is in [`Tree::text`], which only decides beyond sixteen bytes.
    text: u32,
    node: u32,
}

const FREE: Child = Child { first: 0, last: 0, length: NONE, text: 0, node: NONE };

/// A segment with fixed text around its parameter.
#[derive(Clone, Debug)]
pub(crate) struct Affix {
    pub(crate) prefix: Box<[u8]>,
    pub(crate) suffix: Box<[u8]>,
    pub(crate) node: u32,
}

/// The routes of one shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// All methods of all routes.
    pub(crate) methods: u32,
    pub(crate) first: Choice,
    pub(crate) more_start: u32,
    pub(crate) more_end: u32,
}

/// One route of a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) methods: u32,
    /// Its place in the router's list of routes.
    pub(crate) route: u32,
    /// The caller's id.
    pub(crate) id: u32,
}

/// All nodes of a router.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) affixes: Vec<Affix>,
    pub(crate) leaves: Vec<Leaf>,
    pub(crate) choices: Vec<Choice>,
    children: Vec<Child>,
    multipliers: Vec<u64>,
    text: Vec<u8>,
    seed: u64,
}

/// Two texts of one table have the same key under this seed, so no table can tell them apart.
pub(crate) struct SameKey;

impl Tree {
    /// An empty tree whose keys depend on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The route of a leaf for one of the wanted methods. Adds the leaf's methods to `allow` if
    /// there is none.
    #[inline(always)]
    pub(crate) fn choose(&self, leaf: u32, wanted: u32, allow: &mut u32) -> Option<&Choice> {
        let leaf = self.leaves.get(leaf as usize)?;
        if leaf.first.methods & wanted != 0 {
            return Some(&leaf.first);
        }
        self.choose_later(leaf, wanted, allow)
    }

    #[inline(never)]
    fn choose_later(&self, leaf: &Leaf, wanted: u32, allow: &mut u32) -> Option<&Choice> {
        if leaf.methods & wanted == 0 {
            *allow |= leaf.methods;
            return None;
        }
        let more = &self.choices[leaf.more_start as usize..leaf.more_end as usize];
        more.iter().find(|choice| choice.methods & wanted != 0)
    }

    /// The child of `table` whose fixed text is in `word`, of one to eight bytes.
    #[inline(always)]
    pub(crate) fn short_child(&self, table: &Table, word: u64, length: usize) -> u32 {
        let child = self.place_of(table, word);
        let same = child.first == word && child.length as usize == length;
        if same { child.node } else { NONE }
    }

    /// The child of `table` whose fixed text is `piece`, of more than eight bytes.
    #[inline(never)]
    pub(crate) fn long_child(&self, table: &Table, piece: &[u8]) -> u32 {
        let child = self.place_of(table, hash(piece, self.seed));
        let same = child.length as usize == piece.len()
            && child.first == word(piece, 0)
            && self.same_tail(child, piece);
        if same { child.node } else { NONE }
    }

    /// The only place in the table where a text with this key can be.
    #[inline(always)]
    fn place_of(&self, table: &Table, key: u64) -> &Child {
        let multiplier = if table.bucket_start == NONE {
            table.multiplier
        } else {
            let bucket = place(key, BUCKETS, table.bucket_shift);
            self.multipliers[table.bucket_start as usize + bucket]
        };
        &self.children[table.start as usize + place(key, multiplier, table.slot_shift)]
    }

    /// Whether a piece of more than eight bytes, whose first eight and length agree with the
    /// child's, agrees with all of it.
    #[inline(always)]
    fn same_tail(&self, child: &Child, piece: &[u8]) -> bool {
        let length = piece.len();
        let text = child.text as usize;
        child.last == word(piece, length - 8)
            && (length <= 16 || self.text[text..text + length] == *piece)
    }

    /// Adds a table of children with distinct fixed texts, none of them empty.
    pub(crate) fn add_table(&mut self, children: &[(&[u8], u32)]) -> Result<Table, SameKey> {
        let entries: Vec<Entry> = children.iter().map(|child| self.entry(*child)).collect();
        let mut keys: Vec<u64> = entries.iter().map(|entry| entry.key).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(SameKey);
        }
        let start = self.children.len() as u32;
        if entries.is_empty() {
            return Ok(Table::default());
        }
        if entries.len() <= SMALL_TABLE_MAX {
            let (multiplier, bits) = spread(&keys);
            self.children.resize(start as usize + (1 << bits), FREE);
            let slot_shift = 63 - bits;
            for entry in entries {
                let slot = start as usize + place(entry.key, multiplier, slot_shift);
                self.children[slot] = entry.child;
            }
            return Ok(Table {
                multiplier,
                start,
                bucket_start: NONE,
                slot_shift,
                bucket_shift: 0,
            });
        }
        Ok(self.add_large_table(entries, start))
    }

    fn entry(&mut self, (text, node): (&[u8], u32)) -> Entry {
        let length = text.len();
        let first = leading_word(text, 0, length);
        let key = if length <= 8 { first } else { hash(text, self.seed) };
        let last = if length <= 8 { 0 } else { word(text, length - 8) };
        let at = self.text.len() as u32;
        self.text.extend_from_slice(text);
        Entry { key, child: Child { first, last, length: length as u32, text: at, node } }
    }

    /// A large table divides its keys into buckets and looks for a multiplier for each that
    /// leads all its keys to free places, fullest bucket first.
    fn add_large_table(&mut self, entries: Vec<Entry>, start: u32) -> Table {
        let slot_bits = (entries.len() * 2).next_power_of_two().trailing_zeros() as u8;
        let bucket_bits = (entries.len() / 4).next_power_of_two().trailing_zeros() as u8;
        let (slot_shift, bucket_shift) = (63 - slot_bits, 63 - bucket_bits);
        let mut buckets: Vec<(usize, Vec<Entry>)> =
            (0..1 << bucket_bits).map(|bucket| (bucket, Vec::new())).collect();
        for entry in entries {
            buckets[place(entry.key, BUCKETS, bucket_shift)].1.push(entry);
        }
        buckets.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.len()));
        let bucket_start = self.multipliers.len() as u32;
        self.multipliers.resize(bucket_start as usize + (1 << bucket_bits), 1);
        self.children.resize(start as usize + (1 << slot_bits), FREE);
        for (bucket, entries) in buckets {
            let free = |slot: &usize| self.children[start as usize + slot].length == NONE;
            let (multiplier, slots) = (0..)
                .map(|attempt| {
                    let multiplier = multiplier(attempt);
                    let slots: Vec<usize> = entries
                        .iter()
                        .map(|entry| place(entry.key, multiplier, slot_shift))
                        .collect();
                    (multiplier, slots)
                })
                .find(|(_, slots)| slots.iter().all(free) && all_differ(slots))
                .expect("half of the places are free and the keys differ");
            self.multipliers[bucket_start as usize + bucket] = multiplier;
            for (slot, entry) in slots.into_iter().zip(entries) {
                self.children[start as usize + slot] = entry.child;
            }
        }
        Table { multiplier: 0, start, bucket_start, slot_shift, bucket_shift }
    }
}

/// A child on its way into a table.
#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    child: Child,
}

/// The most children that one multiplier spreads; more need buckets.
const SMALL_TABLE_MAX: usize = 24;
/// Spreads keys over buckets.
const BUCKETS: u64 = 0x9FB2_1C65_1E98_DF25;

/// A key's place in a table of 2^(63 - shift) places: the top bits of a product, because every bit
/// of the key reaches them. Two shifts, so that a table of one place is no special case.
#[inline(always)]
fn place(key: u64, multiplier: u64, shift: u8) -> usize {
    ((key.wrapping_mul(multiplier) >> 1) >> shift) as usize
}

/// The multiplier of an attempt: odd, and without a pattern (SplitMix64).
fn multiplier(attempt: u64) -> u64 {
    let mut state = (attempt + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ state >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (state ^ state >> 31) | 1
}

/// A multiplier and a number of bits that give each of a few distinct keys a place of its own.
fn spread(keys: &[u64]) -> (u64, u8) {
    let least = keys.len().next_power_of_two().trailing_zeros() as u8;
    (least..)
        .flat_map(|bits| (0..ATTEMPTS_PER_SIZE).map(move |attempt| (multiplier(attempt), bits)))
        .find(|(multiplier, bits)| {
            let places: Vec<usize> =
                keys.iter().map(|key| place(*key, *multiplier, 63 - bits)).collect();
            all_differ(&places)
        })
        .expect("a table that doubles has a place for each key in the end")
}

/// How many multipliers to try before a small table is doubled.
const ATTEMPTS_PER_SIZE: u64 = 64;

fn all_differ(places: &[usize]) -> bool {
    places.iter().enumerate().all(|(at, place)| !places[..at].contains(place))
}

#[cfg(test)]
mod tests {
    use super::{NONE, Table, Tree, leading_word};

    #[test]
    fn a_table_of_any_size_finds_its_children_and_no_others() {
        let child = |tree: &Tree, table: &Table, piece: &[u8]| match piece.len() {
            0..=8 => tree.short_child(table, leading_word(piece, 0, piece.len()), piece.len()),
            _ => tree.long_child(table, piece),
        };
        let text = |n: usize| match n % 4 {
            0 => format!("{n}"),
            1 => format!("item{n:04}"),
            2 => format!("resource-{n}"),
            _ => format!("a-rather-long-name-{n}-with-the-same-end"),
        };
        for size in [1, 2, 3, 8, 24, 25, 100, 2000] {
            let texts: Vec<String> = (0..size).map(text).collect();
            let children: Vec<(&[u8], u32)> =
                texts.iter().enumerate().map(|(n, text)| (text.as_bytes(), n as u32)).collect();
            let mut tree = Tree::new(0);
            let table = tree.add_table(&children).ok().expect("the keys differ");
            for (piece, node) in &children {
                assert_eq!(child(&tree, &table, piece), *node);
            }
            for n in size..size + 100 {
                let other = text(n);
                assert_eq!(child(&tree, &table, other.as_bytes()), NONE);
            }
        }
    }
}
