//! The flat tree of segments: nodes, their tables of children, and leaves.
//!
//! A lookup reads only a few arrays, by index. Because a node is reached by a single path, the
//! position to continue from after a dead end is known when the tree is built. Each node stores its
//! nearest ancestor that has an alternative left, so a walk needs no stack.

use std::collections::BTreeMap;

use crate::hash::{MIX, hash, mask, read_leading, read_u64};
use crate::method_set::MethodSet;

/// Stands for a missing node or route.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// One node of the tree. It stands for the segments that have matched so far.
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
    /// The next step for a non-empty segment that is not the fixed text of a child.
    pub(crate) fallthrough: Fallthrough,
    /// The ancestor to continue with if no alternative of this node matches.
    pub(crate) fallback: u32,
    /// The stage of that ancestor to continue with.
    pub(crate) fallback_stage: u16,
}

/// The first alternative of a node after its children with fixed text, if it is a single step away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fallthrough {
    /// Its parameter's child, which is the next node in the list. The node has no children with
    /// fixed text.
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
    /// Many, in the table with this index in [`Tree::tables`].
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

/// A table whose keys are hashes of whole texts. The keys are divided into buckets, and each bucket
/// has a multiplier that gives its keys distinct slots.
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

/// A free slot. Its length differs from that of every segment for which a child is looked up.
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
    /// `base + method`, wrapping, is the index in [`Tree::leaf_routes`] of the route for a method.
    pub(crate) base: u32,
}

