//! Builds the tree of a router from the shapes of its patterns.

use std::collections::BTreeMap;

use crate::node::{Affix, Fallthrough, KeyCollision, Leaf, LeafRoute, NO_NODE, Node, Tree};
use crate::pattern::SegmentPattern;
use crate::router::{Route, Router, TrailingSlash};
use crate::static_paths::StaticPaths;

/// The tree under construction. A child's number is greater than its parent's.
#[derive(Default)]
pub(crate) struct TreeBuilder {
    nodes: Vec<NodeBuilder>,
    /// For each leaf, its routes in the order of insertion.
    pub(crate) leaves: Vec<Vec<usize>>,
    /// The full static paths and their leaves.
    static_paths: Vec<(Vec<u8>, u32)>,
    pub(crate) routes: Vec<Route>,
}

#[derive(Default)]
struct NodeBuilder {
    static_children: BTreeMap<Vec<u8>, u32>,
    affixed: Vec<(Vec<u8>, Vec<u8>, u32)>,
    parameter: Option<u32>,
    catch_all: Option<u32>,
    leaf: Option<u32>,
    depth: u8,
    /// How many parameters lead here.
    parameters: u8,
}

impl TreeBuilder {
    /// Creates a tree of one node, the root.
    pub(crate) fn new() -> Self {
        Self { nodes: vec![NodeBuilder::default()], ..Self::default() }
    }

    /// Returns the leaf for this shape, created if needed.
    pub(crate) fn leaf_for(&mut self, parts: &[SegmentPattern]) -> u32 {
        let mut at = 0;
        for part in parts {
            if *part == SegmentPattern::CatchAll {
                let leaf = &mut self.nodes[at as usize].catch_all;
                return *leaf.get_or_insert_with(|| add(&mut self.leaves, Vec::new()));
            }
            at = self.child_for(at, part);
        }
        if let Some(leaf) = self.nodes[at as usize].leaf {
            return leaf;
        }
        let leaf = add(&mut self.leaves, Vec::new());
        self.nodes[at as usize].leaf = Some(leaf);
        if let Some(path) = static_path(parts) {
            self.static_paths.push((path, leaf));
        }
        leaf
    }

    /// Returns the child of a draft for a part that is not a catch-all, created if needed.
    fn child_for(&mut self, parent: u32, part: &SegmentPattern) -> u32 {
        let next = self.nodes.len() as u32;
        let draft = &mut self.nodes[parent as usize];
        let child = match part {
            SegmentPattern::Static(text) => {
                *draft.static_children.entry(text.clone()).or_insert(next)
            }
            SegmentPattern::Parameter => *draft.parameter.get_or_insert(next),
            SegmentPattern::Affixed { prefix, suffix } => {
                let known = draft
                    .affixed
                    .iter()
                    .find(|(left, right, _)| left == prefix && right == suffix)
                    .map(|(_, _, child)| *child);
                known.unwrap_or_else(|| {
                    draft.affixed.push((prefix.clone(), suffix.clone(), next));
                    next
                })
            }
            SegmentPattern::CatchAll => unreachable!("a catch-all has no child"),
        };
        if child == next {
            let depth = draft.depth + 1;
            let parameters =
                draft.parameters + u8::from(!matches!(part, SegmentPattern::Static(_)));
            self.nodes.push(NodeBuilder { depth, parameters, ..NodeBuilder::default() });
        }
        child
    }

