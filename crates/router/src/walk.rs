//! The walk through the tree: segment by segment, in order of precedence, with backtracking.

use crate::LITERAL_BYTES_MAX;
use crate::encoding::{raw_prefix, raw_suffix, write_plain};
use crate::node::{Affix, Leaf, LeafRoute, NO_NODE, Node, Tree};
use crate::parameters::{Parameters, RecordedBounds};
use crate::slashes::{Cursor, Slashes};

impl Tree {
    /// Passes the leaves that match the path to `pick`, in order of precedence, and returns the
    /// first route that `pick` returns. Records the bounds of the parameters' values.
    ///
    /// Starts at a node with the next segment to match; the path before that segment has matched.
    /// At the root, the next segment is the first. Visits each node at most once, and only nodes
    /// that match the path.
    #[inline(always)]
    pub(crate) fn walk<S: Slashes>(
        &self,
        path: &[u8],
        slashes: &S,
        (mut at, mut cursor): (usize, Cursor<S::Remaining>),
        mut pick: impl FnMut(Leaf, &mut Parameters) -> Option<LeafRoute>,
        parameters: &mut Parameters,
    ) -> Option<LeafRoute> {
        'enter: loop {
            let mut node = self.nodes.get(at)?;
            let mut stage = 0;
            if cursor.start > slashes.limit() {
                let leaf_route = pick(node.leaf, parameters);
                if leaf_route.is_some() {
                    parameters.recorded = RecordedBounds::Values(node.parameters);
                    return leaf_route;
                }
                stage = LAST_STAGE;
            } else if let Some(child) = self.find_static(node, at, slashes, cursor) {
                at = child;
                cursor = slashes.advance(cursor);
                continue 'enter;
            } else if cursor.start == cursor.end {
                if node.empty != NO_NODE {
                    at = node.empty as usize;
                    cursor = slashes.advance(cursor);
                    continue 'enter;
                }
                stage = node.affix_count + 1;
            }
            loop {
                if let Some(child) = self.find_parameter::<S>(node, stage, path, cursor, parameters)
                {
                    at = child;
                    cursor = slashes.advance(cursor);
                    continue 'enter;
                }
                // After an added slash, no bytes are left for a catch-all.
                if node.catch_all.methods != 0 && stage != LAST_STAGE && cursor.start < path.len() {
                    let leaf_route = pick(node.catch_all, parameters);
                    if leaf_route.is_some() {
                        record::<S>(parameters, node, cursor.start, path.len());
                        parameters.recorded = RecordedBounds::Values(node.parameters + 1);
                        return leaf_route;
                    }
                }
                stage = node.fallback_stage;
                node = self.nodes.get(node.fallback as usize)?;
                cursor = slashes.seek(node.depth.into());
            }
        }
    }

    /// The index of the child with the segment's fixed text.
    #[inline(always)]
    fn find_static<S: Slashes>(
        &self,
        node: &Node,
        at: usize,
        slashes: &S,
        Cursor { start, end, .. }: Cursor<S::Remaining>,
    ) -> Option<usize> {
        if S::ENCODED {
            let mut text = [0; LITERAL_BYTES_MAX + 8];
            let raw = slashes.text().get(start..end)?;
            let end = write_plain(raw, &mut text[..LITERAL_BYTES_MAX])?;
            return self.find_static_child(&node.static_children, at, &text, 0, end);
        }
        self.find_static_child(&node.static_children, at, slashes.text(), start, end)
    }

    /// Returns the index of the child for the node's first parameter, from `stage` on, that matches
    /// the segment, and records the value.
    #[inline(always)]
    fn find_parameter<S: Slashes>(
        &self,
        node: &Node,
        stage: u16,
        path: &[u8],
        Cursor { start, end, .. }: Cursor<S::Remaining>,
        parameters: &mut Parameters,
    ) -> Option<usize> {
        if stage > node.affix_count {
            return None;
        }
        if stage < node.affix_count {
            let first = node.affix_start as usize;
            let affixes = &self.affixes[first + stage as usize..first + node.affix_count as usize];
            let segment = &path[start..end];
            if let Some(affix) = affixes.iter().find(|affix| affix.matches::<S>(segment)) {
                let (prefix_len, suffix_len) = (affix.prefix.len(), affix.suffix.len());
                record::<S>(parameters, node, start + prefix_len, end - suffix_len);
                return Some(affix.node as usize);
            }
        }
        if node.parameter == NO_NODE {
            return None;
        }
        record::<S>(parameters, node, start, end);
        Some(node.parameter as usize)
    }
}

/// Records the bounds of the value of a node's parameter. Does nothing for a path with
/// [`Slashes::ENCODED`], whose values are searched for on demand.
#[inline(always)]
fn record<S: Slashes>(parameters: &mut Parameters, node: &Node, start: usize, end: usize) {
    if !S::ENCODED {
        parameters.record(node.parameters, start, end);
    }
}

/// A stage after all alternatives of any node.
const LAST_STAGE: u16 = u16::MAX;

impl Affix {
    /// Returns whether the segment consists of the prefix, at least one byte, and the suffix.
    fn matches<S: Slashes>(&self, segment: &[u8]) -> bool {
        if S::ENCODED {
            let prefix = raw_prefix(segment, &self.prefix);
            let suffix = raw_suffix(segment, &self.suffix);
            return prefix
                .zip(suffix)
                .is_some_and(|(prefix_len, suffix_len)| prefix_len + suffix_len < segment.len());
        }
        segment.len() > self.prefix.len() + self.suffix.len()
            && segment.starts_with(&self.prefix)
            && segment.ends_with(&self.suffix)
    }
}
