//! What a handler's arguments need from the application, checked before the server starts.

use crate::http::guard::Guard;
use crate::http::route_options::RouteOptions;
use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::rc::Rc;

/// The parameters that an extractor takes from a path, as far as its type says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathShape {
    /// This number of parameters, from the left: a tuple, or one value.
    Count(usize),
    /// Parameters of these names: a struct. The path may have more.
    Names(&'static [&'static str]),
}

/// A note beside a route: what stands around its handler may answer with a problem of this status in its place. Documents tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// When that is; a sentence.
    pub why: &'static str,
}

/// Collects what the extractors of one route need.
#[derive(Clone, Default)]
pub struct Requirements {
    states: Vec<(TypeId, &'static str)>,
    paths: Vec<PathShape>,
    routes: Vec<(String, RouteOptions)>,
    guards: Vec<Rc<dyn Guard>>,
    name: Option<Rc<str>>,
    notes: Vec<Rc<dyn Any>>,
    faults: Vec<String>,
}

impl Requirements {
    /// A value of type `T` must have been given with `.state(..)`.
    pub fn state<T: 'static>(&mut self) {
        self.states.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// Adds what `others`, which is around this, says of the route alone: the shapes of its path, and notes.
    pub(crate) fn surround(&mut self, others: &Self) {
        self.paths.extend_from_slice(&others.paths);
        self.notes.splice(..0, others.notes.iter().map(Rc::clone));
    }

    /// A route inside the handler asks for `options`, which the server can only apply to the handler as
    /// a whole.
    pub(crate) fn inner_route(&mut self, name: String, options: &RouteOptions) {
        self.routes.push((name, options.clone()));
    }

    /// The routes inside the handler that have options, with their names.
    pub(crate) fn inner_routes(&self) -> impl Iterator<Item = (&str, &RouteOptions)> {
        self.routes.iter().map(|(name, options)| (name.as_str(), options))
    }

    /// The path must have parameters of this shape.
    pub fn path(&mut self, shape: PathShape) {
        self.paths.push(shape);
    }

    /// A setting of this middleware or extractor cannot be kept: the application is not built, and
    /// `reason`, which says what is wrong and how to fix it, is one of its faults.
    pub fn fault(&mut self, reason: impl Into<String>) {
        self.faults.push(reason.into());
    }

    /// Why the application cannot be built.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }

    /// The shapes that the path's parameters must have.
    #[must_use]
    pub fn paths(&self) -> &[PathShape] {
        &self.paths
    }

    /// The handler answers only what `guard` accepts.
    pub(crate) fn guard(&mut self, guard: &Rc<dyn Guard>) {
        self.guards.push(Rc::clone(guard));
    }

    /// What decides whether the handler answers, outermost first.
    pub(crate) fn guards(&self) -> impl DoubleEndedIterator<Item = &Rc<dyn Guard>> {
        self.guards.iter().rev()
    }

    /// URLs are made of the handler's route by this name.
    pub(crate) fn name(&mut self, name: &Rc<str>) {
        self.name = Some(Rc::clone(name));
    }

    /// The route's name, if it has one.
    pub(crate) fn route_name(&self) -> Option<&Rc<str>> {
        self.name.as_ref()
    }

    /// Puts `note` beside the route, for those who look at routes: see
    /// [`RouteInfo::notes`](crate::application::RouteInfo::notes). It has no effect on requests.
    pub fn note<T: 'static>(&mut self, note: T) {
        self.share_note(Rc::new(note));
    }

    /// Notes that this middleware may answer with a problem of this status, `why` being a sentence that says when: see [`Refusal`].
    pub fn refusal(&mut self, status: u16, why: &'static str) {
        self.note(Refusal { status, why });
    }

    pub(crate) fn share_note(&mut self, note: Rc<dyn Any>) {
        self.notes.push(note);
    }

    /// What stands beside the route, the outermost first.
    pub(crate) fn notes(&self) -> &[Rc<dyn Any>] {
        &self.notes
    }

    /// The types of all states needed, with their names.
    pub fn states(&self) -> impl Iterator<Item = (TypeId, &'static str)> {
        self.states.iter().copied()
    }
}

impl fmt::Debug for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<_> = self.states.iter().map(|(_, name)| name).collect();
        f.debug_struct("Requirements")
            .field("states", &states)
            .field("paths", &self.paths)
            .field("guards", &self.guards.len())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
