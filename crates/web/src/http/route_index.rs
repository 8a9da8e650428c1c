//! What handlers may want to know of the application's routes.

use std::collections::BTreeMap;

/// What handlers may want to know of routes beside their patterns.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The patterns of routes with names.
    pub(crate) names: Names,
    /// How many optional parameters routes leave out, by their numbers.
    pub(crate) absent: Box<[usize]>,
}

/// The patterns of routes with a name, those that leave out optional parameters too.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, Vec<String>>);

impl Names {
    pub(crate) fn add(&mut self, name: &str, pattern: &str) {
        let all = self.0.entry(name.to_owned()).or_default();
        if !all.iter().any(|one| one == pattern) {
            all.push(pattern.to_owned());
        }
    }

    /// The patterns of the routes called `name`, the whole one last.
    pub(crate) fn patterns(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }
}
