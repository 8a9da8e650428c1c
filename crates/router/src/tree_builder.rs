//! Builds the tree of a router from the shapes of its patterns.

use std::collections::BTreeMap;

use crate::node::{Affix, Fallthrough, KeyCollision, Leaf, LeafRoute, NO_NODE, Node, Tree};
use crate::pattern::SegmentPattern;
use crate::router::{Route, Router, TrailingSlash};
use crate::static_paths::StaticPaths;

/// The tree under construction. A child's index is greater than its parent's.
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
    /// The number of parameters before this node.
    parameters: u8,
}

impl TreeBuilder {
    /// Creates a tree of one node, the root.
    pub(crate) fn new() -> Self {
        Self { nodes: vec![NodeBuilder::default()], ..Self::default() }
    }

    /// Returns the leaf for this shape. Creates it if it does not exist.
    pub(crate) fn leaf_or_insert(&mut self, parts: &[SegmentPattern]) -> u32 {
        let mut node = 0;
        for part in parts {
            if *part == SegmentPattern::CatchAll {
                let leaf = &mut self.nodes[node as usize].catch_all;
                return *leaf.get_or_insert_with(|| push_index(&mut self.leaves, Vec::new()));
            }
            node = self.child_or_insert(node, part);
        }
        if let Some(leaf) = self.nodes[node as usize].leaf {
            return leaf;
        }
        let leaf = push_index(&mut self.leaves, Vec::new());
        self.nodes[node as usize].leaf = Some(leaf);
        if let Some(path) = static_path(parts) {
            self.static_paths.push((path, leaf));
        }
        leaf
    }

    /// Returns the child of a node for a part that is not a catch-all. Creates it if it does not
    /// exist.
    fn child_or_insert(&mut self, parent: u32, part: &SegmentPattern) -> u32 {
        let new_index = self.nodes.len() as u32;
        let node = &mut self.nodes[parent as usize];
        let child = match part {
            SegmentPattern::Static(text) => {
                *node.static_children.entry(text.clone()).or_insert(new_index)
            }
            SegmentPattern::Parameter => *node.parameter.get_or_insert(new_index),
            SegmentPattern::Affixed { prefix, suffix } => {
                let existing = node
                    .affixed
                    .iter()
                    .find(|(other_prefix, other_suffix, _)| {
                        other_prefix == prefix && other_suffix == suffix
                    })
                    .map(|(_, _, child)| *child);
                existing.unwrap_or_else(|| {
                    node.affixed.push((prefix.clone(), suffix.clone(), new_index));
                    new_index
                })
            }
            SegmentPattern::CatchAll => unreachable!("a catch-all has no child"),
        };
        if child == new_index {
            let depth = node.depth + 1;
            let parameters = node.parameters + u8::from(!matches!(part, SegmentPattern::Static(_)));
            self.nodes.push(NodeBuilder { depth, parameters, ..NodeBuilder::default() });
        }
        child
    }

    pub(crate) fn into_router(mut self, slash_policy: TrailingSlash) -> Router {
        for node in &mut self.nodes {
            // The longest fixed text first, then the longest prefix. The texts themselves are
            // compared last, only so that the order of insertion has no effect.
            node.affixed.sort_by(|(prefix, suffix, _), (other_prefix, other_suffix, _)| {
                let length = |prefix: &Vec<u8>, suffix: &Vec<u8>| prefix.len() + suffix.len();
                length(other_prefix, other_suffix)
                    .cmp(&length(prefix, suffix))
                    .then(other_prefix.len().cmp(&prefix.len()))
                    .then_with(|| (prefix, suffix).cmp(&(other_prefix, other_suffix)))
            });
        }
        self.sort_nodes();
        let (tree, leaves) = (0..)
            .find_map(|seed| self.build_tree(seed).ok())
            .expect("some seed yields distinct keys in each table");
        let ids = self.routes.iter().map(|route| route.id);
        let mut by_id = vec![NO_NODE; ids.clone().max().map_or(0, |id| id as usize + 1)];
        for (index, id) in ids.enumerate() {
            by_id[id as usize] = index as u32;
        }
        let leaf_of = |(path, leaf): &(Vec<u8>, u32)| (path.clone(), leaves[*leaf as usize]);
        let paths: Vec<_> = self.static_paths.iter().map(leaf_of).collect();
        let static_paths = StaticPaths::new(&paths);
        Router {
            static_paths,
            tree,
            routes: self.routes.into(),
            by_id: by_id.into(),
            trailing_slash: slash_policy,
        }
    }

    /// Sorts the nodes in depth-first order, so that the first child of each node directly follows
    /// it. Children still come after their parents.
    fn sort_nodes(&mut self) {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut stack = vec![0];
        while let Some(index) = stack.pop() {
            order.push(index);
            let children: Vec<u32> = self.nodes[index as usize].children_in_order().collect();
            stack.extend(children.into_iter().rev());
        }
        let mut new_indices = vec![0; order.len()];
        let mut nodes = Vec::with_capacity(order.len());
        for (new_index, index) in (0..).zip(order) {
            new_indices[index as usize] = new_index;
            nodes.push(std::mem::take(&mut self.nodes[index as usize]));
        }
        for child in nodes.iter_mut().flat_map(NodeBuilder::children_mut) {
            *child = new_indices[*child as usize];
        }
        self.nodes = nodes;
    }

