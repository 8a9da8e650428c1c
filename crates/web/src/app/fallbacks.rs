//! Finds the scope whose fallback answers a path without a route.

use crate::app::error::Fault;
use crate::app::pattern::{Kind, REST, expand};
use crate::http::route_options::RouteOptions;
use crate::http::service::Endpoint;
use peregrine_router::{Builder, Match, Methods, Parameters, Problem, Route, Router, Values};
use std::panic::Location;
use std::rc::Rc;

/// A handler for requests without a route.
pub(crate) struct Fallback {
    pub(crate) endpoint: Rc<dyn Endpoint>,
    pub(crate) options: RouteOptions,
    pub(crate) place: &'static Location<'static>,
}

/// A handler for requests below a prefix that have no route.
pub(crate) struct ScopeFallback {
    /// The prefix as it was written.
    pub(crate) prefix: String,
    pub(crate) fallback: Fallback,
}

/// The name of a fallback in errors.
pub(crate) fn fallback_name(prefix: &str, place: &'static Location<'static>) -> String {
    format!("the fallback of `{prefix}/` ({place})")
}

/// The number of patterns for one scope: the prefix, the prefix with a slash, and everything below.
const PATTERNS: u32 = 3;

/// All fallbacks are added under this method, because they answer any method.
const METHOD: u8 = 0;

/// The fallbacks of all scopes. Their prefixes are patterns, and match like the patterns of routes.
pub(crate) struct Fallbacks {
    router: Router,
    all: Box<[ScopeFallback]>,
    /// For each fallback, the typed parameters of its prefix.
    typed: Vec<Vec<(String, Kind)>>,
}

impl Fallbacks {
    pub(crate) fn build(all: Vec<ScopeFallback>) -> Result<Self, Vec<Fault>> {
        let (mut builder, mut all_typed) = (Builder::new(), Vec::with_capacity(all.len()));
        for (fallback, id) in all.iter().zip((0..).step_by(PATTERNS as usize)) {
            // A prefix that cannot be parsed is also reported for the scope's routes.
            let whole = expand(&fallback.prefix).ok().and_then(|mut all| all.pop());
            let whole = whole.map(|whole| (whole.pattern, whole.typed));
            let (prefix, typed) = whole.unwrap_or_else(|| (fallback.prefix.clone(), Vec::new()));
            let patterns = [prefix.clone(), format!("{prefix}/"), format!("{prefix}{REST}")];
            // Without a prefix, the first two patterns are the same path, so one is skipped.
            let patterns = patterns.iter().zip(id..).skip(usize::from(prefix.is_empty()));
            for (pattern, id) in patterns {
                if typed.is_empty() {
                    builder.insert(pattern, Methods::of(METHOD), id);
                } else {
                    builder.insert_guarded(pattern, Methods::of(METHOD), id, "");
                }
            }
            all_typed.push(typed);
        }
        match builder.build() {
            Ok(router) => Ok(Self { router, all: all.into(), typed: all_typed }),
            Err(error) => Err(faults(&error.problems, &all)),
        }
    }

    /// The fallback for `path`: that of the scope with the most specific matching prefix.
    pub(crate) fn find(&self, path: &str) -> Option<&Fallback> {
        let fits = |route: &Route, values: Values<'_, '_>| {
            let typed = self.typed.get((route.id() / PATTERNS) as usize);
            let mut typed = typed.into_iter().flatten();
            typed.all(|(name, kind)| values.by_name(name).is_some_and(|raw| kind.fits(raw)))
        };
        let parameters = &mut Parameters::default();
        match self.router.find_where(path.as_bytes(), METHOD, parameters, fits) {
            Match::Found { route } => self.all.get((route / PATTERNS) as usize),
            _ => None,
        }
        .map(|found| &found.fallback)
    }
}

/// Translates the router's problems into faults, and drops repeated ones.
fn faults(problems: &[Problem], all: &[ScopeFallback]) -> Vec<Fault> {
    let name = |id: u32| {
        let ScopeFallback { prefix, fallback } = &all[(id / PATTERNS) as usize];
        fallback_name(prefix, fallback.place)
    };
    let mut faults = Vec::new();
    for problem in problems {
        let fault = match problem {
            Problem::Pattern { route, error } => {
                let reason = format!("at byte {}: {}", error.position, error.fault);
                Fault::Pattern { route: name(route.id), reason }
            }
            Problem::Duplicate { first, second, .. } => {
                Fault::SameFallback { first: name(first.id), second: name(second.id) }
            }
            other => Fault::TooMany { what: other.to_string() },
        };
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }
    faults
}
