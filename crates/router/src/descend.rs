//! The descent through the tree without backtracking, which is enough for most lookups.
//!
//! The descent tries only the first alternative of each node. If another one must be tried, it
//! hands over to the walk in `walk.rs`. The walk alone would give the same results; the descent is
//! separate because a loop with so little state can keep that state in registers.

use crate::node::{Fallthrough, LeafRoute, Tree};
use crate::parameters::{Parameters, RecordedBounds};
use crate::slashes::{Cursor, Slashes, Slashes64};

/// The result of a descent.
pub(crate) enum Descent {
    /// A route that has the method.
    Found(LeafRoute),
    /// No route matches.
    NotFound,
    /// The node and the segment from which the walk must continue.
    Walk(usize, Cursor<u64>),
}

impl Tree {
    /// Like [`Tree::walk`] from the root, for a path of up to 63 bytes without escapes.
    #[inline(always)]
    pub(crate) fn descend(
        &self,
        path: &[u8],
        slashes: &Slashes64<'_>,
        method: u8,
        parameters: &mut Parameters,
    ) -> Descent {
        let mut at = 0;
        let mut cursor = slashes.seek(0);
        let (leaf, count) = loop {
            let Some(node) = self.nodes.get(at) else { return Descent::NotFound };
            if slashes.is_over(cursor) {
                break (node.leaf, node.parameters);
            }
            let Cursor { start, end, .. } = cursor;
            if node.fallthrough == Fallthrough::NextNode && start != end {
                parameters.record(node.parameters, start, end);
                at += 1;
                cursor = slashes.advance(cursor);
                continue;
            }
            if let Some(child) =
                self.find_static_child(&node.static_children, at, slashes.text, start, end)
            {
                at = child;
                cursor = slashes.advance(cursor);
                continue;
            }
            match node.fallthrough {
                Fallthrough::Parameter if start != end => {
                    parameters.record(node.parameters, start, end);
                    at = node.parameter as usize;
                    cursor = slashes.advance(cursor);
                }
                Fallthrough::CatchAll if start != end => {
                    parameters.record(node.parameters, start, path.len());
                    break (node.catch_all, node.parameters + 1);
                }
                Fallthrough::NotFound if start != end => return Descent::NotFound,
                _ => return Descent::Walk(at, cursor),
            }
        };
        match self.select(leaf, method, &mut 0) {
            Some(leaf_route) => {
                parameters.recorded = RecordedBounds::Values(count);
                Descent::Found(leaf_route)
            }
            None => Descent::Walk(at, cursor),
        }
    }
}