    fn build_tree(&self, seed: u64) -> Result<(Tree, Vec<Leaf>), KeyCollision> {
        let mut tree = Tree::new(seed);
        let leaves: Vec<Leaf> =
            self.leaves.iter().map(|routes| self.build_leaf(routes, &mut tree)).collect();
        // For each node, the ancestor and stage to fall back to; parents come first.
        let mut fallbacks = vec![(NO_NODE, 0); self.nodes.len()];
        for (index, builder) in self.nodes.iter().enumerate() {
            let fallback = fallbacks[index];
            for (child, next_stage) in builder.children() {
                let stage = builder.next_stage_from(next_stage);
                fallbacks[child as usize] = stage.map_or(fallback, |stage| (index as u32, stage));
            }
            let node = builder.build_node(index as u32, fallback, &leaves, &mut tree)?;
            tree.nodes.push(node);
        }
        Ok((tree, leaves))
    }

    fn build_leaf(&self, routes: &[usize], tree: &mut Tree) -> Leaf {
        let leaf_route = |index: &usize| {
            let route = &self.routes[*index];
            (route.methods, LeafRoute { route: *index as u32, id: route.id })
        };
        let is_guarded = |index: &&usize| self.routes[**index].is_guarded;
        let guarded: Vec<_> = routes.iter().filter(is_guarded).map(leaf_route).collect();
        let unguarded = routes.iter().filter(|index| !is_guarded(index)).map(leaf_route);
        let has_guarded = !guarded.is_empty();
        let leaf_routes: Vec<_> = guarded.into_iter().chain(unguarded).collect();
        let leaf = tree.add_leaf(&leaf_routes);
        if has_guarded {
            tree.add_guarded(leaf, leaf_routes);
        }
        leaf
    }
}

impl NodeBuilder {
    /// The children, each with the stage to try next if nothing below the child matches.
    fn children(&self) -> impl Iterator<Item = (u32, u16)> {
        let parameter_stage = self.affixed.len() as u16;
        // Parameters do not match an empty segment, so only the catch-all is left to try.
        let fixed = self.static_children.iter().map(move |(text, child)| {
            (*child, if text.is_empty() { parameter_stage + 1 } else { 0 })
        });
        let affixed = self.affixed.iter().enumerate();
        let affixed = affixed.map(|(stage, (_, _, child))| (*child, stage as u16 + 1));
        let parameter = self.parameter.iter().map(move |child| (*child, parameter_stage + 1));
        fixed.chain(affixed).chain(parameter)
    }

    /// The children: non-empty fixed texts, the empty text, affixed parameters, the parameter.
    fn children_in_order(&self) -> impl Iterator<Item = u32> {
        let texts = self.static_children.iter().filter(|(text, _)| !text.is_empty());
        let texts = texts.chain(self.static_children.get_key_value(&Vec::new()));
        let affixed = self.affixed.iter().map(|(_, _, child)| *child);
        texts.map(|(_, child)| *child).chain(affixed).chain(self.parameter)
    }

    fn children_mut(&mut self) -> impl Iterator<Item = &mut u32> {
        let affixed = self.affixed.iter_mut().map(|(_, _, child)| child);
        self.static_children.values_mut().chain(affixed).chain(&mut self.parameter)
    }

    /// The first stage at or after `stage` that the node has.
    fn next_stage_from(&self, stage: u16) -> Option<u16> {
        let parameter_stage = self.affixed.len() as u16;
        let is_parameter = stage == parameter_stage && self.parameter.is_some();
        if stage < parameter_stage || is_parameter {
            Some(stage)
        } else {
            self.catch_all.map(|_| parameter_stage + 1)
        }
    }

    fn build_node(
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
            static_children: tree.add_static_children(&children)?,
            fallthrough: self.build_fallthrough(index, fallback),
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

    /// The next step at this node, whose index is `index`, for a non-empty segment that is not the
    /// fixed text of a child.
    fn build_fallthrough(&self, index: u32, fallback: u32) -> Fallthrough {
        match self.parameter {
            _ if !self.affixed.is_empty() => Fallthrough::Walk,
            // Children with fixed text come first, so a parameter's child that directly follows its
            // parent means that there are none.
            Some(child) if child == index + 1 => Fallthrough::NextNode,
            Some(_) => Fallthrough::Parameter,
            None if self.catch_all.is_some() => Fallthrough::CatchAll,
            None if fallback == NO_NODE => Fallthrough::NotFound,
            None => Fallthrough::Walk,
        }
    }
}

/// Appends an item and returns its index.
fn push_index<T>(items: &mut Vec<T>, item: T) -> u32 {
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
