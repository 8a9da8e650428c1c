//! The flat tree of segments: nodes, their tables of children, and leaves.
//!
//! A lookup reads only a few arrays, by index. Because a node is reached by a single path, the
//! place to continue after a dead end is known when the tree is built: each node stores the nearest
//! ancestor with a remaining alternative, so a walk needs no stack.

use std::collections::BTreeMap;

use crate::hash::{MIX, hash, mask, read_leading, read_u64};
use crate::method_set::MethodSet;

/// No such node.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// One node of the tree: the segments up to here have matched.
///
/// The alternatives of a node are numbered as *stages*, in order of precedence: its affixed
/// parameters from 0, then its parameter at `affix_count`, then its catch-all.
#[repr(align(64))]
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) static_children: StaticChildren,
    /// The leaf for a path that ends here.
    pub(crate) leaf: Leaf,
    /// The leaf for the rest of the path, if there is one.
    pub(crate) catch_all: Leaf,
    /// The child for an empty segment.
    pub(crate) empty: u32,
    /// The child for any segment that is not empty.
    pub(crate) parameter: u32,
    pub(crate) affix_start: u32,
    pub(crate) affix_count: u16,
    /// The number of segments before this node.
    pub(crate) depth: u8,
    /// The number of parameters before this node.
    pub(crate) parameters: u8,
    /// Where a non-empty segment leads, if it is not the fixed text of a child.
    pub(crate) fallthrough: Fallthrough,
    /// The ancestor to continue with if nothing here matches.
    pub(crate) fallback: u32,
    /// The alternative of that ancestor to continue with.
    pub(crate) fallback_stage: u16,
}

/// The first alternative of a node after its children with fixed text, if it is a single step away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallthrough {
    /// Its parameter's child, which is the next node in the list, without children of fixed text.
    NextNode,
    /// Its parameter's child.
    Parameter,
    /// Its catch-all.
    CatchAll,
    /// No route matches.
    NotFound,
    /// More checks are needed: affixed parameters, or alternatives of an ancestor.
    Walk,
}

/// The children of a node that have nonempty fixed text.
///
/// An only child is stored right after its parent in the list of nodes. So its index is known
/// before anything is read from memory, and the processor can continue without waiting.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StaticChildren {
    /// None.
    Empty,
    /// The next node, with the fields of a [`Text`]. They are listed here because the compiler then
    /// packs them and the tag into 24 bytes.
    Only { first: u64, last: u64, offset: u32, length: u16 },
    /// Some, in a small table with keys made of the first eight bytes and the length: its start in
    /// [`Tree::children`], and the hash parameters that give each key a distinct slot.
    SmallTable { multiplier: u64, start: u32, slot_shift: u8 },
    /// Any others, in the table with this number in [`Tree::tables`].
    LargeTable(u32),
}

/// A text of 1 to 255 bytes.
#[derive(Clone, Copy, Debug)]
struct Text {
    /// The first eight bytes, padded with zeros.
    first: u64,
    /// The last eight bytes if there are more than eight.
    last: u64,
    /// The text's offset in [`Tree::text`], needed only beyond sixteen bytes.
    offset: u32,
    length: u16,
}

/// A table with keys made of whole texts. Its keys are divided into buckets, and each bucket has a
/// multiplier that leads its keys to distinct slots.
#[derive(Clone, Copy, Debug)]
struct Table {
    /// The table's start in [`Tree::children`].
    start: u32,
    /// The start of its multipliers in [`Tree::multipliers`].
    bucket_start: u32,
    slot_shift: u8,
    bucket_shift: u8,
}

/// A child with fixed text, or a free slot.
#[repr(align(32))]
#[derive(Clone, Copy, Debug)]
struct Child {
    text: Text,
    node: u32,
}

/// Its length is not that of any segment for which a child is looked up.
const FREE: Child =
    Child { text: Text { first: 0, last: 0, offset: 0, length: u16::MAX }, node: NO_NODE };

/// A segment with fixed text around its parameter.
#[derive(Clone, Debug)]
pub(crate) struct Affix {
    pub(crate) prefix: Box<[u8]>,
    pub(crate) suffix: Box<[u8]>,
    pub(crate) node: u32,
}

/// The routes of one shape, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The union of the methods of all routes.
    pub(crate) methods: u32,
    /// Added to a method of this leaf, gives the index of its choice in [`Tree::leaf_routes`].
    pub(crate) base: u32,
}

impl Leaf {
    /// The index of its first choice.
    fn start(self) -> u32 {
        self.base.wrapping_add(self.methods.trailing_zeros())
    }
}

/// The route of a leaf for one method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeafRoute {
    /// The index of the route in the router's list.
    pub(crate) route: u32,
    /// The caller's id.
    pub(crate) id: u32,
}

