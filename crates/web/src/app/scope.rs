//! Scopes: routes under a common prefix, inside the same middleware.

use crate::app::builder::{AppBuilder, RouteEntry};
use crate::app::default_responses::{
    AmbiguousPath, AppContext, DefaultResponses, MergedEndpoint, Unmatched,
};
use crate::app::error::BuildErrorKind;
use crate::app::fallbacks::{Fallback, ScopeFallback, fallback_name};
use crate::app::handler::{Handler, HandlerService, Signature};
use crate::app::middleware::{IntoMiddleware, Middleware, MiddlewareStack};
use crate::app::route::{MethodRouter, MethodRoutes};
use crate::app::route_methods::route_methods;
use crate::app::route_table::MethodFilter;
use crate::http::guard::Guard;
use crate::http::requirements::RouteRequirements;
use crate::http::route_options::RouteOptions;
use crate::http::service::{Endpoint, ErasedService, Service};
use http::Method;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

pub use crate::app::pattern::CATCH_ALL;

/// Routes under a common prefix, inside the same middleware. [`App::scope`](crate::App::scope)
/// creates one.
///
/// Patterns are relative to the prefix: in the scope `/users`, the pattern `/{id}` is
/// `/users/{id}`, and both `/` and the empty pattern are `/users` itself. Middleware added with
/// [`Scope::wrap`] applies to the routes that are added later in this scope. It runs inside the
/// middleware of the enclosing scopes.
///
/// The type parameters `Args` and `Via` of its methods are always inferred
/// ([`Handler`](crate::Handler)).
///
/// A function can add the routes of a module to a scope, so that its handlers stay private:
///
/// ```
/// use peregrine::web::{App, Scope};
///
/// fn users(scope: Scope) -> Scope {
///     scope.get("/", || "everybody").get("/{id}", || "somebody")
/// }
///
/// let app = App::new().scope("/users", users);
/// assert_eq!(app.test().get("/users").send_blocking().text(), "everybody");
/// ```
#[doc(alias = "nest")]
#[doc(alias = "subtree")]
pub struct Scope {
    pub(crate) builder: AppBuilder,
    /// The full prefix, without a slash at its end; empty in the root scope.
    prefix: String,
    middleware: MiddlewareStack,
    /// The guards of all routes that are added later.
    guards: Vec<Rc<dyn Guard>>,
    /// The metadata of all routes that are added later.
    metadata: Vec<Rc<dyn Any>>,
    /// The endpoint, in the current middleware, for requests whose path has a route but whose
    /// method has no handler. Cached: built when a pattern is added, discarded by each `wrap`.
    method_mismatch_endpoint: Option<Rc<dyn Endpoint>>,
    /// Not yet wrapped in this scope's middleware, because middleware added later applies to it
    /// too.
    fallback: Option<Fallback>,
    /// Whether the routes that are added later accept paths that other servers may read
    /// differently.
    pub(crate) allows_ambiguous_paths: bool,
}

impl Scope {
    pub(crate) fn root(context: Rc<AppContext>) -> Self {
        let builder = AppBuilder::new(context);
        Self {
            builder,
            prefix: String::new(),
            middleware: MiddlewareStack::default(),
            guards: Vec::new(),
            metadata: Vec::new(),
            method_mismatch_endpoint: None,
            fallback: None,
            allows_ambiguous_paths: false,
        }
    }

