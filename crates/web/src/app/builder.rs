//! Collects the routes, fallbacks, states and errors of an application before it is built.

use crate::app::built::{BuiltApp, BuiltRoute, RouteDetails};
use crate::app::default_responses::AppContext;
use crate::app::error::BuildErrorKind;
use crate::app::fallbacks::{Fallback, ScopeFallback, fallback_name};
use crate::app::handler::{Handler, HandlerService};
use crate::app::pattern::{ExpandedPattern, ParameterType, expand};
use crate::app::route_table::MethodFilter;
use crate::http::guard::Guard;
use crate::http::requirements::RouteRequirements;
use crate::http::route_options::{OnDisconnect, RouteOptions};
use crate::http::service::Endpoint;
use crate::http::state::States;
use peregrine_router::may_be_ambiguous;
use std::panic::Location;
use std::rc::Rc;

/// The parts of an application under construction, passed from scope to scope.
pub(crate) struct AppBuilder {
    #[expect(
        clippy::vec_box,
        reason = "a growing vector of large entries would leave freed blocks behind"
    )]
    pub(crate) routes: Vec<Box<RouteEntry>>,
    pub(crate) fallbacks: Vec<ScopeFallback>,
    pub(crate) errors: Vec<BuildErrorKind>,
    /// The requirements of fallbacks and middleware.
    pub(crate) requirements: Vec<NamedRequirements>,
    /// The checks of [`App::on_build`](crate::App::on_build), which run on the built application.
    pub(crate) build_hooks: Vec<Box<BuildHook>>,
    pub(crate) states: States,
    pub(crate) context: Rc<AppContext>,
}

impl AppBuilder {
    pub(crate) fn new(context: Rc<AppContext>) -> Self {
        let (routes, fallbacks, errors, requirements, build_hooks, states) = <_>::default();
        Self { routes, fallbacks, errors, requirements, build_hooks, states, context }
    }

    /// Adds the routes of `entry`, one for each pattern that `written` expands to. The pattern in
    /// `entry` is ignored.
    pub(crate) fn add(&mut self, entry: RouteEntry, written: &str) {
        let expanded = expand(written).unwrap_or_else(|reason| {
            let route = RouteEntry { pattern: written.to_owned(), ..entry.clone() }.description();
            self.errors.push(BuildErrorKind::InvalidPattern { route, reason });
            Vec::new()
        });
        for ExpandedPattern {
            pattern,
            mut typed_parameters,
            omitted_parameters,
            is_slash_variant,
            needs_slash_variant,
        } in expanded
        {
            // An entry of a merged application was already expanded once, without this prefix.
            typed_parameters.extend_from_slice(&entry.typed_parameters);
            let omitted_parameters = entry.omitted_parameters + omitted_parameters;
            let is_slash_variant = entry.is_slash_variant || is_slash_variant;
            let needs_slash_variant = entry.needs_slash_variant || needs_slash_variant;
            let entry = entry.clone();
            let entry = RouteEntry {
                pattern,
                typed_parameters,
                omitted_parameters,
                is_slash_variant,
                needs_slash_variant,
                ..entry
            };
            self.routes.push(entry.into());
        }
    }

    /// Records the requirements of the fallback or middleware that build errors call `name`.
    pub(crate) fn require(&mut self, name: String, requirements: RouteRequirements) {
        self.requirements.push(NamedRequirements {
            name,
            requirements,
            context: Rc::clone(&self.context),
        });
    }
}

/// Checks a built application and returns its errors.
pub(crate) type BuildHook = dyn FnOnce(&BuiltApp) -> Result<(), Vec<String>>;

/// The requirements of a fallback or a middleware.
pub(crate) struct NamedRequirements {
    pub(crate) name: String,
    pub(crate) requirements: RouteRequirements,
    /// The context of the application that the fallback or middleware was added to.
    pub(crate) context: Rc<AppContext>,
}

/// A route under construction.
#[derive(Clone)]
pub(crate) struct RouteEntry {
    /// The pattern in the router's syntax.
    pub(crate) pattern: String,
    /// The parameters whose values must have a certain type.
    pub(crate) typed_parameters: Vec<(String, ParameterType)>,
    /// The number of optional parameters of the written pattern that this pattern omits.
    pub(crate) omitted_parameters: usize,
    /// The route handles a request only if all of its guards accept it.
    pub(crate) guards: Vec<Rc<dyn Guard>>,
    pub(crate) methods: MethodFilter,
    pub(crate) endpoint: Rc<dyn Endpoint>,
    /// Handles requests that match the pattern, but whose method has no handler.
    pub(crate) method_mismatch_endpoint: Rc<dyn Endpoint>,
    pub(crate) options: RouteOptions,
    pub(crate) requirements: RouteRequirements,
    /// The context of the application that the route belongs to, which may be a merged one.
    pub(crate) context: Rc<AppContext>,
    /// The pattern is another entry's pattern with a trailing slash. If the slash policy ignores
    /// trailing slashes, this entry is dropped.
    pub(crate) is_slash_variant: bool,
    /// The handler must also serve the path with a trailing slash. A second entry, with
    /// `is_slash_variant`, does that. The root `/` has no second entry until it is merged under a
    /// prefix.
    pub(crate) needs_slash_variant: bool,
    pub(crate) location: &'static Location<'static>,
}

