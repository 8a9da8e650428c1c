//! Information about the application's routes that handlers use at run time.

use std::collections::BTreeMap;

/// Information about the routes that the router does not have.
#[derive(Debug, Default)]
pub(crate) struct RouteIndex {
    /// The patterns of named routes.
    pub(crate) names: RouteNames,
    /// For each route, by its ID, how many of the optional parameters in the written pattern it
    /// omits. A written pattern with optional parameters becomes several routes.
    pub(crate) omitted_parameters: Box<[usize]>,
}

/// The patterns of named routes, including those that omit optional parameters.
#[derive(Debug, Default)]
pub(crate) struct RouteNames(BTreeMap<String, Vec<String>>);

impl RouteNames {
    pub(crate) fn add(&mut self, name: &str, pattern: &str) {
        let patterns = self.0.entry(name.to_owned()).or_default();
        if !patterns.iter().any(|other| other == pattern) {
            patterns.push(pattern.to_owned());
        }
    }

    /// The patterns of the routes called `name`. The last one has all optional parameters.
    pub(crate) fn patterns(&self, name: &str) -> Option<&[String]> {
        self.0.get(name).map(Vec::as_slice)
    }
}