impl Leaf {
    /// The index in [`Tree::leaf_routes`] of the route for the leaf's first method.
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
    /// For each leaf that has guarded routes, all of its routes in the order in which they are
    /// tried. The key is [`Leaf::start`].
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
        let methods = routes.iter().fold(0, |union, (methods, _)| union | methods.bits());
        let (first, end) = (methods.trailing_zeros(), 32 - methods.leading_zeros());
        let base = (self.leaf_routes.len() as u32).wrapping_sub(first);
        for method in first..end {
            let mut candidates =
                routes.iter().filter(|(methods, _)| methods.contains(method as u8));
            // A missing method between two others is never looked up.
            let leaf_route = candidates
                .next()
                .map_or(LeafRoute { route: NO_NODE, id: NO_NODE }, |(_, first)| *first);
            self.leaf_routes.push(leaf_route);
        }
        Leaf { methods, base }
    }

    /// Stores all routes of a leaf that has guarded ones.
    pub(crate) fn add_guarded(&mut self, leaf: Leaf, routes: Vec<(MethodSet, LeafRoute)>) {
        self.guarded.insert(leaf.start(), routes.into());
    }

    /// All routes of a leaf if any of them are guarded: the guarded ones first, in the order of
    /// insertion.
    pub(crate) fn guarded(&self, leaf: Leaf) -> Option<&[(MethodSet, LeafRoute)]> {
        if leaf.methods == 0 {
            return None;
        }
        self.guarded.get(&leaf.start()).map(|routes| &**routes)
    }

    /// Returns the index of the child with the fixed text `text[start..end]`. Its parent is the
    /// node at index `at`, and `text` has at least eight bytes.
    #[inline(always)]
    pub(crate) fn find_static_child(
        &self,
        static_children: &StaticChildren,
        at: usize,
        text: &[u8],
        start: usize,
        end: usize,
    ) -> Option<usize> {
        let length = end - start;
        match *static_children {
            StaticChildren::Empty => None,
            StaticChildren::Only { first, last, offset: text_offset, length: expected } => {
                let is_match = length == usize::from(expected)
                    && mask(read_leading(text, start), length) == first
                    && (length <= 8 || self.rest_matches(last, text_offset, text, start, end));
                is_match.then_some(at + 1)
            }
            StaticChildren::SmallTable { multiplier, start: table, slot_shift } => {
                let first = mask(read_leading(text, start), length);
                let slot = slot_index(quick_key(first, length), multiplier, slot_shift);
                let Child { text: child_text, node } = &self.children[table as usize + slot];
                let is_match = length == usize::from(child_text.length)
                    && first == child_text.first
                    && (length <= 8
                        || self.rest_matches(child_text.last, child_text.offset, text, start, end));
                is_match.then_some(*node as usize)
            }
            StaticChildren::LargeTable(table) => self.find_in_large_table(table, &text[start..end]),
        }
    }

    /// Returns whether a segment of more than eight bytes equals a child's text, after their
    /// lengths and first eight bytes have been compared.
    #[inline(always)]
    fn rest_matches(
        &self,
        last: u64,
        text_offset: u32,
        text: &[u8],
        start: usize,
        end: usize,
    ) -> bool {
        read_u64(text, end - 8) == last
            && (end - start <= 16 || self.text_matches(text_offset, &text[start..end]))
    }

    #[inline(never)]
    fn find_in_large_table(&self, table: u32, segment: &[u8]) -> Option<usize> {
        let table = self.tables[table as usize];
        let key = hash(segment, self.seed);
        let bucket = slot_index(key, BUCKET_MULTIPLIER, table.bucket_shift);
        let multiplier = self.multipliers[table.bucket_start as usize + bucket];
        let child =
            &self.children[table.start as usize + slot_index(key, multiplier, table.slot_shift)];
        let is_match = usize::from(child.text.length) == segment.len()
            && self.text_matches(child.text.offset, segment);
        is_match.then_some(child.node as usize)
    }

    #[inline(never)]
    fn text_matches(&self, offset: u32, segment: &[u8]) -> bool {
        let offset = offset as usize;
        self.text[offset..offset + segment.len()] == *segment
    }

    /// Stores a text of 1 to 255 bytes.
    fn add_text(&mut self, text: &[u8]) -> Text {
        let mut padded = text.to_vec();
        padded.resize(text.len().max(8), 0);
        let offset = self.text.len() as u32;
        self.text.extend_from_slice(text);
        let last = if text.len() <= 8 { 0 } else { read_u64(text, text.len() - 8) };
        let length = u16::try_from(text.len()).expect("a pattern's fixed text is short");
        Text { first: read_u64(&padded, 0), last, offset, length }
    }

    /// Stores the fixed texts of a node's children. They must be distinct and non-empty, and an
    /// only child must be the next node.
    pub(crate) fn add_static_children(
        &mut self,
        children: &[(&[u8], u32)],
    ) -> Result<StaticChildren, KeyCollision> {
        let make_entry = |tree: &mut Self, (text, node): (&[u8], u32)| {
            let key = hash(text, tree.seed);
            ChildEntry { key, child: Child { text: tree.add_text(text), node } }
        };
        let entries: Vec<ChildEntry> =
            children.iter().map(|child| make_entry(self, *child)).collect();
        if let [ChildEntry { child, .. }] = &*entries {
            let Text { first, last, offset, length } = child.text;
            return Ok(StaticChildren::Only { first, last, offset, length });
        }
        if entries.is_empty() {
            return Ok(StaticChildren::Empty);
        }
        let start = self.children.len() as u32;
        let quick_key_of =
            |entry: &ChildEntry| quick_key(entry.child.text.first, entry.child.text.length.into());
        let quick_keys: Vec<u64> = entries.iter().map(quick_key_of).collect();
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

    /// Divides the keys into buckets. For each bucket, fullest first, finds a multiplier that gives
    /// all keys of the bucket free slots.
    fn add_table(&mut self, entries: Vec<ChildEntry>, start: u32) -> Table {
        let slot_bits = (entries.len() * 2).next_power_of_two().trailing_zeros() as u8;
        let bucket_bits = (entries.len() / 4).max(1).next_power_of_two().trailing_zeros() as u8;
        let (slot_shift, bucket_shift) = (63 - slot_bits, 63 - bucket_bits);
        let mut buckets: Vec<(usize, Vec<ChildEntry>)> =
            (0..1 << bucket_bits).map(|bucket| (bucket, Vec::new())).collect();
        for entry in entries {
            buckets[slot_index(entry.key, BUCKET_MULTIPLIER, bucket_shift)].1.push(entry);
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
                .expect("half of the slots are free and the keys differ");
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
/// The multiplier that spreads keys over buckets.
const BUCKET_MULTIPLIER: u64 = 0x9FB2_1C65_1E98_DF25;

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
    let bits_min = keys.len().next_power_of_two().trailing_zeros() as u8;
    (bits_min..)
        .flat_map(|bits| (0..ATTEMPTS_PER_SIZE).map(move |attempt| (multiplier(attempt), bits)))
        .find(|(multiplier, bits)| {
            let slots: Vec<usize> =
                keys.iter().map(|key| slot_index(*key, *multiplier, 63 - bits)).collect();
            are_distinct_slots(&slots)
        })
        .expect("a large enough table has a slot for each key")
}

/// How many multipliers to try before doubling the size of a small table.
const ATTEMPTS_PER_SIZE: u64 = 64;

fn are_distinct_slots(slots: &[usize]) -> bool {
    slots.iter().enumerate().all(|(index, slot)| !slots[..index].contains(slot))
}

#[cfg(test)]
mod tests {
    use super::{LeafRoute, MethodSet, Node, Tree};

    #[test]
    fn a_node_fits_a_cache_line() {
        assert_eq!(size_of::<Node>(), 64);
    }

    #[test]
    fn select_finds_the_route_of_each_method_of_a_leaf() {
        let mut tree = Tree::new(0);
        let leaf_route = |id| LeafRoute { route: id, id };
        let methods = |bits| MethodSet::from_bits(bits);
        tree.add_leaf(&[(methods(0b1000), leaf_route(7))]);
        let leaf =
            tree.add_leaf(&[(methods(0b1_0100), leaf_route(1)), (methods(1 << 31), leaf_route(2))]);
        let find_id = |method| {
            let mut allow = 0;
            let leaf_route = tree.select(leaf, method, &mut allow);
            assert_eq!(allow == 0, leaf_route.is_some());
            leaf_route.map(|leaf_route| leaf_route.id)
        };
        let found: Vec<_> = (0..40).filter_map(|method| Some((method, find_id(method)?))).collect();
        assert_eq!(found, [(2, 1), (4, 1), (31, 2)]);
    }

    #[test]
    fn tables_of_any_size_find_their_children_and_no_others() {
        let find_child = |tree: &Tree, static_children: &_, text: &str| {
            let text = format!("/{text}/1234567");
            let end = text.len() - 8;
            tree.find_static_child(static_children, 99, text.as_bytes(), 1, end)
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
            let static_children =
                tree.add_static_children(&children).ok().expect("the keys differ");
            for (node, text) in texts.iter().enumerate() {
                let expected = if size == 1 { 100 } else { node };
                assert_eq!(find_child(&tree, &static_children, text), Some(expected));
            }
            for n in size..size + 100 {
                assert_eq!(find_child(&tree, &static_children, &text(n)), None);
            }
            // The words of an empty segment are those of a free slot: zeros.
            assert_eq!(tree.find_static_child(&static_children, 99, &[0; 8], 0, 0), None);
        }
    }
}
