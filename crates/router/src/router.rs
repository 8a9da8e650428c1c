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
    /// The index in `routes` of each id, or [`NONE`](crate::node::NONE).
    pub(crate) by_id: Box<[u32]>,
    pub(crate) trailing_slash: TrailingSlash,
}

/// The meaning of a slash at the end of a path. The root, `/`, always has it.
#[doc(alias = "NormalizePath")]
#[doc(alias = "SlashPolicy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrailingSlash {
    /// `/a` and `/a/` are different paths.
    #[default]
    Strict,
    /// Like strict, but if a path has no route for the method and its other form does,
    /// [`Router::find`] returns [`Match::Redirect`]. A path that begins with `//` or `/\` is never
    /// redirected: as a `Location` it would name another host.
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
    /// A key for each name, which usually decides a lookup.
    pub(crate) name_keys: Box<[u64]>,
    pub(crate) slots: Box<[ParameterPosition]>,
}

impl Route {
    /// The id given by the caller.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The pattern as inserted.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The label given by the caller; may be empty.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The methods of the route.
    pub fn methods(&self) -> MethodSet {
        self.methods
    }

    /// Returns whether it handles only requests accepted by the caller of [`Router::find_where`].
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// The names of the route's parameters, from the left.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }

    /// The number of a parameter by its name.
    #[inline]
    pub fn parameter_index(&self, name: &str) -> Option<usize> {
        let key = name_key(name);
        let mut keys = self.name_keys.iter().enumerate();
        let same = |index: usize| name.len() < 8 || self.is_name(index, name);
        keys.find(|(index, known)| **known == key && same(*index)).map(|(index, _)| index)
    }

    #[inline(never)]
    fn is_name(&self, index: usize, name: &str) -> bool {
        self.names.get(index).is_some_and(|known| **known == *name)
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// A route matches.
    Found {
        /// The id given by the caller.
        route: u32,
    },
    /// Routes match the path, but none of them has the method.
    MethodNotAllowed {
        /// The methods that they have.
        allow: MethodSet,
    },
    /// Only with [`TrailingSlash::Redirect`]: no route matches, but one does if a slash at the end
    /// is added or removed.
    Redirect {
        /// Whether the slash is to be added; otherwise it is to be removed.
        add_slash: bool,
    },
    /// No route matches the path.
    NotFound,
}

impl Router {
    /// Finds the route for a path and a method, and records in `parameters` where the values of its
    /// parameters are. Does not allocate.
    ///
    /// `path` is raw: percent-encoded, without a query. A path that does not begin with `/` has no
    /// route, and neither has a `method` of 32 or more.
    #[inline]
    pub fn find(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let view = self.view(path);
        // If the static path lacks the method, the walk checks all patterns.
        if let Some(leaf) = self.static_paths.find(view)
            && let Some(choice) = self.tree.select(leaf, method, &mut 0)
        {
            (parameters.route, parameters.recorded) = (choice.route, RecordedBounds::Values(0));
            return Match::Found { route: choice.id };
        }
        self.search(path, method, parameters)
    }

    /// Like [`Router::find`], but a guarded route counts only if `accept` returns true for the
    /// route and its values. [`Router::find`] itself accepts every guarded route.
    ///
    /// For each pattern that matches the path, its guarded routes are tried first, in the order of
    /// insertion. Routes that are not accepted are ignored: the next route is tried, then the next
    /// pattern, and [`Match::MethodNotAllowed`] does not contain their methods. The same applies to
    /// the target of a redirect.
    pub fn find_where(
        &self,
        path: &[u8],
        method: u8,
        parameters: &mut Parameters,
        mut accept: impl FnMut(&Route, Values<'_, '_>) -> bool,
    ) -> Match {
        let view = self.view(path);
        if view.first() != Some(&b'/') {
            parameters.clear();
            return Match::NotFound;
        }
        let slashes = SlowSlashes { path: view, slash_added: false };
        let mut allow = 0;
        let pick = |leaf: Leaf, parameters: &mut Parameters| {
            self.find_guarded(leaf, path, method, parameters, &mut allow, &mut accept)
        };
        let start = (0, slashes.seek(0));
        match self.tree.walk(path, &slashes, start, pick, parameters) {
            Some(choice) => {
                (parameters.route, parameters.recorded) =
                    (choice.route, RecordedBounds::Unrecorded);
                Match::Found { route: choice.id }
            }
            None => self.not_found(
                path,
                MethodSet::from_bits(allow),
                parameters,
                |leaf, path, parameters| {
                    self.find_guarded(leaf, path, method, parameters, &mut 0, &mut accept)
                },
            ),
        }
    }

    /// Returns the first accepted route of a leaf that has the method. If there is none, adds the
    /// methods of the accepted routes to `allow`.
    fn find_guarded(
        &self,
        leaf: Leaf,
        path: &[u8],
        method: u8,
        parameters: &mut Parameters,
        allow: &mut u32,
        accept: &mut impl FnMut(&Route, Values<'_, '_>) -> bool,
    ) -> Option<LeafRoute> {
        let Some(routes) = self.tree.guarded(leaf) else {
            return self.tree.select(leaf, method, allow);
        };
        for (methods, choice) in routes {
            (parameters.route, parameters.recorded) = (choice.route, RecordedBounds::Unrecorded);
            let values = self.values(parameters, path);
            let is_out = |route: &Route| route.is_guarded && !accept(route, values);
            if values.route.is_some_and(is_out) {
                continue;
            }
            if methods.contains(method) {
                return Some(*choice);
            }
            *allow |= methods.bits();
        }
        None
    }