/// All nodes of a router.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) affixes: Vec<Affix>,
    pub(crate) leaf_routes: Vec<LeafRoute>,
    children: Vec<Child>,
    tables: Vec<Table>,
    multipliers: Vec<u64>,
    text: Vec<u8>,
    seed: u64,
    /// The routes of leaves with guarded ones, in the order in which they are tried, by the index
    /// of the leaf's first choice.
    guarded: BTreeMap<u32, Box<[(MethodSet, LeafRoute)]>>,
}

/// Two texts of one table have the same key under this seed, so they cannot be distinguished.
pub(crate) struct KeyCollision;

impl Tree {
    /// Creates an empty tree whose keys depend on `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Returns the route of a leaf for the method. If there is none, adds the leaf's methods to
    /// `allow`.
    #[inline(always)]
    pub(crate) fn select(&self, leaf: Leaf, method: u8, allow: &mut u32) -> Option<LeafRoute> {
        if MethodSet::from_bits(leaf.methods).contains(method) {
            return self.leaf_routes.get(leaf.base.wrapping_add(method.into()) as usize).copied();
        }
        *allow |= leaf.methods;
        None
    }

    /// Adds the routes of a leaf, each with its methods. The first one for a method wins.
    pub(crate) fn add_leaf(&mut self, routes: &[(MethodSet, LeafRoute)]) -> Leaf {
        let methods = routes.iter().fold(0, |all, (methods, _)| all | methods.bits());
        let (first, end) = (methods.trailing_zeros(), 32 - methods.leading_zeros());
        let base = (self.leaf_routes.len() as u32).wrapping_sub(first);
        for method in first..end {
            let mut answering = routes.iter().filter(|(methods, _)| methods.contains(method as u8));
            // A missing method between two others is never looked up.
            let choice =
                answering.next().map_or(LeafRoute { route: NO_NODE, id: NO_NODE }, |(_, it)| *it);
            self.leaf_routes.push(choice);
        }
        Leaf { methods, base }
    }

    /// Stores all routes of a leaf, of which some are guarded.
    pub(crate) fn add_guarded(&mut self, leaf: Leaf, routes: Vec<(MethodSet, LeafRoute)>) {
        self.guarded.insert(leaf.start(), routes.into());
    }

    /// All routes of a leaf, if some are guarded: the guarded ones first, in the order of
    /// insertion.
    pub(crate) fn guarded(&self, leaf: Leaf) -> Option<&[(MethodSet, LeafRoute)]> {
        if leaf.methods == 0 {
            return None;
        }
        self.guarded.get(&leaf.start()).map(|routes| &**routes)
    }

    /// Returns the index of the child with the fixed text `text[start..end]`, for the node at this
    /// index. `text` has at least eight bytes.
    #[inline(always)]
    pub(crate) fn find_static_child(
        &self,
        fixed: &StaticChildren,
        at: usize,
        text: &[u8],
        start: usize,
        end: usize,
    ) -> Option<usize> {
        let length = end - start;
        match *fixed {
            StaticChildren::Empty => None,
            StaticChildren::Only { first, last, offset: place, length: expected } => {
                let same = length == usize::from(expected)
                    && mask(read_leading(text, start), length) == first
                    && (length <= 8 || self.suffix_matches(last, place, text, start, end));
                same.then_some(at + 1)
            }
            StaticChildren::SmallTable { multiplier, start: table, slot_shift } => {
                let first = mask(read_leading(text, start), length);
                let slot = slot_index(quick_key(first, length), multiplier, slot_shift);
                let Child { text: known, node } = &self.children[table as usize + slot];
                let same = length == usize::from(known.length)
                    && first == known.first
                    && (length <= 8
                        || self.suffix_matches(known.last, known.offset, text, start, end));
                same.then_some(*node as usize)
            }
            StaticChildren::LargeTable(table) => {
                self.child_in_large_table(table, &text[start..end])
            }
        }
    }

    /// Returns whether a piece of more than eight bytes, whose length and first eight bytes are
    /// those of a known text, is equal to it.
    #[inline(always)]
    fn suffix_matches(&self, last: u64, place: u32, text: &[u8], start: usize, end: usize) -> bool {
        read_u64(text, end - 8) == last
            && (end - start <= 16 || self.same_text(place, &text[start..end]))
    }

    #[inline(never)]
    fn child_in_large_table(&self, table: u32, piece: &[u8]) -> Option<usize> {
        let table = self.tables[table as usize];
        let key = hash(piece, self.seed);
        let bucket = slot_index(key, BUCKETS, table.bucket_shift);
        let multiplier = self.multipliers[table.bucket_start as usize + bucket];
        let child =
            &self.children[table.start as usize + slot_index(key, multiplier, table.slot_shift)];
        let same = usize::from(child.text.length) == piece.len()
            && self.same_text(child.text.offset, piece);
        same.then_some(child.node as usize)
    }

