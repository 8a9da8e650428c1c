//! What a handler's arguments need from the application, checked before the server starts.

use std::any::{TypeId, type_name};

/// Collects what the extractors of one route need.
#[derive(Debug, Default)]
pub struct Requirements {
    states: Vec<(TypeId, &'static str)>,
}

impl Requirements {
    /// A value of type `T` must have been given with `.state(..)`.
    pub fn state<T: 'static>(&mut self) {
        self.states.push((TypeId::of::<T>(), type_name::<T>()));
    }

    /// The types of all states needed, with their names.
    pub fn states(&self) -> impl Iterator<Item = (TypeId, &'static str)> {
        self.states.iter().copied()
    }
}