    pub(crate) fn into_router(mut self, slash_policy: TrailingSlash) -> Router {
        for draft in &mut self.nodes {
            // The longest fixed text first, then the longest before the parameter; the texts
            // themselves last, only so that the order of insertion has no effect.
            draft.affixed.sort_by(|(left, right, _), (other_left, other_right, _)| {
                let length = |left: &Vec<u8>, right: &Vec<u8>| left.len() + right.len();
                length(other_left, other_right)
                    .cmp(&length(left, right))
                    .then(other_left.len().cmp(&left.len()))
                    .then_with(|| (left, right).cmp(&(other_left, other_right)))
            });
        }
        self.number_nodes();
        let (tree, leaves) = (0..)
            .find_map(|seed| self.tree(seed).ok())
            .expect("some seed yields distinct keys in each table");
        let ids = self.routes.iter().map(|route| route.id);
        let mut by_id = vec![NO_NODE; ids.clone().max().map_or(0, |id| id as usize + 1)];
        for (index, id) in ids.enumerate() {
            by_id[id as usize] = index as u32;
        }
        let leaf_of = |(path, leaf): &(Vec<u8>, u32)| (path.clone(), leaves[*leaf as usize]);
        let static_paths: Vec<_> = self.static_paths.iter().map(leaf_of).collect();
        let statics = StaticPaths::new(&static_paths);
        Router {
            static_paths: statics,
            tree,
            routes: self.routes.into(),
            by_id: by_id.into(),
            trailing_slash: slash_policy,
        }
    }

    /// Renumbers the drafts so that the first child of each has the next number. Children still
    /// come after their parents.
    fn number_nodes(&mut self) {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut left = vec![0];
        while let Some(index) = left.pop() {
            order.push(index);
            let children: Vec<u32> = self.nodes[index as usize].static_first().collect();
            left.extend(children.into_iter().rev());
        }
        let mut numbers = vec![0; order.len()];
        let mut drafts = Vec::with_capacity(order.len());
        for (number, index) in (0..).zip(order) {
            numbers[index as usize] = number;
            drafts.push(std::mem::take(&mut self.nodes[index as usize]));
        }
        for child in drafts.iter_mut().flat_map(NodeBuilder::children_mut) {
            *child = numbers[*child as usize];
        }
        self.nodes = drafts;
    }

    fn tree(&self, seed: u64) -> Result<(Tree, Vec<Leaf>), KeyCollision> {
        let mut tree = Tree::new(seed);
        let leaves: Vec<Leaf> =
            self.leaves.iter().map(|routes| self.leaf(routes, &mut tree)).collect();
        // For each draft, the ancestor and stage to fall back to; parents come first.
        let mut fallbacks = vec![(NO_NODE, 0); self.nodes.len()];
        for (index, draft) in self.nodes.iter().enumerate() {
            let own = fallbacks[index];
            for (child, next_stage) in draft.children() {
                let stage = draft.stage_from(next_stage);
                fallbacks[child as usize] = stage.map_or(own, |stage| (index as u32, stage));
            }
            let node = draft.node(index as u32, own, &leaves, &mut tree)?;
            tree.nodes.push(node);
        }
        Ok((tree, leaves))
    }

    fn leaf(&self, routes: &[usize], tree: &mut Tree) -> Leaf {
        let choice = |index: &usize| {
            let route = &self.routes[*index];
            (route.methods, LeafRoute { route: *index as u32, id: route.id })
        };
        let is_guarded = |index: &&usize| self.routes[**index].is_guarded;
        let guarded: Vec<_> = routes.iter().filter(is_guarded).map(choice).collect();
        let others = routes.iter().filter(|index| !is_guarded(index)).map(choice);
        let is_any_guarded = !guarded.is_empty();
        let choices: Vec<_> = guarded.into_iter().chain(others).collect();
        let leaf = tree.add_leaf(&choices);
        if is_any_guarded {
            tree.add_guarded(leaf, choices);
        }
        leaf
    }
}

impl NodeBuilder {
    /// The children, each with the first stage after it.
    fn children(&self) -> impl Iterator<Item = (u32, u16)> {
        let parameter_stage = self.affixed.len() as u16;
        // Only a catch-all can match after an empty segment.
        let fixed = self.static_children.iter().map(move |(text, child)| {
            (*child, if text.is_empty() { parameter_stage + 1 } else { 0 })
        });
        let affixed = self.affixed.iter().enumerate();
        let affixed = affixed.map(|(stage, (_, _, child))| (*child, stage as u16 + 1));
        let parameter = self.parameter.iter().map(move |child| (*child, parameter_stage + 1));
        fixed.chain(affixed).chain(parameter)
    }