    #[inline(never)]
    fn same_text(&self, place: u32, piece: &[u8]) -> bool {
        let place = place as usize;
        self.text[place..place + piece.len()] == *piece
    }

    /// Stores a text of 1 to 255 bytes.
    fn add_text(&mut self, text: &[u8]) -> Text {
        let mut padded = text.to_vec();
        padded.resize(text.len().max(8), 0);
        let place = self.text.len() as u32;
        self.text.extend_from_slice(text);
        let last = if text.len() <= 8 { 0 } else { read_u64(text, text.len() - 8) };
        let length = u16::try_from(text.len()).expect("a pattern's fixed text is short");
        Text { first: read_u64(&padded, 0), last, offset: place, length }
    }

    /// Stores the fixed texts of children, distinct and non-empty. An only child must be the next
    /// node.
    pub(crate) fn add_static(
        &mut self,
        children: &[(&[u8], u32)],
    ) -> Result<StaticChildren, KeyCollision> {
        let entry = |tree: &mut Self, (text, node): (&[u8], u32)| {
            let key = hash(text, tree.seed);
            ChildEntry { key, child: Child { text: tree.add_text(text), node } }
        };
        let entries: Vec<ChildEntry> = children.iter().map(|child| entry(self, *child)).collect();
        if let [ChildEntry { child, .. }] = &*entries {
            let Text { first, last, offset: place, length } = child.text;
            return Ok(StaticChildren::Only { first, last, offset: place, length });
        }
        if entries.is_empty() {
            return Ok(StaticChildren::Empty);
        }
        let start = self.children.len() as u32;
        let key =
            |entry: &ChildEntry| quick_key(entry.child.text.first, entry.child.text.length.into());
        let quick_keys: Vec<u64> = entries.iter().map(key).collect();
        if entries.len() > SMALL_TABLE_MAX || !are_distinct(&quick_keys) {
            let keys: Vec<u64> = entries.iter().map(|entry| entry.key).collect();
            if !are_distinct(&keys) {
                return Err(KeyCollision);
            }
            let table = self.add_table(entries, start);
            self.tables.push(table);
            return Ok(StaticChildren::LargeTable(self.tables.len() as u32 - 1));
        }
        let (multiplier, bits) = find_multiplier(&quick_keys);
        let slot_shift = 63 - bits;
        self.children.resize(start as usize + (1 << bits), FREE);
        for (entry, key) in entries.into_iter().zip(quick_keys) {
            self.children[start as usize + slot_index(key, multiplier, slot_shift)] = entry.child;
        }
        Ok(StaticChildren::SmallTable { multiplier, start, slot_shift })
    }

    /// Divides the keys into buckets and finds a multiplier for each that leads all its keys to
    /// free slots, fullest bucket first.
    fn add_table(&mut self, entries: Vec<ChildEntry>, start: u32) -> Table {
        let slot_bits = (entries.len() * 2).next_power_of_two().trailing_zeros() as u8;
        let bucket_bits = (entries.len() / 4).max(1).next_power_of_two().trailing_zeros() as u8;
        let (slot_shift, bucket_shift) = (63 - slot_bits, 63 - bucket_bits);
        let mut buckets: Vec<(usize, Vec<ChildEntry>)> =
            (0..1 << bucket_bits).map(|bucket| (bucket, Vec::new())).collect();
        for entry in entries {
            buckets[slot_index(entry.key, BUCKETS, bucket_shift)].1.push(entry);
        }
        buckets.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.len()));
        let bucket_start = self.multipliers.len() as u32;
        self.multipliers.resize(bucket_start as usize + (1 << bucket_bits), 1);
        self.children.resize(start as usize + (1 << slot_bits), FREE);
        for (bucket, entries) in buckets {
            let free = |slot: &usize| self.children[start as usize + slot].node == NO_NODE;
            let (multiplier, slots) = (0..)
                .map(|attempt| {
                    let multiplier = multiplier(attempt);
                    let slots: Vec<usize> = entries
                        .iter()
                        .map(|entry| slot_index(entry.key, multiplier, slot_shift))
                        .collect();
                    (multiplier, slots)
                })
                .find(|(_, slots)| slots.iter().all(free) && are_distinct_slots(slots))
                .expect("half of the places are free and the keys differ");
            self.multipliers[bucket_start as usize + bucket] = multiplier;
            for (slot, entry) in slots.into_iter().zip(entries) {
                self.children[start as usize + slot] = entry.child;
            }
        }
        Table { start, bucket_start, slot_shift, bucket_shift }
    }
}

