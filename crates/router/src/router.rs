//! The router: the lookup, and information about the routes.

use crate::descend::Descent;
use crate::hash::read_short;
use crate::method_set::MethodSet;
use crate::node::{Leaf, LeafRoute, Tree};
use crate::parameters::{ParameterPosition, Parameters, RecordedBounds, Values, name_key};
use crate::slashes::{
    Cursor, Slashes, Slashes64, Slashes128, SlowSlashes, scan_medium, scan_short,
};
use crate::static_paths::StaticPaths;

/// An immutable table of routes. Created by [`RouterBuilder`](crate::RouterBuilder).
#[derive(Clone, Debug)]
pub struct Router {
    pub(crate) static_paths: StaticPaths,
    pub(crate) tree: Tree,
    pub(crate) routes: Box<[Route]>,
    /// For each id, the index of its route in `routes`, or [`NO_NODE`](crate::node::NO_NODE).
    pub(crate) by_id: Box<[u32]>,
    pub(crate) trailing_slash: TrailingSlash,
}

/// The meaning of a slash at the end of a path, except that of the root `/`.
#[doc(alias = "NormalizePath")]
#[doc(alias = "SlashPolicy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrailingSlash {
    /// `/a` and `/a/` are different paths.
    #[default]
    Strict,
    /// Like `Strict`, but [`Router::find`] returns [`Match::Redirect`] if only the path with its
    /// trailing slash added or removed has a route for the method. A path that begins with `//` or
    /// `/\` is never redirected: as a `Location` it would name another host.
    Redirect,
    /// A slash at the end is not part of a path or pattern: `/a` and `/a/` are the same pattern,
    /// and inserting both for one method is an error. The value of a catch-all keeps the slash.
    Ignore,
}

/// A route as inserted.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) id: u32,
    pub(crate) pattern: Box<str>,
    pub(crate) label: Box<str>,
    pub(crate) methods: MethodSet,
    pub(crate) is_guarded: bool,
    pub(crate) names: Box<[Box<str>]>,
    /// The key of each name. Comparing keys first usually avoids comparing strings.
    pub(crate) name_keys: Box<[u64]>,
    pub(crate) parameter_positions: Box<[ParameterPosition]>,
}

impl Route {
    /// The caller's id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The pattern as inserted.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The caller's label; may be empty.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The methods of the route.
    pub fn methods(&self) -> MethodSet {
        self.methods
    }

    /// Returns whether the route handles only requests that the caller of [`Router::find_where`]
    /// accepts.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// The names of the route's parameters, from the left.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// Returns the index of the parameter with this name.
    #[inline]
    pub fn parameter_index(&self, name: &str) -> Option<usize> {
        let key = name_key(name);
        let mut keys = self.name_keys.iter().enumerate();
        let is_same_name = |index: usize| name.len() < 8 || self.is_name(index, name);
        keys.find(|(index, other)| **other == key && is_same_name(*index)).map(|(index, _)| index)
    }

    #[inline(never)]
    fn is_name(&self, index: usize, name: &str) -> bool {
        self.names.get(index).is_some_and(|name_at_index| **name_at_index == *name)
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// A route matches.
    Found {
        /// The caller's id of the route.
        route: u32,
    },
    /// Routes match the path, but none of them has the method.
    MethodNotAllowed {
        /// The methods of these routes.
        allow: MethodSet,
    },
    /// Only with [`TrailingSlash::Redirect`]: no route matches, but one would if the trailing slash
    /// were added or removed.
    Redirect {
        /// Whether to add the slash (`true`) or to remove it (`false`).
        add_slash: bool,
    },
    /// No route matches the path.
    NotFound,
}

impl Router {
    /// Finds the route for a path and a method, and records in `parameters` where the values of its
    /// parameters are. Does not allocate.
    ///
    /// `path` is raw: percent-encoded, without a query. No route matches a path that does not begin
    /// with `/`, and no route has a `method` of 32 or more.
    #[inline]
    pub fn find(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let trimmed = self.trim_slash(path);
        // If the static path has no route for the method, a pattern with parameters may have one.
        if let Some(leaf) = self.static_paths.find(trimmed)
            && let Some(leaf_route) = self.tree.select(leaf, method, &mut 0)
        {
            (parameters.route, parameters.recorded) = (leaf_route.route, RecordedBounds::Values(0));
            return Match::Found { route: leaf_route.id };
        }
        self.search(path, method, parameters)
    }

