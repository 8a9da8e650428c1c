//! Scopes: routes under a common prefix, inside the same middleware.

use crate::app::builder::{AppBuilder, RouteEntry};
use crate::app::default_responses::{
    AmbiguousPath, AppContext, DefaultResponses, MergedApp, Unmatched,
};
use crate::app::error::BuildErrorKind;
use crate::app::fallbacks::{Fallback, ScopeFallback, fallback_name};
use crate::app::handler::{Handler, HandlerService, Signature};
use crate::app::middleware::{IntoMiddleware, Middleware, MiddlewareStack};
use crate::app::route::{MethodRouter, MethodRoutes};
use crate::app::route_methods::route_methods;
use crate::app::route_table::MethodFilter;
use crate::http::guard::Guard;
use crate::http::requirements::Requirements;
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
/// `/users/{id}`, and both `/` and the empty pattern are `/users` itself. Middleware given to
/// [`Scope::wrap`] applies to the routes that are added later in this scope. It runs inside the
/// middleware of the enclosing scopes.
///
/// A function may fill a scope, so that a module keeps its routes private:
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
    prefix: String,
    middleware: MiddlewareStack,
    /// The guards of all routes that are added later.
    guards: Vec<Rc<dyn Guard>>,
    /// The metadata of all routes that are added later.
    metadata: Vec<Rc<dyn Any>>,
    /// Answers requests whose method has no handler, for the patterns that are added later. Created
    /// when the first such pattern is added.
    default_response: Option<Rc<dyn Endpoint>>,
    fallback: Option<Fallback>,
    /// Whether the routes that are added later accept paths that other servers may read
    /// differently.
    pub(crate) allows_ambiguous_paths: bool,
}

impl Scope {
    pub(crate) fn root(shared: Rc<AppContext>) -> Self {
        let plan = AppBuilder::new(shared);
        Self {
            builder: plan,
            prefix: String::new(),
            middleware: MiddlewareStack::default(),
            guards: Vec::new(),
            metadata: Vec::new(),
            default_response: None,
            fallback: None,
            allows_ambiguous_paths: false,
        }
    }