/// A child that is being added to a table.
#[derive(Clone, Copy)]
struct ChildEntry {
    key: u64,
    child: Child,
}

fn are_distinct(keys: &[u64]) -> bool {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.windows(2).all(|pair| pair[0] != pair[1])
}

/// A key that is nearly free to compute, made of the first eight bytes and the length.
#[inline(always)]
fn quick_key(first: u64, length: usize) -> u64 {
    first.wrapping_add((length as u64).wrapping_mul(MIX[3]))
}

/// The maximum number of children for a table with one multiplier.
const SMALL_TABLE_MAX: usize = 24;
/// Spreads keys over buckets.
const BUCKETS: u64 = 0x9FB2_1C65_1E98_DF25;

/// A key's slot in a table of 2^(63 - shift) slots: the top bits of a product, because they
/// depend on every bit of the key. Two shifts, so that a table of one slot is not a special case.
#[inline(always)]
fn slot_index(key: u64, multiplier: u64, shift: u8) -> usize {
    ((key.wrapping_mul(multiplier) >> 1) >> shift) as usize
}

/// The multiplier of an attempt: odd and pseudo-random (SplitMix64).
fn multiplier(attempt: u64) -> u64 {
    let mut state = (attempt + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    state = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    state = (state ^ state >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    (state ^ state >> 31) | 1
}

/// Finds a multiplier and a number of bits that give each of a few distinct keys a distinct slot.
fn find_multiplier(keys: &[u64]) -> (u64, u8) {
    let least = keys.len().next_power_of_two().trailing_zeros() as u8;
    (least..)
        .flat_map(|bits| (0..ATTEMPTS_PER_SIZE).map(move |attempt| (multiplier(attempt), bits)))
        .find(|(multiplier, bits)| {
            let places: Vec<usize> =
                keys.iter().map(|key| slot_index(*key, *multiplier, 63 - bits)).collect();
            are_distinct_slots(&places)
        })
        .expect("a large enough table has a place for each key")
}

/// How many multipliers to try before a small table is doubled.
const ATTEMPTS_PER_SIZE: u64 = 64;

fn are_distinct_slots(places: &[usize]) -> bool {
    places.iter().enumerate().all(|(at, place)| !places[..at].contains(place))
}

#[cfg(test)]
mod tests {
    use super::{LeafRoute, MethodSet, Node, Tree};

    #[test]
    fn a_node_fits_a_cache_line() {
        assert_eq!(size_of::<Node>(), 64);
    }

    #[test]
    fn a_leaf_has_the_route_of_each_method_and_no_more() {
        let mut tree = Tree::new(0);
        let choice = |id| LeafRoute { route: id, id };
        let methods = |bits| MethodSet::from_bits(bits);
        tree.add_leaf(&[(methods(0b1000), choice(7))]);
        let leaf = tree.add_leaf(&[(methods(0b1_0100), choice(1)), (methods(1 << 31), choice(2))]);
        let found = |method| {
            let mut allow = 0;
            let choice = tree.select(leaf, method, &mut allow);
            assert_eq!(allow == 0, choice.is_some());
            choice.map(|choice| choice.id)
        };
        let all: Vec<_> = (0..40).filter_map(|method| Some((method, found(method)?))).collect();
        assert_eq!(all, [(2, 1), (4, 1), (31, 2)]);
    }

    #[test]
    fn a_table_of_any_size_finds_its_children_and_no_others() {
        let child = |tree: &Tree, fixed: &_, text: &str| {
            let text = format!("/{text}/1234567");
            let end = text.len() - 8;
            tree.find_static_child(fixed, 99, text.as_bytes(), 1, end)
        };
        let text = |n: usize| match n % 4 {
            0 => format!("{n}"),
            1 => format!("item{n:04}"),
            2 => format!("resource-{n}"),
            _ => format!("a-rather-long-name-{n}-with-the-same-end"),
        };
        for size in [0, 1, 2, 3, 8, 24, 25, 100, 2000] {
            let texts: Vec<String> = (0..size).map(text).collect();
            let children: Vec<(&[u8], u32)> =
                texts.iter().enumerate().map(|(n, text)| (text.as_bytes(), n as u32)).collect();
            let mut tree = Tree::new(0);
            let fixed = tree.add_static(&children).ok().expect("the keys differ");
            for (node, text) in texts.iter().enumerate() {
                let expected = if size == 1 { 100 } else { node };
                assert_eq!(child(&tree, &fixed, text), Some(expected));
            }
            for n in size..size + 100 {
                assert_eq!(child(&tree, &fixed, &text(n)), None);
            }
            // The words of an empty segment are those of a free slot: zeros.
            assert_eq!(tree.find_static_child(&fixed, 99, &[0; 8], 0, 0), None);
        }
    }
}
