//! The walk through the tree: from the root, a segment at a time, in order of precedence.

use crate::LITERAL_BYTES_MAX;
use crate::encoding::{raw_prefix, raw_suffix, write_plain};
use crate::node::{Affix, Choice, NONE, Node, Tree};
use crate::slashes::{Cursor, Slashes};
use crate::word::leading_word;

impl Tree {
    /// The route of the first leaf in order of precedence that answers a wanted method. Adds the
    /// methods of the matching leaves that answer none to `allow`.
    ///
    /// Visits each node at most once, and only those whose way matches the path.
    #[inline(always)]
    pub(crate) fn walk<S: Slashes>(
        &self,
        path: &[u8],
        slashes: &S,
        wanted: u32,
        allow: &mut u32,
    ) -> Option<&Choice> {
        let mut node = &self.nodes[0];
        let mut cursor = slashes.seek(0);
        'enter: loop {
            let mut stage = 0;
            if cursor.start > slashes.limit() {
                let choice = self.choose(node.leaf, wanted, allow);
                if choice.is_some() {
                    return choice;
                }
                stage = NO_STAGE;
            } else if cursor.start == cursor.end {
                if node.empty != NONE {
                    node = &self.nodes[node.empty as usize];
                    cursor = slashes.advance(cursor);
                    continue 'enter;
                }
                stage = node.affix_count + 1;
            } else if let Some(child) = self.fixed_child(node, path, slashes, cursor) {
                node = child;
                cursor = slashes.advance(cursor);
                continue 'enter;
            }
            loop {
                if let Some(child) = self.parameter_child::<S>(node, stage, path, cursor) {
                    node = child;
                    cursor = slashes.advance(cursor);
                    continue 'enter;
                }
                // The imagined slash of the other form leaves nothing for a catch-all.
                if node.rest != NONE && stage != NO_STAGE && cursor.start < path.len() {
                    let choice = self.choose(node.rest, wanted, allow);
                    if choice.is_some() {
                        return choice;
                    }
                }
                if node.fallback == NONE {
                    return None;
                }
                stage = node.fallback_stage;
                node = &self.nodes[node.fallback as usize];
                cursor = slashes.seek(node.depth as usize);
            }
        }
    }

    /// The child with the segment's fixed text.
    #[inline(always)]
    fn fixed_child<S: Slashes>(
        &self,
        node: &Node,
        path: &[u8],
        slashes: &S,
        Cursor { start, end, .. }: Cursor<S::Rest>,
    ) -> Option<&Node> {
        if S::ENCODED {
            let mut plain = [0; LITERAL_BYTES_MAX];
            let length = write_plain(&path[start..end], &mut plain)?;
            let first = || leading_word(&plain[..length], 0, length);
            return self.fixed_child_of(node, length, first, || &plain[..length]);
        }
        let first = || slashes.leading_word(path, start, end);
        self.fixed_child_of(node, end - start, first, || &path[start..end])
    }

    /// The child with a fixed text of this length. Its first eight bytes and all of it are asked
    /// for only if needed.
    #[inline(always)]
    fn fixed_child_of<'t>(
        &self,
        node: &Node,
        length: usize,
        first: impl FnOnce() -> u64,
        text: impl FnOnce() -> &'t [u8],
    ) -> Option<&Node> {
        if node.lengths >> length.min(63) & 1 == 0 {
            return None;
        }
        let child = if length <= 8 {
            self.short_child(&node.table, first(), length)
        } else {
            self.long_child(&node.table, text())
        };
        self.nodes.get(child as usize)
    }

    /// The child by the first alternative from `stage` on that is a parameter and matches the
    /// segment.
    #[inline(always)]
    fn parameter_child<S: Slashes>(
        &self,
        node: &Node,
        stage: u16,
        path: &[u8],
        Cursor { start, end, .. }: Cursor<S::Rest>,
    ) -> Option<&Node> {
        if stage > node.affix_count {
            return None;
        }
        if stage < node.affix_count {
            let first = node.affix_start as usize;
            let affixes = &self.affixes[first + stage as usize..first + node.affix_count as usize];
            let segment = &path[start..end];
            if let Some(affix) = affixes.iter().find(|affix| affix.matches::<S>(segment)) {
                return Some(&self.nodes[affix.node as usize]);
            }
        }
        self.nodes.get(node.parameter as usize)
    }
}

/// Beyond all alternatives of any node.
const NO_STAGE: u16 = u16::MAX;

impl Affix {
    /// Whether the segment begins and ends as it must, with at least one byte between.
    fn matches<S: Slashes>(&self, segment: &[u8]) -> bool {
        if S::ENCODED {
            let prefix = raw_prefix(segment, &self.prefix);
            let suffix = raw_suffix(segment, &self.suffix);
            return prefix.zip(suffix).is_some_and(|(left, right)| left + right < segment.len());
        }
        segment.len() > self.prefix.len() + self.suffix.len()
            && segment.starts_with(&self.prefix)
            && segment.ends_with(&self.suffix)
    }
}