impl RouteEntry {
    /// How errors describe the route.
    pub(crate) fn description(&self) -> String {
        format!("{} {} ({})", self.methods, self.pattern, self.location)
    }

    /// Whether a guard or a parameter type can reject a request that matches the pattern.
    pub(crate) fn has_conditions(&self) -> bool {
        !self.guards.is_empty() || !self.typed_parameters.is_empty()
    }

    /// If the handler is an application, reports the options of its routes that the server cannot
    /// apply.
    pub(crate) fn check_options(&self, errors: &mut Vec<BuildErrorKind>) {
        check_nested_options(&self.description(), &self.requirements, &self.options, errors);
    }
}

impl From<RouteEntry> for BuiltRoute {
    fn from(entry: RouteEntry) -> Self {
        let has_conditions = entry.has_conditions();
        let has_parameters = entry.pattern.contains('{');
        let is_unconditional_literal =
            !has_conditions && !has_parameters && !may_be_ambiguous(entry.pattern.as_bytes());
        let details = RouteDetails {
            name: entry.requirements.route_name().map(Rc::clone),
            metadata: entry.requirements.metadata_values().to_vec(),
            parameter_types: entry
                .typed_parameters
                .iter()
                .map(|(name, kind)| (name.clone(), kind.name))
                .collect(),
            omitted_parameters: entry.omitted_parameters,
            is_slash_variant: entry.is_slash_variant,
        };
        let RouteEntry {
            endpoint,
            method_mismatch_endpoint,
            options,
            context,
            pattern,
            methods,
            location,
            ..
        } = entry;
        let (pattern, methods, conditions) = (pattern.into(), methods.to_string(), String::new());
        Self {
            endpoint,
            method_mismatch_endpoint,
            options,
            has_conditions,
            is_unconditional_literal,
            conditions,
            context,
            pattern,
            methods,
            location,
            details: Box::new(details),
        }
    }
}

impl Fallback {
    /// Creates the fallback of the scope with this prefix, and adds its errors to `builder`. `Args`
    /// and `Via` are inferred markers ([`Handler`]).
    pub(crate) fn new<Args, Via, H>(
        prefix: &str,
        handler: H,
        location: &'static Location<'static>,
        builder: &mut AppBuilder,
    ) -> Self
    where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let (mut options, mut requirements) =
            (RouteOptions::default(), RouteRequirements::default());
        handler.configure(&mut options);
        handler.require(&mut requirements);
        let name = fallback_name(prefix, location);
        check_nested_options(&name, &requirements, &options, &mut builder.errors);
        if requirements.guards().next().is_some() {
            let message = format!(
                "{name} has a guard, but handles every request without a route; put the guard on \
                 a route"
            );
            builder.errors.push(BuildErrorKind::GuardedFallback { message });
        }
        builder.require(name, requirements);
        let endpoint = Rc::new(HandlerService::new(handler, &options));
        Self { endpoint, options, location }
    }
}

/// Reports options of routes inside the handler that `outer` describes, if they would have no
/// effect. The server applies only the options of the whole handler, so an inner option takes
/// effect only if the whole handler has the same or a stricter setting.
fn check_nested_options(
    outer: &str,
    requirements: &RouteRequirements,
    outer_options: &RouteOptions,
    errors: &mut Vec<BuildErrorKind>,
) {
    for (route, inner) in requirements.nested_routes() {
        let mut report = |option, setting| {
            let (route, outer) = (route.to_owned(), outer.to_owned());
            errors.push(BuildErrorKind::UnsupportedOption { route, outer, option, setting });
        };
        let is_enforced =
            |limit| outer_options.timeout.is_some_and(|outer_limit| outer_limit <= limit);
        if inner.timeout.is_some_and(|limit| !is_enforced(limit)) {
            report("timeout", "timeout(..)");
        }
        let run_to_completion = OnDisconnect::RunToCompletion;
        if inner.on_disconnect == run_to_completion
            && outer_options.on_disconnect != run_to_completion
        {
            report("run_to_completion", "run_to_completion()");
        }
        let is_bounded = |requests_max| {
            outer_options.requests_max.is_some_and(|outer_max| outer_max <= requests_max)
        };
        if inner.requests_max.is_some_and(|requests_max| !is_bounded(requests_max)) {
            report("requests_max", "requests_max(..)");
        }
        if inner.is_never_shed && !outer_options.is_never_shed {
            report("never_shed", "never_shed()");
        }
        if inner.allows_ambiguous_paths && !outer_options.allows_ambiguous_paths {
            report("allow_ambiguous_paths", "allow_ambiguous_paths()");
        }
    }
}
