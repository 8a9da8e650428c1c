//! The routes of a built application.

use super::Target;
use crate::app::builder::Entry;
use crate::app::default_responses::Shared;
use crate::http::route_options::{OnDisconnect, RouteOptions};
use crate::http::service::Endpoint;
use peregrine_router::may_be_ambiguous;
use std::any::Any;
use std::panic::Location;
use std::rc::Rc;

/// A route of a built application.
pub(crate) struct Built {
    pub(super) endpoint: Rc<dyn Endpoint>,
    pub(super) unrouted: Rc<dyn Endpoint>,
    pub(super) options: RouteOptions,
    pub(super) is_guarded: bool,
    /// It has no parameters, no guards, and a pattern that all servers read alike. They then read
    /// every path that matches it alike, and no path needs a check.
    pub(super) is_literal: bool,
    /// What it asks for, in words.
    pub(super) conditions: String,
    /// From the application that the route belongs to.
    pub(super) shared: Rc<Shared>,
    pub(super) pattern: Rc<str>,
    pub(super) methods: String,
    pub(super) place: &'static Location<'static>,
    /// What no request asks for.
    pub(super) about: Box<About>,
}

/// What those may want to know who look at routes.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) name: Option<Rc<str>>,
    pub(super) notes: Vec<Rc<dyn Any>>,
    pub(super) types: Vec<(String, &'static str)>,
    pub(super) absent: usize,
    pub(super) is_slash_twin: bool,
}

impl Built {
    #[inline]
    pub(super) fn target(&self) -> Target<'_> {
        Target { endpoint: &self.endpoint, options: &self.options, pattern: Some(&self.pattern) }
    }

    /// What answers for the route's path in place of the route.
    pub(super) fn unrouted(&self) -> Target<'_> {
        let options = match self.options.allows_ambiguous_paths {
            true => &UNROUTED_AMBIGUOUS_OPTIONS,
            false => &UNROUTED_OPTIONS,
        };
        Target { endpoint: &self.unrouted, options, pattern: None }
    }

    /// The same with what it asks for, in words.
    pub(crate) fn asking(self, conditions: String) -> Self {
        Self { conditions, ..self }
    }
}

impl From<Entry> for Built {
    fn from(entry: Entry) -> Self {
        let is_guarded = entry.is_guarded();
        let has_parameters = entry.pattern.contains('{');
        let is_literal =
            !is_guarded && !has_parameters && !may_be_ambiguous(entry.pattern.as_bytes());
        let about = About {
            name: entry.requirements.route_name().map(Rc::clone),
            notes: entry.requirements.notes().to_vec(),
            types: entry.typed.iter().map(|(name, kind)| (name.clone(), kind.name)).collect(),
            absent: entry.absent,
            is_slash_twin: entry.is_slash_twin,
        };
        let Entry { endpoint, unrouted, options, shared, pattern, methods, place, .. } = entry;
        let (pattern, methods, conditions) = (pattern.into(), methods.to_string(), String::new());
        Self {
            endpoint,
            unrouted,
            options,
            is_guarded,
            is_literal,
            conditions,
            shared,
            pattern,
            methods,
            place,
            about: Box::new(about),
        }
    }
}

/// The server options of a request without a route: nothing special.
pub(super) static UNROUTED_OPTIONS: RouteOptions = RouteOptions {
    on_disconnect: OnDisconnect::Cancel,
    body_bytes_max: None,
    lifts_body_limit: false,
    takes_calls: false,
    timeout: None,
    requests_max: None,
    is_never_shed: false,
    allows_ambiguous_paths: false,
};

/// The same beside a route that takes ambiguous paths.
static UNROUTED_AMBIGUOUS_OPTIONS: RouteOptions =
    RouteOptions { allows_ambiguous_paths: true, ..UNROUTED_OPTIONS };

/// The same where another service answers first, such as an authority's checks: what the server
/// itself needs is never shed.
pub(super) static FIRST_OPTIONS: RouteOptions =
    RouteOptions { is_never_shed: true, ..UNROUTED_OPTIONS };
