//! Builds a router from patterns, or reports everything that is wrong with them.

use std::collections::BTreeMap;

use crate::ROUTE_ID_MAX;
use crate::error::{RouteDescription, RouteError, RouterBuildError};
use crate::method_set::MethodSet;
use crate::parameters::{ParameterPosition, name_key};
use crate::pattern::{Pattern, SegmentPattern};
use crate::router::{Route, Router, TrailingSlash};
use crate::tree_builder::TreeBuilder;

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
    /// If several patterns match a path, the leftmost segment in which they differ decides: the
    /// kind that is higher in this table wins. Of two parameters with fixed text, the one with more
    /// fixed text wins, then the one with more of it before the parameter. The order of insertion
    /// never matters. If the chosen pattern has no route for the method, or does not match the rest
    /// of the path, the next pattern is tried.
    ///
    /// `{{` and `}}` stand for literal braces. Fixed text is compared percent-decoded, but `%2F` is
    /// never a slash and `%25` never starts an escape: `/café` matches `/caf%C3%A9`. Matching is
    /// case-sensitive; `.` and `..` are ordinary text. A catch-all does not match an empty rest: to
    /// match `/files/` in addition to `/files/{*path}`, insert `/files/` too.
    pub fn insert(&mut self, pattern: &str, methods: MethodSet, id: u32) -> &mut Self {
        self.insert_labelled(pattern, methods, id, "")
    }

    /// Like [`RouterBuilder::insert`], with a label that is shown in errors and in the route table,
    /// such as the position in the source.
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
    /// Returns every error in the table: malformed patterns, routes of the same shape for the same
    /// method, ids that are used twice or too large, and routes without methods.
    pub fn build(&self) -> Result<Router, RouterBuildError> {
        let mut tree = TreeBuilder::new();
        let mut errors = Vec::new();
        let mut by_id = BTreeMap::new();
        for (index, route) in self.routes.iter().enumerate() {
            if route.id > ROUTE_ID_MAX {
                errors.push(RouteError::IdTooLarge { route: route.description() });
            }
            if let Some(first) = by_id.insert(route.id, route) {
                let (first, second) = (first.description(), route.description());
                errors.push(RouteError::DuplicateId { first, second });
            }
            if route.methods.is_empty() {
                errors.push(RouteError::NoMethods { route: route.description() });
            }
            let mut pattern = match Pattern::parse(&route.pattern) {
                Ok(pattern) => pattern,
                Err(error) => {
                    errors.push(RouteError::InvalidPattern { route: route.description(), error });
                    continue;
                }
            };
            if self.trailing_slash == TrailingSlash::Ignore {
                pattern.drop_last_slash();
            }
            let leaf = tree.leaf_or_insert(&pattern.parts);
            let entries = &mut tree.leaves[leaf as usize];
            for other_index in entries.iter() {
                let other = &self.routes[*other_index];
                let methods = other.methods.intersection(route.methods);
                if !methods.is_empty() && !other.is_guarded && !route.is_guarded {
                    debug_assert!(*other_index < index);
                    let (first, second) = (other.description(), route.description());
                    errors.push(RouteError::Duplicate { first, second, methods });
                }
            }
            entries.push(index);
            tree.routes.push(build_route(route, pattern));
        }
        if !errors.is_empty() {
            return Err(RouterBuildError { errors });
        }
        Ok(tree.into_router(self.trailing_slash))
    }
}

fn build_route(inserted: &InsertedRoute, pattern: Pattern) -> Route {
    let positions = pattern.parts.into_iter().enumerate().filter_map(|(segment, part)| {
        let (prefix, suffix, is_catch_all) = match part {
            SegmentPattern::Static(_) => return None,
            SegmentPattern::Affixed { prefix, suffix } => (prefix, suffix, false),
            SegmentPattern::Parameter => (Vec::new(), Vec::new(), false),
            SegmentPattern::CatchAll => (Vec::new(), Vec::new(), true),
        };
        Some(ParameterPosition {
            segment: segment as u32,
            is_catch_all,
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
        parameter_positions: positions.collect(),
        name_keys: pattern.names.iter().map(|name| name_key(name)).collect(),
        names: pattern.names.into(),
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