    /// Like [`Router::find`], but a guarded route matches only if `accept` returns true for the
    /// route and its values. [`Router::find`] itself accepts every guarded route.
    ///
    /// For each pattern that matches the path, its guarded routes are tried first, in the order of
    /// insertion. Rejected routes are ignored: the next route is tried, then the next pattern, and
    /// [`Match::MethodNotAllowed`] does not contain their methods. The same applies to the target
    /// of a redirect.
    pub fn find_where(
        &self,
        path: &[u8],
        method: u8,
        parameters: &mut Parameters,
        mut accept: impl FnMut(&Route, Values<'_, '_>) -> bool,
    ) -> Match {
        let trimmed = self.trim_slash(path);
        if trimmed.first() != Some(&b'/') {
            parameters.clear();
            return Match::NotFound;
        }
        let slashes = SlowSlashes { path: trimmed, slash_added: false };
        let mut allow = 0;
        let pick = |leaf: Leaf, parameters: &mut Parameters| {
            self.find_accepted(leaf, path, method, parameters, &mut allow, &mut accept)
        };
        let start = (0, slashes.seek(0));
        match self.tree.walk(path, &slashes, start, pick, parameters) {
            Some(leaf_route) => {
                (parameters.route, parameters.recorded) =
                    (leaf_route.route, RecordedBounds::Unrecorded);
                Match::Found { route: leaf_route.id }
            }
            None => self.not_found(
                path,
                MethodSet::from_bits(allow),
                parameters,
                |leaf, path, parameters| {
                    self.find_accepted(leaf, path, method, parameters, &mut 0, &mut accept)
                },
            ),
        }
    }

    /// Returns the first accepted route of a leaf that has the method. If there is none, adds the
    /// methods of the accepted routes to `allow`.
    fn find_accepted(
        &self,
        leaf: Leaf,
        path: &[u8],
        method: u8,
        parameters: &mut Parameters,
        allow: &mut u32,
        accept: &mut impl FnMut(&Route, Values<'_, '_>) -> bool,
    ) -> Option<LeafRoute> {
        // Without guarded routes, the leaf's table of methods decides.
        let Some(routes) = self.tree.guarded(leaf) else {
            return self.tree.select(leaf, method, allow);
        };
        for (methods, leaf_route) in routes {
            (parameters.route, parameters.recorded) =
                (leaf_route.route, RecordedBounds::Unrecorded);
            let values = self.values(parameters, path);
            let is_rejected = |route: &Route| route.is_guarded && !accept(route, values);
            if values.route.is_some_and(is_rejected) {
                continue;
            }
            if methods.contains(method) {
                return Some(*leaf_route);
            }
            *allow |= methods.bits();
        }
        None
    }

    /// Returns the methods of all routes that match a path, guarded or not, for a response to
    /// `OPTIONS`. The set is empty if no route matches. The path is matched only as written, even
    /// with [`TrailingSlash::Redirect`].
    pub fn allowed_methods(&self, path: &[u8]) -> MethodSet {
        let mut allow = 0;
        if path.first() == Some(&b'/') {
            let slashes = SlowSlashes { path: self.trim_slash(path), slash_added: false };
            let (start, mut unused_parameters) = ((0, slashes.seek(0)), Parameters::default());
            let pick = |leaf: Leaf, _: &mut Parameters| {
                allow |= leaf.methods;
                None
            };
            self.tree.walk(path, &slashes, start, pick, &mut unused_parameters);
        }
        MethodSet::from_bits(allow)
    }

    /// Returns the values of the parameters that [`Router::find`] recorded for this path; none if
    /// it found no route. For any other path, the values are meaningless or missing.
    #[inline]
    pub fn values<'r, 'p>(&'r self, parameters: &'p Parameters, path: &'p [u8]) -> Values<'r, 'p> {
        Values { route: self.routes.get(parameters.route as usize), parameters, path }
    }

    /// The route with this id.
    pub fn route(&self, id: u32) -> Option<&Route> {
        self.routes.get(*self.by_id.get(id as usize)? as usize)
    }

    /// The pattern of the route with this id.
    pub fn pattern(&self, id: u32) -> Option<&str> {
        self.route(id).map(Route::pattern)
    }

    /// The names of the parameters of the route with this id, from the left; empty if the route
    /// does not exist.
    pub fn names(&self, id: u32) -> &[Box<str>] {
        self.route(id).map_or(&[], Route::names)
    }

    /// Returns the index of a route's parameter by its name. Look the index up once, and pass it to
    /// [`Values::get`] for every request.
    pub fn parameter_index(&self, id: u32, name: &str) -> Option<usize> {
        self.route(id)?.parameter_index(name)
    }

    /// All routes in the order of insertion.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Route> {
        self.routes.iter()
    }

