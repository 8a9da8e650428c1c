//! Builds a router from patterns, or reports everything that is wrong with them.

use std::collections::BTreeMap;

use crate::ROUTE_ID_MAX;
use crate::error::{RouteDescription, RouteError, RouterBuildError};
use crate::method_set::MethodSet;
use crate::node::{Affix, Fallthrough, KeyCollision, Leaf, LeafRoute, NO_NODE, Node, Tree};
use crate::parameters::{ParameterPosition, name_key};
use crate::pattern::{Pattern, SegmentPattern};
use crate::router::{Route, Router};
use crate::static_paths::StaticPaths;

/// The meaning of a slash at the end of a path. The root, `/`, always has it.
#[doc(alias = "NormalizePath")]
#[doc(alias = "SlashPolicy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrailingSlash {
    /// `/a` and `/a/` are different paths.
    #[default]
    Strict,
    /// Like strict, but if a path has no route for the method and its other form does,
    /// [`Router::find`] returns [`Match::Redirect`](crate::Match::Redirect). A path that begins
    /// with `//` or `/\` is never redirected: as a `Location` it would name another host.
    Redirect,
    /// A slash at the end is not part of a path or pattern: `/a` and `/a/` are the same pattern,
    /// and inserting both for one method is an error. The value of a catch-all keeps the slash.
    Ignore,
}

/// Collects routes for a [`Router`].
///
/// ```
/// use peregrine_router::{RouterBuilder, Match, MethodSet, Parameters};
/// const GET: u8 = 0;
///
/// let mut builder = RouterBuilder::new();
/// builder.insert("/users/{id}", MethodSet::single(GET), 7);
/// let router = builder.build()?;
///
/// let mut parameters = Parameters::default();
/// let path = b"/users/42";
/// assert_eq!(router.find(path, GET, &mut parameters), Match::Found { route: 7 });
/// assert_eq!(router.values(&parameters, path).by_name("id"), Some(&b"42"[..]));
/// # Ok::<(), peregrine_router::RouterBuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RouterBuilder {
    routes: Vec<InsertedRoute>,
    trailing_slash: TrailingSlash,
}

#[derive(Clone, Debug)]
struct InsertedRoute {
    pattern: String,
    methods: MethodSet,
    id: u32,
    label: String,
    is_guarded: bool,
}

impl InsertedRoute {
    fn description(&self) -> RouteDescription {
        RouteDescription { pattern: self.pattern.clone(), id: self.id, label: self.label.clone() }
    }
}

impl RouterBuilder {
    /// Creates a builder without routes and with [`TrailingSlash::Strict`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the meaning of a slash at the end of a path.
    pub fn trailing_slash(&mut self, policy: TrailingSlash) -> &mut Self {
        self.trailing_slash = policy;
        self
    }

    /// Adds a route: a pattern, its methods, and an id that [`Router::find`] returns. Ids are
    /// unique and at most [`ROUTE_ID_MAX`]. [`RouterBuilder::build`] reports errors in the route.
    ///
    /// A pattern begins with `/`; each part between slashes is one of these:
    ///
    /// | segment | matches |
    /// |---|---|
    /// | `text` | this text, in any spelling with escapes; the empty text too |
    /// | `{name}.json`, `v{name}`, `a-{name}-b` | one or more bytes between the fixed texts |
    /// | `{name}` | one segment that is not empty |
    /// | `{*name}` | the rest of the path, slashes included, if it has at least one byte |
    ///
    /// If several patterns match a path, the first segment (from the left) in which they differ
    /// decides, in the order of this table. Of two affixed parameters, the one with more fixed text
    /// wins, then the one with the longer text before the parameter. The order of insertion never
    /// matters. If the chosen pattern does not have the method, or does not match the rest of the
    /// path, the next one is tried.
    ///
    /// `{{` and `}}` stand for literal braces. Fixed text is compared percent-decoded, but `%2F` is
    /// never a slash and `%25` never starts an escape: `/café` matches `/caf%C3%A9`. Matching is
    /// case-sensitive; `.` and `..` are ordinary text. A catch-all does not match an empty rest: to
    /// match `/files/` in addition to `/files/{*path}`, add that pattern.
    pub fn insert(&mut self, pattern: &str, methods: MethodSet, id: u32) -> &mut Self {
        self.insert_labelled(pattern, methods, id, "")
    }

    /// Like [`RouterBuilder::insert`], with a label that errors and the route table contain, such
    /// as the position in the source.
    pub fn insert_labelled(
        &mut self,
        pattern: &str,
        methods: MethodSet,
        id: u32,
        label: &str,
    ) -> &mut Self {
        self.add(pattern, methods, id, label, false)
    }