    pub(crate) fn add_middleware<M: Middleware + 'static>(
        mut self,
        middleware: M,
        location: &'static Location<'static>,
    ) -> Self {
        let mut requirements = RouteRequirements::default();
        middleware.require(&mut requirements);
        self.builder.require(format!("the middleware ({location})"), requirements);
        // For patterns that are added later, the endpoint must be inside this middleware too.
        Self {
            middleware: self.middleware.push(middleware),
            method_mismatch_endpoint: None,
            ..self
        }
    }

    /// Passes this scope to `build`, and replaces it with the result.
    pub(crate) fn apply(&mut self, build: impl FnOnce(Self) -> Self) {
        let placeholder = Self::root(Rc::clone(&self.builder.context));
        *self = build(std::mem::replace(self, placeholder));
    }

    pub(crate) fn add_guard(&mut self, guard: impl Guard + 'static) {
        self.guards.push(Rc::new(guard));
    }

    pub(crate) fn add_metadata(&mut self, metadata: Rc<dyn Any>) {
        self.metadata.push(metadata);
    }

    pub(crate) fn add_handler<Args, Via, H>(
        &mut self,
        methods: MethodFilter,
        pattern: &str,
        handler: H,
        location: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let entry = self.new_entry(methods, handler, location);
        let pattern = self.join_pattern(pattern, location);
        let entry = RouteEntry { pattern: pattern.clone(), ..entry };
        entry.check_options(&mut self.builder.errors);
        self.builder.add(entry, &pattern);
    }

    /// The route of a handler, without its pattern.
    fn new_entry<Args, Via, H>(
        &mut self,
        methods: MethodFilter,
        handler: H,
        location: &'static Location<'static>,
    ) -> RouteEntry
    where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let mut options = RouteOptions::default();
        handler.configure(&mut options);
        options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
        let mut requirements = self.inherited_requirements();
        handler.require(&mut requirements);
        let endpoint = self.build_endpoint(HandlerService::new(handler, &options));
        let method_mismatch_endpoint = self.get_or_build_method_mismatch_endpoint();
        RouteEntry {
            pattern: String::new(),
            typed_parameters: Vec::new(),
            omitted_parameters: 0,
            // The scope's guards, then those that the handler has declared.
            guards: self.guards.iter().chain(requirements.guards()).map(Rc::clone).collect(),
            methods,
            endpoint,
            method_mismatch_endpoint,
            options,
            requirements,
            context: Rc::clone(&self.builder.context),
            is_slash_variant: false,
            needs_slash_variant: false,
            location,
        }
    }

    /// What each route inherits from the scope: the path parameters that its middleware needs, and
    /// its metadata. [`RouteRequirements`] carries both. Other requirements of a middleware do not
    /// depend on the route, so they are checked only once.
    fn inherited_requirements(&self) -> RouteRequirements {
        let mut middleware_requirements = RouteRequirements::default();
        self.middleware.require(&mut middleware_requirements);
        let mut inherited = RouteRequirements::default();
        inherited.inherit_from(&middleware_requirements);
        for metadata in &self.metadata {
            inherited.add_metadata(Rc::clone(metadata));
        }
        inherited
    }

    /// Adds a route for the prefix, one for the prefix with a slash unless it is the root, and one
    /// for everything below it.
    pub(crate) fn add_subtree<Args, Via, H>(
        &mut self,
        prefix: &str,
        handler: H,
        location: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let entry = self.new_entry(MethodFilter::Any, handler, location);
        let root = self.join_pattern(prefix.trim_end_matches('/'), location);
        let root_pattern = if root.is_empty() { "/" } else { &root };
        let entry = RouteEntry { pattern: root_pattern.to_owned(), ..entry };
        entry.check_options(&mut self.builder.errors);
        self.builder.add(RouteEntry { needs_slash_variant: true, ..entry.clone() }, root_pattern);
        if !root.is_empty() {
            self.builder
                .add(RouteEntry { is_slash_variant: true, ..entry.clone() }, &format!("{root}/"));
        }
        self.builder.add(entry, &format!("{root}{CATCH_ALL}"));
    }

    pub(crate) fn add_scope(
        &mut self,
        prefix: &str,
        build: impl FnOnce(Self) -> Self,
        location: &'static Location<'static>,
    ) {
        let prefix = self.join_pattern(prefix.trim_end_matches('/'), location);
        let context = Rc::clone(&self.builder.context);
        let builder = std::mem::replace(&mut self.builder, AppBuilder::new(context));
        let (middleware, guards, metadata) =
            (self.middleware.clone(), self.guards.clone(), self.metadata.clone());
        let inner = Self {
            builder,
            prefix,
            middleware,
            guards,
            metadata,
            method_mismatch_endpoint: None,
            fallback: None,
            allows_ambiguous_paths: self.allows_ambiguous_paths,
        };
        let mut inner = build(inner);
        if let Some(fallback) = inner.fallback.take() {
            let endpoint = inner.build_endpoint(ErasedService(Rc::clone(&fallback.endpoint)));
            let prefix = std::mem::take(&mut inner.prefix);
            inner.check_fallback_guards(&prefix, &fallback);
            let fallback = Fallback { endpoint, ..fallback };
            inner.builder.fallbacks.push(ScopeFallback { prefix, fallback });
        }
        self.builder = inner.builder;
    }

    /// Reports a fallback in a guarded scope, because guards have no effect on fallbacks.
    fn check_fallback_guards(&mut self, prefix: &str, fallback: &Fallback) {
        if !self.guards.is_empty() {
            let name = fallback_name(prefix, fallback.location);
            let message = format!(
                "{name} is in a scope or an application with a guard, but handles every request \
                 without a route; move it outside"
            );
            self.builder.errors.push(BuildErrorKind::GuardedFallback { message });
        }
    }

    /// Adds the routes of `other`, wrapped in this scope's middleware.
    pub(crate) fn merge_app(&mut self, mut other: Self, location: &'static Location<'static>) {
        let fallback = other.fallback.take();
        if let Some(fallback) = &fallback {
            other.check_fallback_guards(&other.prefix.clone(), fallback);
        }
        let AppBuilder { routes, fallbacks, errors, requirements, build_hooks, states, context } =
            other.builder;
        let has_states = !states.is_empty();
        // Middleware of this application sees this application's states. Handlers and middleware of
        // `other` see the states of `other`, and this application's for types that `other` lacks.
        let with_states_of_other = |endpoint: Rc<dyn Endpoint>| -> Rc<dyn Endpoint> {
            if has_states { Rc::new(MergedEndpoint::new(&context, endpoint)) } else { endpoint }
        };
        if let Some(mut fallback) = fallback
            && self.fallback.is_none()
        {
            fallback.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
            let endpoint = with_states_of_other(other.middleware.wrap(fallback.endpoint));
            self.fallback = Some(Fallback { endpoint, ..fallback });
        }
        let inherited = self.inherited_requirements();
        // Entries that share an endpoint must also share the wrapped endpoint: the check for
        // ambiguous paths compares endpoints to see whether two paths have the same route.
        // Each pair is an inner endpoint and its wrapped one; the key is the address of the inner.
        let mut wrapped: HashMap<*const (), [Rc<dyn Endpoint>; 2]> = HashMap::new();
        let mut wrap = |inner: Rc<dyn Endpoint>| {
            let pair = wrapped.entry(Rc::as_ptr(&inner).cast()).or_insert_with(|| {
                let outer = self.wrap_endpoint(with_states_of_other(Rc::clone(&inner)));
                // The map keeps the inner endpoint alive, so that its address, the key, is not
                // reused.
                [inner, outer]
            });
            Rc::clone(&pair[1])
        };
        let mut routes = routes;
        for entry in &mut routes {
            entry.endpoint = wrap(Rc::clone(&entry.endpoint));
            entry.method_mismatch_endpoint = wrap(Rc::clone(&entry.method_mismatch_endpoint));
            entry.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
        }
        for mut entry in routes {
            let pattern = self.join_pattern(&entry.pattern, location);
            entry.requirements.inherit_from(&inherited);
            entry.guards.splice(..0, self.guards.iter().map(Rc::clone));
            // The root of `other` had no slash variant. Below a prefix it needs one.
            if entry.pattern == "/" && entry.needs_slash_variant && !self.prefix.is_empty() {
                let slash_variant = RouteEntry {
                    is_slash_variant: true,
                    needs_slash_variant: false,
                    ..(*entry).clone()
                };
                self.builder.add(slash_variant, &format!("{pattern}/"));
            }
            self.builder.add(*entry, &pattern);
        }
        for ScopeFallback { prefix, mut fallback } in fallbacks {
            fallback.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
            let prefix = self.join_pattern(&prefix, location);
            self.check_fallback_guards(&prefix, &fallback);
            let endpoint = self.wrap_endpoint(with_states_of_other(Rc::clone(&fallback.endpoint)));
            let fallback = Fallback { endpoint, ..fallback };
            self.builder.fallbacks.push(ScopeFallback { prefix, fallback });
        }
        self.builder.errors.extend(errors);
        self.builder.requirements.extend(requirements);
        self.builder.build_hooks.extend(build_hooks);
        self.builder.context.add_merged(context, states);
    }

    pub(crate) fn set_fallback<Args, Via, H>(
        &mut self,
        handler: H,
        location: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let mut fallback = Fallback::new(&self.prefix, handler, location, &mut self.builder);
        fallback.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
        self.fallback = Some(fallback);
    }

    /// Splits the root scope into the collected routes and the endpoints for requests without a
    /// route.
    pub(crate) fn finish(mut self) -> (AppBuilder, Unmatched) {
        let (fallback, not_found_options) = match self.fallback.take() {
            Some(Fallback { endpoint, options, .. }) => (Some(endpoint), options),
            None => (None, RouteOptions::default()),
        };
        let has_fallback = fallback.is_some();
        let not_found = self.build_endpoint(DefaultResponses::new(&self.builder.context, fallback));
        let ambiguous = self.build_endpoint(AmbiguousPath);
        (self.builder, Unmatched { not_found, not_found_options, has_fallback, ambiguous })
    }

    /// Wraps `service` in the scope's middleware and erases its type. The application's problem
    /// renderer renders the problems in its responses.
    fn build_endpoint<S: Service + 'static>(&self, service: S) -> Rc<dyn Endpoint> {
        self.middleware.wrap_and_render(service, &self.builder.context)
    }

    /// Wraps an endpoint of a merged application in the scope's middleware. Without middleware
    /// there is nothing to do, because the endpoint already renders the problems in its responses.
    fn wrap_endpoint(&self, endpoint: Rc<dyn Endpoint>) -> Rc<dyn Endpoint> {
        if self.middleware.is_empty() {
            return endpoint;
        }
        self.build_endpoint(ErasedService(endpoint))
    }

    fn get_or_build_method_mismatch_endpoint(&mut self) -> Rc<dyn Endpoint> {
        if let Some(endpoint) = &self.method_mismatch_endpoint {
            return Rc::clone(endpoint);
        }
        let endpoint = self.build_endpoint(DefaultResponses::new(&self.builder.context, None));
        self.method_mismatch_endpoint = Some(Rc::clone(&endpoint));
        endpoint
    }

    /// The full pattern. Inside a prefix, `/` stands for the prefix itself.
    fn join_pattern(&mut self, pattern: &str, location: &'static Location<'static>) -> String {
        if self.prefix.is_empty() {
            return pattern.to_owned();
        }
        if !pattern.is_empty() && !pattern.starts_with('/') {
            // The joined text could be a valid pattern that the author did not intend.
            self.builder.errors.push(BuildErrorKind::InvalidPattern {
                route: format!("`{pattern}` in the scope `{}` ({location})", self.prefix),
                reason: "a pattern begins with `/`: put one in front".to_owned(),
            });
        }
        let pattern = if pattern == "/" { "" } else { pattern };
        format!("{}{pattern}", self.prefix)
    }
}

impl Scope {
    route_methods!();

    /// Runs `middleware` around the routes that are added later in this scope, and inside
    /// middleware that was added earlier.
    #[doc(alias = "layer")]
    #[doc(alias = "middleware")]
    #[doc(alias = "with")]
    #[track_caller]
    #[must_use]
    pub fn wrap<Args, M>(self, middleware: M) -> Self
    where
        M: IntoMiddleware<Args, Middleware: Middleware + 'static>,
    {
        self.add_middleware(middleware.into_middleware(), Location::caller())
    }

    /// Handles requests that have no route, if their path is the scope's prefix or below it. All of
    /// the scope's middleware runs around the fallback, even middleware added later.
    ///
    /// The prefix matches like a route's pattern. If the prefixes of several scopes with a fallback
    /// match, they are compared from the left, as for routes, and the first segment that differs
    /// decides. Literal text takes precedence, then a parameter with text around it, then a
    /// parameter, then the end of the prefix. The order in which the scopes are added does not
    /// matter.
    #[track_caller]
    #[must_use]
    pub fn fallback<Args, Via, H>(mut self, handler: H) -> Self
    where
        H: Signature<Args> + Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        self.set_fallback(handler, Location::caller());
        self
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