    /// The children: those with fixed text first, and the empty text last among them.
    fn static_first(&self) -> impl Iterator<Item = u32> {
        let texts = self.static_children.iter().filter(|(text, _)| !text.is_empty());
        let texts = texts.chain(self.static_children.get_key_value(&Vec::new()));
        let affixed = self.affixed.iter().map(|(_, _, child)| *child);
        texts.map(|(_, child)| *child).chain(affixed).chain(self.parameter)
    }

    fn children_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        let affixed = self.affixed.iter_mut().map(|(_, _, child)| child);
        self.static_children.values_mut().chain(affixed).chain(&mut self.parameter)
    }

    /// The draft's first stage at or after `stage`.
    fn stage_from(&self, stage: u16) -> Option<u16> {
        let parameter_stage = self.affixed.len() as u16;
        let is_parameter = stage == parameter_stage && self.parameter.is_some();
        if stage < parameter_stage || is_parameter {
            Some(stage)
        } else {
            self.catch_all.map(|_| parameter_stage + 1)
        }
    }

    fn node(
        &self,
        index: u32,
        (fallback, fallback_stage): (u32, u16),
        leaves: &[Leaf],
        tree: &mut Tree,
    ) -> Result<Node, KeyCollision> {
        let affix_start = tree.affixes.len() as u32;
        tree.affixes.extend(self.affixed.iter().map(|(prefix, suffix, node)| Affix {
            prefix: prefix.as_slice().into(),
            suffix: suffix.as_slice().into(),
            node: *node,
        }));
        let texts = self.static_children.iter().filter(|(text, _)| !text.is_empty());
        let children: Vec<(&[u8], u32)> =
            texts.map(|(text, child)| (text.as_slice(), *child)).collect();
        debug_assert!(children.len() != 1 || children[0].1 == index + 1);
        let leaf = |leaf: Option<u32>| leaf.map_or(Leaf::default(), |leaf| leaves[leaf as usize]);
        Ok(Node {
            static_children: tree.add_static(&children)?,
            fallthrough: self.fallthrough(index, fallback),
            empty: self.static_children.get(&Vec::new()).copied().unwrap_or(NO_NODE),
            affix_start,
            affix_count: self.affixed.len() as u16,
            depth: self.depth,
            parameters: self.parameters,
            parameter: self.parameter.unwrap_or(NO_NODE),
            catch_all: leaf(self.catch_all),
            leaf: leaf(self.leaf),
            fallback,
            fallback_stage,
        })
    }

    /// Where a segment at this node, number `index`, leads if it is neither empty nor fixed text.
    fn fallthrough(&self, index: u32, fallback: u32) -> Fallthrough {
        match self.parameter {
            _ if !self.affixed.is_empty() => Fallthrough::Walk,
            // The first child is the next node, and those with fixed text come first.
            Some(child) if child == index + 1 => Fallthrough::NextNode,
            Some(_) => Fallthrough::Parameter,
            None if self.catch_all.is_some() => Fallthrough::CatchAll,
            None if fallback == NO_NODE => Fallthrough::NotFound,
            None => Fallthrough::Walk,
        }
    }
}

/// Appends an item and returns its number.
fn add<T>(items: &mut Vec<T>, item: T) -> u32 {
    items.push(item);
    items.len() as u32 - 1
}

/// The full path of a pattern without parameters, in its plain form.
fn static_path(parts: &[SegmentPattern]) -> Option<Vec<u8>> {
    let mut path = Vec::new();
    for part in parts {
        let SegmentPattern::Static(text) = part else { return None };
        path.push(b'/');
        path.extend_from_slice(text);
    }
    Some(path)
}
