//! The router: one lookup, and what there is to know about the routes.

use crate::builder::SlashPolicy;
use crate::methods::Methods;
use crate::node::{Choice, NONE, Tree};
use crate::parameters::{Noted, Parameters, Slot, Values};
use crate::slashes::{Searched, Slashes64, Slashes128, scan_medium, scan_short};
use crate::statics::Statics;
use crate::word::tail_word;

/// An immutable table of routes. [`Builder`](crate::Builder) makes it.
#[derive(Clone, Debug)]
pub struct Router {
    pub(crate) statics: Statics,
    pub(crate) tree: Tree,
    pub(crate) routes: Box<[Route]>,
    /// For each id the place in `routes`, or [`NONE`].
    pub(crate) by_id: Box<[u32]>,
    pub(crate) slash_policy: SlashPolicy,
}

/// One route as it was inserted.
#[derive(Clone, Debug)]
pub struct Route {
    pub(crate) id: u32,
    pub(crate) pattern: Box<str>,
    pub(crate) label: Box<str>,
    pub(crate) methods: Methods,
    pub(crate) names: Box<[Box<str>]>,
    pub(crate) slots: Box<[Slot]>,
}

impl Route {
    /// The id that the caller gave.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The pattern as it was inserted.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The label that the caller gave; empty if none.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The methods that the route answers.
    pub fn methods(&self) -> Methods {
        self.methods
    }

    /// The names of its parameters, from the left.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }
}

/// What a path and a method lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// A route answers.
    Found {
        /// The id that the caller gave it.
        route: u32,
    },
    /// Routes match the path, but none of them answers the method.
    MethodMissing {
        /// The methods that they answer.
        allow: Methods,
    },
    /// Only under [`SlashPolicy::Redirect`]: no route answers here, but one does for the path
    /// with a slash at its end, or without.
    Redirect {
        /// Whether the slash is to be added; else it is to be removed.
        add_slash: bool,
    },
    /// No route matches the path.
    Missing,
}

impl Router {
    /// Finds the route for a path and a method, and notes in `parameters` where the values of
    /// its parameters are. It does not allocate.
    ///
    /// `path` is raw: percent-encoded, without a query. A path that does not begin with `/` has
    /// no route. A `method` of 32 or more is one that no route answers.
    #[inline]
    pub fn find(&self, path: &[u8], method: u8, parameters: &mut Parameters) -> Match {
        let wanted = Methods::of(method).bits();
        let mut allow = 0;
        if path.first() != Some(&b'/') {
            *parameters = Parameters::default();
            return Match::Missing;
        }
        match self.locate(self.view(path), path, wanted, &mut allow, parameters) {
            Some(choice) => Match::Found { route: choice.id },
            None => self.not_found(path, wanted, Methods::from_bits(allow), parameters),
        }
    }

    /// The methods of all routes that match a path, for a reply to OPTIONS; none if it has no
    /// route. Under [`SlashPolicy::Redirect`] only the path as it is written counts.
    pub fn methods(&self, path: &[u8]) -> Methods {
        let mut allow = 0;
        if path.first() == Some(&b'/') {
            let mut parameters = Parameters::default();
            self.locate(self.view(path), path, 0, &mut allow, &mut parameters);
        }
        Methods::from_bits(allow)
    }

    /// The values of the parameters that [`Router::find`] noted for this path. Empty if it found
    /// no route. With another path than that, the values are meaningless or missing.
    #[inline]
    pub fn values<'r, 'p>(&'r self, parameters: &Parameters, path: &'p [u8]) -> Values<'r, 'p> {
        let (slots, names) = match self.routes.get(parameters.route as usize) {
            Some(route) => (&*route.slots, &*route.names),
            None => (&[][..], &[][..]),
        };
        Values { slots, names, parameters: *parameters, path }
    }

    /// The route with this id.
    pub fn route(&self, id: u32) -> Option<&Route> {
        self.routes.get(*self.by_id.get(id as usize)? as usize)
    }

    /// The pattern of the route with this id.
    pub fn pattern(&self, id: u32) -> Option<&str> {
        self.route(id).map(Route::pattern)
    }

    /// The names of the parameters of the route with this id, from the left; empty if there is
    /// no such route.
    pub fn names(&self, id: u32) -> &[Box<str>] {
        self.route(id).map_or(&[], Route::names)
    }

    /// The number of a parameter by its name, to be looked up once and used with
    /// [`Values::get`] for every request.
    pub fn parameter_index(&self, id: u32, name: &str) -> Option<usize> {
        self.names(id).iter().position(|known| **known == *name)
    }