    /// The methods of all routes that match a path, guarded or not, for a response to OPTIONS;
    /// empty if it has no route. With [`TrailingSlash::Redirect`] only the path as written counts.
    pub fn allowed_methods(&self, path: &[u8]) -> MethodSet {
        let mut allow = 0;
        if path.first() == Some(&b'/') {
            let slashes = SlowSlashes { path: self.view(path), slash_added: false };
            let (start, mut unused) = ((0, slashes.seek(0)), Parameters::default());
            let pick = |leaf: Leaf, _: &mut Parameters| {
                allow |= leaf.methods;
                None
            };
            self.tree.walk(path, &slashes, start, pick, &mut unused);
        }
        MethodSet::from_bits(allow)
    }

    /// The values of the parameters that [`Router::find`] recorded for this path. Empty if it found
    /// no route. With any other path, the values are meaningless or missing.
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

    /// The number of a parameter by its name. Look it up once, and use it with [`Values::get`] for
    /// every request.
    pub fn parameter_index(&self, id: u32, name: &str) -> Option<usize> {
        self.route(id)?.parameter_index(name)
    }

    /// All routes in the order of insertion.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Route> {
        self.routes.iter()
    }

    /// The path without a trailing slash that is ignored.
    #[inline(always)]
    fn view<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path {
            [shorter @ .., b'/']
                if self.trailing_slash == TrailingSlash::Ignore && !shorter.is_empty() =>
            {
                shorter
            }
            _ => path,
        }
    }

    /// Finds a path that is not in the table of static paths. A separate function, to keep the
    /// lookup in that table small; for the same reason all rare cases are in separate functions.
    #[inline(never)]
    fn search(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let view = self.view(path);
        if view.len() >= 64 {
            return self.search_medium(path, method, parameters);
        }
        let (bits, escapes) = scan_short(view);
        // The slashes show whether the path begins with one; looking at its first byte earlier
        // would spoil the comparison of many bytes at once. An empty path has only its end.
        if bits & 1 == 0 || view.is_empty() {
            parameters.clear();
            return Match::NotFound;
        }
        if escapes {
            return self.search_any(path, method, parameters);
        }
        let padded;
        let mut text = view;
        if view.len() < 8 {
            padded = read_short(view).to_le_bytes();
            text = &padded;
        }
        let slashes = Slashes64 { bits, limit: view.len(), text };
        match self.tree.descend(path, &slashes, method, parameters) {
            Descent::Found(choice) => {
                parameters.route = choice.route;
                Match::Found { route: choice.id }
            }
            Descent::NotFound => self.unguarded(path, method, MethodSet::NONE, parameters),
            Descent::Walk(at, cursor) => {
                self.walk(path, &slashes, (at, cursor), method, parameters)
            }
        }
    }

    /// Like [`Router::search`], for a view of 64 bytes or more.
    #[inline(never)]
    fn search_medium(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let view = self.view(path);
        if view.len() >= 128 {
            return self.search_any(path, method, parameters);
        }
        let (bits, escapes) = scan_medium(view);
        if escapes || bits & 1 == 0 {
            return self.search_any(path, method, parameters);
        }
        let slashes = Slashes128 { bits, text: view };
        self.walk(path, &slashes, (0, slashes.seek(0)), method, parameters)
    }

    /// Like [`Router::search`], for any view.
    #[inline(never)]
    fn search_any(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let view = self.view(path);
        if view.first() != Some(&b'/') {
            parameters.clear();
            return Match::NotFound;
        }
        let slashes = SlowSlashes { path: view, slash_added: false };
        let found = self.walk(path, &slashes, (0, slashes.seek(0)), method, parameters);
        if matches!(found, Match::Found { .. }) {
            parameters.recorded = RecordedBounds::Unrecorded;
        }
        found
    }

    #[inline(never)]
    fn walk<S: Slashes>(
        &self,
        path: &[u8],
        slashes: &S,
        place: (usize, Cursor<S::Remaining>),
        method: u8,
        parameters: &mut Parameters,
    ) -> Match {
        let mut allow = 0;
        let pick = |leaf, _: &mut Parameters| self.tree.select(leaf, method, &mut allow);
        match self.tree.walk(path, slashes, place, pick, parameters) {
            Some(choice) => {
                parameters.route = choice.route;
                Match::Found { route: choice.id }
            }
            None => self.unguarded(path, method, MethodSet::from_bits(allow), parameters),
        }
    }

    /// Like [`Router::not_found`], if every route counts.
    #[inline(never)]
    fn unguarded(
        &self,
        path: &[u8],
        method: u8,
        allow: MethodSet,
        parameters: &mut Parameters,
    ) -> Match {
        let pick = |leaf, _: &[u8], _: &mut Parameters| self.tree.select(leaf, method, &mut 0);
        self.not_found(path, allow, parameters, pick)
    }

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

    /// The change of the slash (added: true, removed: false) that gives the path a route, if there
    /// is one.
    fn slash_redirect(
        &self,
        path: &[u8],
        mut pick: impl FnMut(Leaf, &[u8], &mut Parameters) -> Option<LeafRoute>,
    ) -> Option<bool> {
        let names_a_host = matches!(path, [b'/', b'/' | b'\\', ..]);
        if names_a_host || path.len() < 2 {
            return None;
        }
        let (path, add_slash) = match path {
            [shorter @ .., b'/'] => (shorter, false),
            _ => (path, true),
        };
        let slashes = SlowSlashes { path, slash_added: add_slash };
        let mut unused = Parameters::default();
        let start = (0, slashes.seek(0));
        let pick = |leaf, parameters: &mut Parameters| pick(leaf, path, parameters);
        self.tree.walk(path, &slashes, start, pick, &mut unused).map(|_| add_slash)
    }
}