    /// Removes the trailing slash if the policy ignores it and the path is longer than that slash.
    #[inline(always)]
    fn trim_slash<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path {
            [shorter @ .., b'/']
                if self.trailing_slash == TrailingSlash::Ignore && !shorter.is_empty() =>
            {
                shorter
            }
            _ => path,
        }
    }

    /// Finds the route of a path that is not in the table of static paths. A separate function, to
    /// keep the code of that table's lookup small; the rare cases are separate for the same reason.
    #[inline(never)]
    fn search(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let trimmed = self.trim_slash(path);
        if trimmed.len() >= 64 {
            return self.search_medium(path, method, parameters);
        }
        let (bits, has_escape) = scan_short(trimmed);
        // Bit 0 tells whether the path begins with a slash. Reading the first byte before the scan
        // would prevent its vectorization. In an empty path, bit 0 marks the end instead.
        if bits & 1 == 0 || trimmed.is_empty() {
            parameters.clear();
            return Match::NotFound;
        }
        if has_escape {
            return self.search_any(path, method, parameters);
        }
        let padded;
        let mut text = trimmed;
        if trimmed.len() < 8 {
            padded = read_short(trimmed).to_le_bytes();
            text = &padded;
        }
        let slashes = Slashes64 { bits, limit: trimmed.len(), text };
        match self.tree.descend(path, &slashes, method, parameters) {
            Descent::Found(leaf_route) => {
                parameters.route = leaf_route.route;
                Match::Found { route: leaf_route.id }
            }
            Descent::NotFound => self.no_route(path, method, MethodSet::NONE, parameters),
            Descent::Walk(at, cursor) => {
                self.walk(path, &slashes, (at, cursor), method, parameters)
            }
        }
    }

    /// Like [`Router::search`], for a trimmed path of 64 bytes or more.
    #[inline(never)]
    fn search_medium(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let trimmed = self.trim_slash(path);
        if trimmed.len() >= 128 {
            return self.search_any(path, method, parameters);
        }
        let (bits, has_escape) = scan_medium(trimmed);
        if has_escape || bits & 1 == 0 {
            return self.search_any(path, method, parameters);
        }
        let slashes = Slashes128 { bits, text: trimmed };
        self.walk(path, &slashes, (0, slashes.seek(0)), method, parameters)
    }

    /// Like [`Router::search`], for any path.
    #[inline(never)]
    fn search_any(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let trimmed = self.trim_slash(path);
        if trimmed.first() != Some(&b'/') {
            parameters.clear();
            return Match::NotFound;
        }
        let slashes = SlowSlashes { path: trimmed, slash_added: false };
        let result = self.walk(path, &slashes, (0, slashes.seek(0)), method, parameters);
        if matches!(result, Match::Found { .. }) {
            parameters.recorded = RecordedBounds::Unrecorded;
        }
        result
    }

    #[inline(never)]
    fn walk<S: Slashes>(
        &self,
        path: &[u8],
        slashes: &S,
        start: (usize, Cursor<S::Remaining>),
        method: u8,
        parameters: &mut Parameters,
    ) -> Match {
        let mut allow = 0;
        let pick = |leaf, _: &mut Parameters| self.tree.select(leaf, method, &mut allow);
        match self.tree.walk(path, slashes, start, pick, parameters) {
            Some(leaf_route) => {
                parameters.route = leaf_route.route;
                Match::Found { route: leaf_route.id }
            }
            None => self.no_route(path, method, MethodSet::from_bits(allow), parameters),
        }
    }

    /// Like [`Router::not_found`], but accepts every guarded route as a redirect's target.
    #[inline(never)]
    fn no_route(
        &self,
        path: &[u8],
        method: u8,
        allow: MethodSet,
        parameters: &mut Parameters,
    ) -> Match {
        let pick = |leaf, _: &[u8], _: &mut Parameters| self.tree.select(leaf, method, &mut 0);
        self.not_found(path, allow, parameters, pick)
    }

    /// The result for a path and method without a route: a redirect if the policy allows it and
    /// `pick` picks its target, otherwise `MethodNotAllowed` or `NotFound`.
    fn not_found(
        &self,
        path: &[u8],
        allow: MethodSet,
        parameters: &mut Parameters,
        pick: impl FnMut(Leaf, &[u8], &mut Parameters) -> Option<LeafRoute>,
    ) -> Match {
        parameters.clear();
        if self.trailing_slash == TrailingSlash::Redirect
            && let Some(add_slash) = self.slash_redirect(path, pick)
        {
            return Match::Redirect { add_slash };
        }
        if allow.is_empty() { Match::NotFound } else { Match::MethodNotAllowed { allow } }
    }

    /// Returns whether a trailing slash must be added (`Some(true)`) or removed (`Some(false)`) for
    /// a route to match, or `None` if no route would match either.
    fn slash_redirect(
        &self,
        path: &[u8],
        mut pick: impl FnMut(Leaf, &[u8], &mut Parameters) -> Option<LeafRoute>,
    ) -> Option<bool> {
        let is_network_path = matches!(path, [b'/', b'/' | b'\\', ..]);
        if is_network_path || path.len() < 2 {
            return None;
        }
        let (path, add_slash) = match path {
            [shorter @ .., b'/'] => (shorter, false),
            _ => (path, true),
        };
        let slashes = SlowSlashes { path, slash_added: add_slash };
        let mut unused_parameters = Parameters::default();
        let start = (0, slashes.seek(0));
        let pick = |leaf, parameters: &mut Parameters| pick(leaf, path, parameters);
        self.tree.walk(path, &slashes, start, pick, &mut unused_parameters).map(|_| add_slash)
    }
}