    /// All routes in the order of insertion.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = &Route> {
        self.routes.iter()
    }

    /// The path as far as its slashes count.
    #[inline(always)]
    fn view<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path {
            [shorter @ .., b'/']
                if self.slash_policy == SlashPolicy::Ignore && !shorter.is_empty() =>
            {
                shorter
            }
            _ => path,
        }
    }

    /// The route for a path that begins with `/`, whose segments are those of `view`.
    #[inline(always)]
    fn locate(
        &self,
        view: &[u8],
        path: &[u8],
        wanted: u32,
        allow: &mut u32,
        parameters: &mut Parameters,
    ) -> Option<&Choice> {
        if let Some(leaf) = self.statics.find(view) {
            let choice = self.tree.choose(leaf, wanted, allow);
            if let Some(found) = choice {
                // A route of fixed text has no values, so no slashes need be noted.
                parameters.route = found.route;
                parameters.noted = Noted::Nothing;
                return choice;
            }
        }
        if view.len() >= 64 {
            return self.locate_long(view, path, wanted, allow, parameters);
        }
        self.locate_short(view, path, wanted, allow, parameters)
    }

    /// Apart from the look into the table of static paths, so that this one stays small.
    #[inline(never)]
    fn locate_short(
        &self,
        view: &[u8],
        path: &[u8],
        wanted: u32,
        allow: &mut u32,
        parameters: &mut Parameters,
    ) -> Option<&Choice> {
        let (bits, escapes) = scan_short(view);
        if escapes {
            return self.locate_searching(view, path, wanted, allow, parameters);
        }
        let slashes = Slashes64 { bits, limit: view.len(), tail: tail_word(view) };
        let choice = self.tree.walk(path, &slashes, wanted, allow);
        let route = choice.map_or(NONE, |choice| choice.route);
        *parameters = Parameters { route, noted: Noted::Low, slashes: [bits, 0] };
        choice
    }

    #[inline(never)]
    fn locate_long(
        &self,
        view: &[u8],
        path: &[u8],
        wanted: u32,
        allow: &mut u32,
        parameters: &mut Parameters,
    ) -> Option<&Choice> {
        if view.len() >= 128 {
            return self.locate_searching(view, path, wanted, allow, parameters);
        }
        let scan = scan_medium(view);
        if scan.escapes {
            return self.locate_searching(view, path, wanted, allow, parameters);
        }
        let slashes = Slashes128 { bits: scan.bits, limit: view.len() };
        let choice = self.tree.walk(path, &slashes, wanted, allow);
        let route = choice.map_or(NONE, |choice| choice.route);
        let slashes = [scan.bits as u64, (scan.bits >> 64) as u64];
        *parameters = Parameters { route, noted: Noted::Both, slashes };
        choice
    }

    #[inline(never)]
    fn locate_searching(
        &self,
        view: &[u8],
        path: &[u8],
        wanted: u32,
        allow: &mut u32,
        parameters: &mut Parameters,
    ) -> Option<&Choice> {
        let slashes = Searched { path: view, slash_added: false };
        let choice = self.tree.walk(path, &slashes, wanted, allow);
        let route = choice.map_or(NONE, |choice| choice.route);
        *parameters = Parameters { route, noted: Noted::Search, slashes: [0; 2] };
        choice
    }

    #[inline(never)]
    fn not_found(
        &self,
        path: &[u8],
        wanted: u32,
        allow: Methods,
        parameters: &mut Parameters,
    ) -> Match {
        *parameters = Parameters::default();
        if self.slash_policy == SlashPolicy::Redirect
            && let Some(add_slash) = self.other_form(path, wanted)
        {
            return Match::Redirect { add_slash };
        }
        if allow.is_empty() { Match::Missing } else { Match::MethodMissing { allow } }
    }

    /// Whether the path with its slash at the end added (true) or removed (false) has a route.
    fn other_form(&self, path: &[u8], wanted: u32) -> Option<bool> {
        let names_a_host = matches!(path, [b'/', b'/' | b'\\', ..]);
        if names_a_host || path.len() < 2 {
            return None;
        }
        let (path, add_slash) = match path {
            [shorter @ .., b'/'] => (shorter, false),
            _ => (path, true),
        };
        let slashes = Searched { path, slash_added: add_slash };
        self.tree.walk(path, &slashes, wanted, &mut 0).map(|_| add_slash)
    }
}
