//! Finds the scope whose fallback handles a path without a route.

use crate::app::error::BuildErrorKind;
use crate::app::pattern::{CATCH_ALL, ParameterType, expand};
use crate::http::route_options::RouteOptions;
use crate::http::service::Endpoint;
use peregrine_router::{
    Match, MethodSet, Parameters, Route, RouteError, Router, RouterBuilder, Values,
};
use std::panic::Location;
use std::rc::Rc;

/// A handler for requests without a route.
pub(crate) struct Fallback {
    pub(crate) endpoint: Rc<dyn Endpoint>,
    pub(crate) options: RouteOptions,
    pub(crate) location: &'static Location<'static>,
}

/// A scope's fallback. It handles requests that have no route, if their path is the scope's prefix
/// or below it.
pub(crate) struct ScopeFallback {
    /// The full prefix, as it was written.
    pub(crate) prefix: String,
    pub(crate) fallback: Fallback,
}

/// The name of a fallback in errors.
pub(crate) fn fallback_name(prefix: &str, location: &'static Location<'static>) -> String {
    format!("the fallback of `{prefix}/` ({location})")
}

/// The number of patterns for one scope: the prefix, the prefix with a slash, and everything below.
const PATTERNS_PER_SCOPE: u32 = 3;

/// All fallbacks are added under this method, because they handle any method.
const ANY_METHOD: u8 = 0;

/// The fallbacks of all scopes except the root scope, whose fallback is in `Unmatched`. Their
/// prefixes are patterns, and match like the patterns of routes.
pub(crate) struct Fallbacks {
    router: Router,
    all: Box<[ScopeFallback]>,
    /// For each fallback, the typed parameters of its prefix.
    typed: Vec<Vec<(String, ParameterType)>>,
}

impl Fallbacks {
    pub(crate) fn build(all: Vec<ScopeFallback>) -> Result<Self, Vec<BuildErrorKind>> {
        let (mut builder, mut all_typed) = (RouterBuilder::new(), Vec::with_capacity(all.len()));
        for (fallback, id) in all.iter().zip((0..).step_by(PATTERNS_PER_SCOPE as usize)) {
            // The last expansion has all optional parameters. A prefix that cannot be expanded is
            // added as written, so that the router reports it.
            let expanded = expand(&fallback.prefix).ok().and_then(|mut patterns| patterns.pop());
            let expanded = expanded.map(|expanded| (expanded.pattern, expanded.typed_parameters));
            let (prefix, typed) = expanded.unwrap_or_else(|| (fallback.prefix.clone(), Vec::new()));
            let patterns = [prefix.clone(), format!("{prefix}/"), format!("{prefix}{CATCH_ALL}")];
            // A nested scope may have the prefix `/`, stored as an empty text. The pattern of the
            // prefix alone would then be empty, so it is skipped.
            let patterns = patterns.iter().zip(id..).skip(usize::from(prefix.is_empty()));
            for (pattern, id) in patterns {
                if typed.is_empty() {
                    builder.insert(pattern, MethodSet::single(ANY_METHOD), id);
                } else {
                    builder.insert_guarded(pattern, MethodSet::single(ANY_METHOD), id, "");
                }
            }
            all_typed.push(typed);
        }
        match builder.build() {
            Ok(router) => Ok(Self { router, all: all.into(), typed: all_typed }),
            Err(error) => Err(translate_errors(&error.errors, &all)),
        }
    }

    /// The fallback of the scope whose prefix is the most specific one that matches `path`.
    pub(crate) fn find(&self, path: &str) -> Option<&Fallback> {
        let types_match = |route: &Route, values: Values<'_, '_>| {
            let typed = self.typed.get((route.id() / PATTERNS_PER_SCOPE) as usize);
            let mut typed = typed.into_iter().flatten();
            typed.all(|(name, kind)| values.by_name(name).is_some_and(|raw| kind.accepts(raw)))
        };
        let parameters = &mut Parameters::default();
        match self.router.find_where(path.as_bytes(), ANY_METHOD, parameters, types_match) {
            Match::Found { route } => self.all.get((route / PATTERNS_PER_SCOPE) as usize),
            _ => None,
        }
        .map(|found| &found.fallback)
    }
}

/// Converts the router's errors to build errors. The patterns of one scope often have the same
/// error, which is reported once.
fn translate_errors(route_errors: &[RouteError], all: &[ScopeFallback]) -> Vec<BuildErrorKind> {
    let name = |id: u32| {
        let ScopeFallback { prefix, fallback } = &all[(id / PATTERNS_PER_SCOPE) as usize];
        fallback_name(prefix, fallback.location)
    };
    let mut errors = Vec::new();
    for route_error in route_errors {
        let error = match route_error {
            RouteError::InvalidPattern { route, error } => {
                let reason = format!("at byte {}: {}", error.position, error.kind);
                BuildErrorKind::InvalidPattern { route: name(route.id), reason }
            }
            RouteError::Duplicate { first, second, .. } => {
                BuildErrorKind::DuplicateFallback { first: name(first.id), second: name(second.id) }
            }
            other => BuildErrorKind::LimitExceeded { message: other.to_string() },
        };
        if !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}
