//! What a route requires of the application, through its extractors and middleware. The
//! application checks it before the server starts.

use crate::http::guard::Guard;
use crate::http::route_options::RouteOptions;
use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::rc::Rc;

/// The parameters that an extractor needs from a path, as far as its type declares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathShape {
    /// Exactly this many parameters, including optional ones: a tuple, or a single value.
    Count(usize),
    /// Parameters with these names: a struct. The path may have more.
    Names(&'static [&'static str]),
}

/// Metadata of a route: middleware around the handler may respond with a problem of this status
/// instead. OpenAPI documents list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredProblem {
    /// The status.
    pub status: u16,
    /// When the middleware sends that problem, as a sentence.
    pub description: &'static str,
}

/// Collects what the extractors and middleware of one route require, and what they declare about
/// it.
#[derive(Clone, Default)]
pub struct RouteRequirements {
    states: Vec<(TypeId, &'static str)>,
    paths: Vec<PathShape>,
    nested_routes: Vec<(String, RouteOptions)>,
    guards: Vec<Rc<dyn Guard>>,
    route_name: Option<Rc<str>>,
    metadata_values: Vec<Rc<dyn Any>>,
    config_errors: Vec<String>,
}

impl RouteRequirements {
    /// Requires a value of type `T`, which the application adds with `.state(..)`.
    pub fn state<T: 'static>(&mut self) {
        self.states.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// Adds those requirements of `outer`, the code around this handler, that concern the route
    /// itself: the shapes of its path, and the metadata.
    pub(crate) fn inherit_from(&mut self, outer: &Self) {
        self.paths.extend_from_slice(&outer.paths);
        // In front, because the list is ordered from the outside in.
        self.metadata_values.splice(..0, outer.metadata_values.iter().map(Rc::clone));
    }

    /// Records that a route inside the handler has `options`, which the server can only apply to
    /// the handler as a whole.
    pub(crate) fn add_nested_route(&mut self, name: String, options: &RouteOptions) {
        self.nested_routes.push((name, options.clone()));
    }

    /// The routes inside the handler that have options, with their names.
    pub(crate) fn nested_routes(&self) -> impl Iterator<Item = (&str, &RouteOptions)> {
        self.nested_routes.iter().map(|(name, options)| (name.as_str(), options))
    }

    /// Requires the path to have parameters of this shape.
    pub fn path(&mut self, shape: PathShape) {
        self.paths.push(shape);
    }

    /// Reports an invalid setting of this middleware or extractor. The application is then not
    /// built, and `reason` is part of the error: it must say what is wrong and how to fix it.
    pub fn config_error(&mut self, reason: impl Into<String>) {
        self.config_errors.push(reason.into());
    }

    /// The reasons why the application cannot be built.
    pub(crate) fn config_errors(&self) -> &[String] {
        &self.config_errors
    }

    /// The shapes that the path's parameters must have.
    #[must_use]
    pub fn paths(&self) -> &[PathShape] {
        &self.paths
    }

    /// Records that the handler is called only for requests that `guard` accepts.
    pub(crate) fn add_guard(&mut self, guard: &Rc<dyn Guard>) {
        self.guards.push(Rc::clone(guard));
    }

    /// The guards that decide whether the handler is called, outermost first.
    pub(crate) fn guards(&self) -> impl DoubleEndedIterator<Item = &Rc<dyn Guard>> {
        // Each wrapper of a handler adds its guard after those of the handler that it wraps.
        self.guards.iter().rev()
    }

    /// Sets the name of the handler's route, with which URLs of that route are built.
    pub(crate) fn set_route_name(&mut self, name: &Rc<str>) {
        self.route_name = Some(Rc::clone(name));
    }

    /// The route's name, if it has one.
    pub(crate) fn route_name(&self) -> Option<&Rc<str>> {
        self.route_name.as_ref()
    }

    /// Attaches `value` to the route, for code that lists routes; see
    /// [`RouteInfo::metadata`](crate::built::RouteInfo::metadata). It has no effect on requests.
    pub fn metadata<T: 'static>(&mut self, value: T) {
        self.add_metadata(Rc::new(value));
    }

    /// Declares that this middleware may respond with a problem of this status; `description` is a
    /// sentence that says when. See [`DeclaredProblem`].
    pub fn problem(&mut self, status: u16, description: &'static str) {
        self.metadata(DeclaredProblem { status, description });
    }

    pub(crate) fn add_metadata(&mut self, value: Rc<dyn Any>) {
        self.metadata_values.push(value);
    }

    /// The metadata of the route: that of the outermost scope first, that of the handler last.
    pub(crate) fn metadata_values(&self) -> &[Rc<dyn Any>] {
        &self.metadata_values
    }

    /// The types of all required states, with the names of the types.
    pub fn states(&self) -> impl Iterator<Item = (TypeId, &'static str)> {
        self.states.iter().copied()
    }
}

impl fmt::Debug for RouteRequirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<_> = self.states.iter().map(|(_, name)| name).collect();
        f.debug_struct("RouteRequirements")
            .field("states", &states)
            .field("paths", &self.paths)
            .field("guards", &self.guards.len())
            .field("name", &self.route_name)
            .finish_non_exhaustive()
    }
}
