//! What a handler's arguments need from the application, checked before the server starts.

use crate::handler::RouteOptions;
use std::any::{TypeId, type_name};

/// The parameters that an extractor takes from a path, as far as its type says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathShape {
    /// This number of parameters, from the left: a tuple, or one value.
    Count(usize),
    /// Parameters of these names: a struct. The path may have more.
    Names(&'static [&'static str]),
}

/// Collects what the extractors of one route need.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    states: Vec<(TypeId, &'static str)>,
    paths: Vec<PathShape>,
    routes: Vec<(String, RouteOptions)>,
    faults: Vec<String>,
}

impl Requirements {
    /// A value of type `T` must have been given with `.state(..)`.
    pub fn state<T: 'static>(&mut self) {
        self.states.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// Adds the path shapes that `others` needs.
    pub(crate) fn extend_paths(&mut self, others: &Self) {
        self.paths.extend_from_slice(&others.paths);
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

    /// The types of all states needed, with their names.
    pub fn states(&self) -> impl Iterator<Item = (TypeId, &'static str)> {
        self.states.iter().copied()
    }
}