    /// Like [`RouterBuilder::insert_labelled`], for a route that handles only some requests for its
    /// pattern: those accepted by the caller of [`Router::find_where`]. Any number of guarded
    /// routes may have the same shape and method. They are tried in the order of insertion, before
    /// the route without a guard.
    pub fn insert_guarded(
        &mut self,
        pattern: &str,
        methods: MethodSet,
        id: u32,
        label: &str,
    ) -> &mut Self {
        self.add(pattern, methods, id, label, true)
    }

    fn add(
        &mut self,
        pattern: &str,
        methods: MethodSet,
        id: u32,
        label: &str,
        is_guarded: bool,
    ) -> &mut Self {
        let (pattern, label) = (pattern.to_owned(), label.to_owned());
        self.routes.push(InsertedRoute { pattern, methods, id, label, is_guarded });
        self
    }

    /// Builds the router.
    ///
    /// # Errors
    ///
    /// All errors in the routes: malformed patterns, routes of the same shape for the same method,
    /// ids that are used twice or too large, routes without methods.
    pub fn build(&self) -> Result<Router, RouterBuildError> {
        let mut plan =
            TreeBuilder { nodes: vec![NodeBuilder::default()], ..TreeBuilder::default() };
        let mut problems = Vec::new();
        let mut by_id = BTreeMap::new();
        for (index, route) in self.routes.iter().enumerate() {
            if route.id > ROUTE_ID_MAX {
                problems.push(RouteError::IdTooLarge { route: route.description() });
            }
            if let Some(first) = by_id.insert(route.id, route) {
                let (first, second) = (first.description(), route.description());
                problems.push(RouteError::DuplicateId { first, second });
            }
            if route.methods.is_empty() {
                problems.push(RouteError::NoMethods { route: route.description() });
            }
            let mut pattern = match Pattern::parse(&route.pattern) {
                Ok(pattern) => pattern,
                Err(error) => {
                    problems.push(RouteError::InvalidPattern { route: route.description(), error });
                    continue;
                }
            };
            if self.trailing_slash == TrailingSlash::Ignore {
                pattern.drop_last_slash();
            }
            let leaf = plan.leaf_for(&pattern.parts);
            let entries = &mut plan.leaves[leaf as usize];
            for (known, other) in entries.iter().map(|known| (known, &self.routes[*known])) {
                let methods = other.methods.intersection(route.methods);
                if !methods.is_empty() && !other.is_guarded && !route.is_guarded {
                    debug_assert!(*known < index);
                    let (first, second) = (other.description(), route.description());
                    problems.push(RouteError::Duplicate { first, second, methods });
                }
            }
            entries.push(index);
            plan.routes.push(self.route(route, pattern));
        }
        if !problems.is_empty() {
            return Err(RouterBuildError { errors: problems });
        }
        Ok(plan.into_router(self.trailing_slash))
    }

    fn route(&self, inserted: &InsertedRoute, pattern: Pattern) -> Route {
        let slots = pattern.parts.into_iter().enumerate().filter_map(|(segment, part)| {
            let (prefix, suffix, rest) = match part {
                SegmentPattern::Static(_) => return None,
                SegmentPattern::Affixed { prefix, suffix } => (prefix, suffix, false),
                SegmentPattern::Parameter => (Vec::new(), Vec::new(), false),
                SegmentPattern::CatchAll => (Vec::new(), Vec::new(), true),
            };
            Some(ParameterPosition {
                segment: segment as u32,
                is_catch_all: rest,
                prefix: prefix.into(),
                suffix: suffix.into(),
            })
        });
        Route {
            id: inserted.id,
            pattern: inserted.pattern.as_str().into(),
            label: inserted.label.as_str().into(),
            methods: inserted.methods,
            is_guarded: inserted.is_guarded,
            slots: slots.collect(),
            name_keys: pattern.names.iter().map(|name| name_key(name)).collect(),
            names: pattern.names.into(),
        }
    }
}

impl Pattern {
    /// Removes the slash at the end, unless it is the whole pattern.
    pub(crate) fn drop_last_slash(&mut self) {
        if self.parts.len() > 1 && self.parts.last() == Some(&SegmentPattern::Static(Vec::new())) {
            self.parts.pop();
        }
    }
}

/// The tree under construction. A child's number is greater than its parent's.
#[derive(Default)]
struct TreeBuilder {
    nodes: Vec<NodeBuilder>,
    /// For each leaf, its routes in the order of insertion.
    leaves: Vec<Vec<usize>>,
    /// The full static paths and their leaves.
    static_paths: Vec<(Vec<u8>, u32)>,
    routes: Vec<Route>,
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
    /// Returns the leaf for this shape, created if needed.
    fn leaf_for(&mut self, parts: &[SegmentPattern]) -> u32 {
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

    fn into_router(mut self, slash_policy: TrailingSlash) -> Router {
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
