//! What a handler's arguments need from the application, checked before the server starts.

use std::any::{TypeId, type_name};

/// The parameters that an extractor takes from a path, as far as its type tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathShape {
    /// So many, from the left: a tuple, or one value.
    Count(usize),
    /// Those of these names: a struct. The path may have more.
    Names(&'static [&'static str]),
}

/// Collects what the extractors of one route need.
#[derive(Clone, Debug, Default)]
pub struct Requirements {
    states: Vec<(TypeId, &'static str)>,
    paths: Vec<PathShape>,
}

impl Requirements {
    /// A value of type `T` must have been given with `.state(..)`.
    pub fn state<T: 'static>(&mut self) {
        self.states.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// Drops the states, keeps the rest.
    pub(crate) fn forget_states(&mut self) {
        self.states.clear();
    }

    /// The path must have parameters of this shape.
    pub fn path(&mut self, shape: PathShape) {
        self.paths.push(shape);
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