    pub(crate) fn add_middleware<M: Middleware + 'static>(
        mut self,
        middleware: M,
        place: &'static Location<'static>,
    ) -> Self {
        let mut requirements = Requirements::default();
        middleware.require(&mut requirements);
        self.builder.require(format!("the middleware ({place})"), requirements);
        Self { middleware: self.middleware.push(middleware), default_response: None, ..self }
    }

    /// Passes this scope through `build`.
    pub(crate) fn apply(&mut self, build: impl FnOnce(Self) -> Self) {
        let left = Self::root(Rc::clone(&self.builder.shared));
        *self = build(std::mem::replace(self, left));
    }

    pub(crate) fn add_guard(&mut self, guard: impl Guard + 'static) {
        self.guards.push(Rc::new(guard));
    }

    pub(crate) fn add_metadata(&mut self, note: Rc<dyn Any>) {
        self.metadata.push(note);
    }

    pub(crate) fn add_handler<Args, Via, H>(
        &mut self,
        methods: MethodFilter,
        pattern: &str,
        handler: H,
        place: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let entry = self.new_entry(methods, handler, place);
        let pattern = self.join_pattern(pattern, place);
        let entry = RouteEntry { pattern: pattern.clone(), ..entry };
        entry.check_options(&mut self.builder.errors);
        self.builder.add(entry, &pattern);
    }

    /// The route of a handler, without its pattern.
    fn new_entry<Args, Via, H>(
        &mut self,
        methods: MethodFilter,
        handler: H,
        place: &'static Location<'static>,
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
        let endpoint = self.endpoint(HandlerService::new(handler, &options));
        let unrouted = self.default_response();
        RouteEntry {
            pattern: String::new(),
            typed_parameters: Vec::new(),
            omitted: 0,
            guards: self.guards.iter().chain(requirements.guards()).map(Rc::clone).collect(),
            methods,
            endpoint,
            default_response: unrouted,
            options,
            requirements,
            shared: Rc::clone(&self.builder.shared),
            is_slash_variant: false,
            has_slash_variant: false,
            location: place,
        }
    }

    /// The requirements that each route gets from the scope: the path parameters that the
    /// middleware added so far needs, and the metadata. Other requirements of a middleware are
    /// checked only once.
    fn inherited_requirements(&self) -> Requirements {
        let mut all = Requirements::default();
        self.middleware.require(&mut all);
        let mut of_route = Requirements::default();
        of_route.inherit_from(&all);
        for note in &self.metadata {
            of_route.add_metadata(Rc::clone(note));
        }
        of_route
    }

    pub(crate) fn add_subtree<Args, Via, H>(
        &mut self,
        prefix: &str,
        handler: H,
        place: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let entry = self.new_entry(MethodFilter::Any, handler, place);
        let root = self.join_pattern(prefix.trim_end_matches('/'), place);
        let whole = if root.is_empty() { "/" } else { &root };
        let entry = RouteEntry { pattern: whole.to_owned(), ..entry };
        entry.check_options(&mut self.builder.errors);
        self.builder.add(RouteEntry { has_slash_variant: true, ..entry.clone() }, whole);
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
        place: &'static Location<'static>,
    ) {
        let prefix = self.join_pattern(prefix.trim_end_matches('/'), place);
        let shared = Rc::clone(&self.builder.shared);
        let plan = std::mem::replace(&mut self.builder, AppBuilder::new(shared));
        let (chain, guards, notes) =
            (self.middleware.clone(), self.guards.clone(), self.metadata.clone());
        let inner = Self {
            builder: plan,
            prefix,
            middleware: chain,
            guards,
            metadata: notes,
            default_response: None,
            fallback: None,
            allows_ambiguous_paths: self.allows_ambiguous_paths,
        };
        let mut inner = build(inner);
        if let Some(fallback) = inner.fallback.take() {
            let endpoint = inner.endpoint(ErasedService(Rc::clone(&fallback.endpoint)));
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
            let what = format!(
                "{name} is in a scope or an application with a guard, but answers every request \
                 without a route; move it outside"
            );
            self.builder.errors.push(BuildErrorKind::GuardedFallback { message: what });
        }
    }

    /// Adds the routes of `other`, wrapped in this scope's middleware.
    pub(crate) fn merge_app(&mut self, mut other: Self, place: &'static Location<'static>) {
        let fallback = other.fallback.take();
        if let Some(fallback) = &fallback {
            other.check_fallback_guards(&other.prefix.clone(), fallback);
        }
        let AppBuilder {
            routes: entries,
            fallbacks,
            errors: faults,
            requirements: needs,
            build_hooks: inspectors,
            states,
            shared,
        } = other.builder;
        let has_states = !states.is_empty();
        // Middleware of this application sees this application's states. Handlers and middleware of
        // `other` see the states of `other`.
        let guest = |endpoint: Rc<dyn Endpoint>| -> Rc<dyn Endpoint> {
            if has_states { Rc::new(MergedApp::new(&shared, endpoint)) } else { endpoint }
        };
        if let Some(mut fallback) = fallback
            && self.fallback.is_none()
        {
            fallback.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
            let endpoint = guest(other.middleware.wrap(fallback.endpoint));
            self.fallback = Some(Fallback { endpoint, ..fallback });
        }
        let needs_around = self.inherited_requirements();
        // If several entries share an endpoint, they also share the wrapped endpoint, so that they
        // still count as one route.
        let mut wrapped: HashMap<*const (), [Rc<dyn Endpoint>; 2]> = HashMap::new();
        let mut wrap = |inner: Rc<dyn Endpoint>| {
            let pair = wrapped.entry(Rc::as_ptr(&inner).cast()).or_insert_with(|| {
                let outer = self.wrap_endpoint(guest(Rc::clone(&inner)));
                // The map keeps the inner endpoint alive, so that its address, the key, is not
                // reused.
                [inner, outer]
            });
            Rc::clone(&pair[1])
        };
        let mut entries = entries;
        for entry in &mut entries {
            entry.endpoint = wrap(Rc::clone(&entry.endpoint));
            entry.default_response = wrap(Rc::clone(&entry.default_response));
            entry.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
        }
        for mut entry in entries {
            let pattern = self.join_pattern(&entry.pattern, place);
            entry.requirements.inherit_from(&needs_around);
            entry.guards.splice(..0, self.guards.iter().map(Rc::clone));
            if entry.pattern == "/" && entry.has_slash_variant && !self.prefix.is_empty() {
                let twin = RouteEntry {
                    is_slash_variant: true,
                    has_slash_variant: false,
                    ..(*entry).clone()
                };
                self.builder.add(twin, &format!("{pattern}/"));
            }
            self.builder.add(*entry, &pattern);
        }
        for ScopeFallback { prefix, mut fallback } in fallbacks {
            fallback.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
            let prefix = self.join_pattern(&prefix, place);
            self.check_fallback_guards(&prefix, &fallback);
            let endpoint = self.wrap_endpoint(guest(Rc::clone(&fallback.endpoint)));
            let fallback = Fallback { endpoint, ..fallback };
            self.builder.fallbacks.push(ScopeFallback { prefix, fallback });
        }
        self.builder.errors.extend(faults);
        self.builder.requirements.extend(needs);
        self.builder.build_hooks.extend(inspectors);
        self.builder.shared.add_merged(shared, states);
    }

    pub(crate) fn set_fallback<Args, Via, H>(
        &mut self,
        handler: H,
        place: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let mut fallback = Fallback::new(&self.prefix, handler, place, &mut self.builder);
        fallback.options.allows_ambiguous_paths |= self.allows_ambiguous_paths;
        self.fallback = Some(fallback);
    }

    /// Splits the root scope into the collected routes and the endpoints for requests without a
    /// route.
    pub(crate) fn finish(mut self) -> (AppBuilder, Unmatched) {
        let (fallback, missing_options) = match self.fallback.take() {
            Some(Fallback { endpoint, options, .. }) => (Some(endpoint), options),
            None => (None, RouteOptions::default()),
        };
        let has_fallback = fallback.is_some();
        let missing = self.endpoint(DefaultResponses::new(&self.builder.shared, fallback));
        let ambiguous = self.endpoint(AmbiguousPath);
        (
            self.builder,
            Unmatched {
                not_found: missing,
                not_found_options: missing_options,
                has_fallback,
                ambiguous,
            },
        )
    }

    /// Wraps `service` in the scope's middleware and erases its type. The application renders its
    /// problems.
    fn endpoint<S: Service + 'static>(&self, service: S) -> Rc<dyn Endpoint> {
        self.middleware.wrap_and_render(service, &self.builder.shared)
    }

    fn wrap_endpoint(&self, endpoint: Rc<dyn Endpoint>) -> Rc<dyn Endpoint> {
        if self.middleware.is_empty() {
            return endpoint;
        }
        self.endpoint(ErasedService(endpoint))
    }

    fn default_response(&mut self) -> Rc<dyn Endpoint> {
        if let Some(endpoint) = &self.default_response {
            return Rc::clone(endpoint);
        }
        let endpoint = self.endpoint(DefaultResponses::new(&self.builder.shared, None));
        self.default_response = Some(Rc::clone(&endpoint));
        endpoint
    }

    /// The full pattern. Inside a prefix, `/` stands for the prefix itself.
    fn join_pattern(&mut self, pattern: &str, place: &'static Location<'static>) -> String {
        if self.prefix.is_empty() {
            return pattern.to_owned();
        }
        if !pattern.is_empty() && !pattern.starts_with('/') {
            // The joined text could be a valid pattern that the author did not intend.
            self.builder.errors.push(BuildErrorKind::InvalidPattern {
                route: format!("`{pattern}` in the scope `{}` ({place})", self.prefix),
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

    /// Answers requests that have no route, if their path is the scope's prefix or below it. All of
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
