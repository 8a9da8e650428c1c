//! The straight way down the tree, which most lookups never leave.
//!
//! The descent takes the first alternative of each node, and hands over to the walk in `walk.rs` if
//! another must be tried. Its results are those of the walk from the same node. It is separate,
//! because a loop with so little state can keep it in registers.

use crate::node::{Choice, Otherwise, Tree};
use crate::parameters::{Noted, Parameters};
use crate::slashes::{Cursor, Slashes, Slashes64};

/// The result of a descent.
pub(crate) enum Descent {
    /// A route that has the method.
    Found(Choice),
    /// No route matches.
    Missing,
    /// The node and the segment from which the walk must continue.
    Ask(usize, Cursor<u64>),
}

impl Tree {
    /// Like [`Tree::walk`] from the root, for a path of up to 63 bytes.
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
            let Some(node) = self.nodes.get(at) else { return Descent::Missing };
            if slashes.is_over(cursor) {
                break (node.leaf, node.parameters);
            }
            let Cursor { start, end, .. } = cursor;
            if node.otherwise == Otherwise::NextNode && start != end {
                parameters.note(node.parameters, start, end);
                at += 1;
                cursor = slashes.advance(cursor);
                continue;
            }
            if let Some(child) = self.fixed_child(&node.fixed, at, slashes.text, start, end) {
                at = child;
                cursor = slashes.advance(cursor);
                continue;
            }
            match node.otherwise {
                Otherwise::Parameter if start != end => {
                    parameters.note(node.parameters, start, end);
                    at = node.parameter as usize;
                    cursor = slashes.advance(cursor);
                }
                Otherwise::Rest if start != end => {
                    parameters.note(node.parameters, start, path.len());
                    break (node.rest, node.parameters + 1);
                }
                Otherwise::Missing if start != end => return Descent::Missing,
                _ => return Descent::Ask(at, cursor),
            }
        };
        match self.choose(leaf, method, &mut 0) {
            Some(choice) => {
                parameters.noted = Noted::Values(count);
                Descent::Found(choice)
            }
            None => Descent::Ask(at, cursor),
        }
    }
}
