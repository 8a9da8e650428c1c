//! Scopes: routes under one prefix, inside the same middleware.

use crate::fault::Fault;
use crate::handler::{Handler, HandlerService, RouteOptions, Signature};
use crate::middleware::{Chain, IntoMiddleware, Middleware};
use crate::plan::{Entry, Fallback, Plan, ScopeFallback};
use crate::requirements::Requirements;
use crate::route::{MethodRouter, Methods, Routes};
use crate::service::{Endpoint, Erased, Service};
use crate::unrouted::{Guest, Shared, Unrouted};
use http::Method;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

/// Routes under one prefix, inside the same middleware. [`App::scope`](crate::App::scope) makes one.
///
/// Patterns are relative to the prefix: in the scope `/users`, the pattern `/{id}` is `/users/{id}`,
/// and both `/` and the empty pattern are `/users` itself. Middleware given to [`Scope::with`] applies
/// to the routes that follow it in this scope, inside the middleware of the scopes around it.
///
/// A function may fill a scope, so that a module keeps its routes to itself:
///
/// ```
/// use peregrine::web::{App, Scope};
///
/// fn users(scope: Scope) -> Scope {
///     scope.get("/", || "everybody").get("/{id}", || "somebody")
/// }
///
/// let app = App::new().scope("/users", users);
/// assert_eq!(app.test().get("/users").send_now().text(), "everybody");
/// ```
pub struct Scope {
    pub(crate) plan: Plan,
    prefix: String,
    chain: Chain,
    /// Answers requests for the patterns that follow, in methods that they lack. Made when the first
    /// such pattern is added.
    unrouted: Option<Rc<dyn Endpoint>>,
    fallback: Option<Fallback>,
}

/// The end of a route's pattern for everything below a prefix ([`App::subtree`](crate::App::subtree)).
pub const REST: &str = "/{*peregrine_rest}";

impl Scope {
    pub(crate) fn root(shared: Rc<Shared>) -> Self {
        let plan = Plan::new(shared);
        Self {
            plan,
            prefix: String::new(),
            chain: Chain::default(),
            unrouted: None,
            fallback: None,
        }
    }

    pub(crate) fn add_with<M: Middleware + 'static>(
        mut self,
        middleware: M,
        place: &'static Location<'static>,
    ) -> Self {
        let mut requirements = Requirements::default();
        middleware.require(&mut requirements);
        self.plan.need(format!("the middleware ({place})"), requirements);
        Self { chain: self.chain.and(middleware), unrouted: None, ..self }
    }

    pub(crate) fn add_handler<Args, Via, H>(
        &mut self,
        methods: Methods,
        pattern: &str,
        handler: H,
        place: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let entry = self.entry(methods, handler, place);
        let pattern = self.join(pattern, place);
        let entry = Entry { pattern, ..entry };
        entry.unkept(&mut self.plan.faults);
        self.plan.entries.push(entry.into());
    }

    /// The route of a handler, for a pattern that is set later.
    fn entry<Args, Via, H>(
        &mut self,
        methods: Methods,
        handler: H,
        place: &'static Location<'static>,
    ) -> Entry
    where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        let mut options = RouteOptions::default();
        handler.configure(&mut options);
        let mut requirements = self.needs_of_path();
        handler.require(&mut requirements);
        let endpoint = self.endpoint(HandlerService::new(handler, &options));
        let unrouted = self.unrouted();
        Entry {
            pattern: String::new(),
            methods,
            endpoint,
            unrouted,
            options,
            requirements,
            shared: Rc::clone(&self.plan.shared),
            is_slash_twin: false,
            place,
        }
    }

    /// What the middleware so far need from a route's path. Their other needs are checked once for each
    /// middleware.
    fn needs_of_path(&self) -> Requirements {
        let mut all = Requirements::default();
        self.chain.require(&mut all);
        let mut of_path = Requirements::default();
        of_path.extend_paths(&all);
        of_path
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
        let entry = self.entry(Methods::Any, handler, place);
        let root = self.join(prefix.trim_end_matches('/'), place);
        let below = Entry { pattern: format!("{root}{REST}"), ..entry.clone() };
        let slash = Entry { pattern: format!("{root}/"), ..entry.clone() };
        if root.is_empty() {
            slash.unkept(&mut self.plan.faults);
            self.plan.entries.extend([slash, below].map(Box::new));
        } else {
            let slash = Entry { is_slash_twin: true, ..slash };
            let root = Entry { pattern: root, ..entry };
            root.unkept(&mut self.plan.faults);
            self.plan.entries.extend([root, slash, below].map(Box::new));
        }
    }

    pub(crate) fn add_scope(
        &mut self,
        prefix: &str,
        build: impl FnOnce(Self) -> Self,
        place: &'static Location<'static>,
    ) {
        let prefix = self.join(prefix.trim_end_matches('/'), place);
        let shared = Rc::clone(&self.plan.shared);
        let plan = std::mem::replace(&mut self.plan, Plan::new(shared));
        let chain = self.chain.clone();
        let mut inner = build(Self { plan, prefix, chain, unrouted: None, fallback: None });
        if let Some(fallback) = inner.fallback.take() {
            let endpoint = inner.endpoint(Erased(Rc::clone(&fallback.endpoint)));
            let prefix = std::mem::take(&mut inner.prefix);
            let fallback = Fallback { endpoint, ..fallback };
            inner.plan.fallbacks.push(ScopeFallback { prefix, fallback });
        }
        self.plan = inner.plan;
    }

    /// Adds the routes of `other`, wrapped again in what is around them here.
    pub(crate) fn add_app(&mut self, mut other: Self, place: &'static Location<'static>) {
        let fallback = other.fallback.take();
        let Plan { entries, fallbacks, faults, needs, states, shared } = other.plan;
        let has_states = !states.is_empty();
        // Middleware of this application see its states; code inside sees those of `other`.
        let guest = |endpoint: Rc<dyn Endpoint>| -> Rc<dyn Endpoint> {
            if has_states { Rc::new(Guest::new(&shared, endpoint)) } else { endpoint }
        };
        if let Some(fallback) = fallback
            && self.fallback.is_none()
        {
            let endpoint = guest(other.chain.wrap(fallback.endpoint));
            self.fallback = Some(Fallback { endpoint, ..fallback });
        }
        let needs_of_path = self.needs_of_path();
        for mut entry in entries {
            entry.pattern = self.join(&entry.pattern, place);
            entry.endpoint = self.around(guest(entry.endpoint));
            entry.unrouted = self.around(guest(entry.unrouted));
            entry.requirements.extend_paths(&needs_of_path);
            self.plan.entries.push(entry);
        }
        for ScopeFallback { prefix, fallback } in fallbacks {
            let prefix = self.join(&prefix, place);
            let endpoint = self.around(guest(Rc::clone(&fallback.endpoint)));
            let fallback = Fallback { endpoint, ..fallback };
            self.plan.fallbacks.push(ScopeFallback { prefix, fallback });
        }
        self.plan.faults.extend(faults);
        self.plan.needs.extend(needs);
        self.plan.shared.lead(shared, states);
    }

    pub(crate) fn set_fallback<Args, Via, H>(
        &mut self,
        handler: H,
        place: &'static Location<'static>,
    ) where
        H: Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        self.fallback = Some(Fallback::new(&self.prefix, handler, place, &mut self.plan));
    }

    /// Takes the root scope apart: all routes, the answer for requests without a route, and that
    /// answer's options.
    pub(crate) fn finish(mut self) -> (Plan, Rc<dyn Endpoint>, RouteOptions) {
        let (fallback, options) = match self.fallback.take() {
            Some(Fallback { endpoint, options, .. }) => (Some(endpoint), options),
            None => (None, RouteOptions::default()),
        };
        let endpoint = self.endpoint(Unrouted::new(&self.plan.shared, fallback));
        (self.plan, endpoint, options)
    }

    /// `service` inside the middleware, with its type erased and its problems in the application's
    /// form.
    fn endpoint<S: Service + 'static>(&self, service: S) -> Rc<dyn Endpoint> {
        self.chain.render(service, &self.plan.shared)
    }

    fn around(&self, endpoint: Rc<dyn Endpoint>) -> Rc<dyn Endpoint> {
        if self.chain.is_empty() {
            return endpoint;
        }
        self.endpoint(Erased(endpoint))
    }

    fn unrouted(&mut self) -> Rc<dyn Endpoint> {
        if let Some(endpoint) = &self.unrouted {
            return Rc::clone(endpoint);
        }
        let endpoint = self.endpoint(Unrouted::new(&self.plan.shared, None));
        self.unrouted = Some(Rc::clone(&endpoint));
        endpoint
    }

    /// The whole pattern. Within a prefix, `/` is the prefix itself.
    fn join(&mut self, pattern: &str, place: &'static Location<'static>) -> String {
        if self.prefix.is_empty() {
            return pattern.to_owned();
        }
        if !pattern.is_empty() && !pattern.starts_with('/') {
            // The joined text could pass for a valid pattern that nobody meant.
            self.plan.faults.push(Fault::Pattern {
                route: format!("`{pattern}` in the scope `{}` ({place})", self.prefix),
                reason: "a pattern begins with `/`: put one in front".to_owned(),
            });
        }
        let pattern = if pattern == "/" { "" } else { pattern };
        format!("{}{pattern}", self.prefix)
    }
}

/// The methods that applications and scopes share. `$field` leads from `self` to the scope.
macro_rules! routing {
    ($($field:tt)*) => {
        /// Answers GET requests for `pattern`, and HEAD requests too unless they have a handler of
        /// their own: `handler` then sees the method HEAD, and the server leaves the body out.
        ///
        /// [`App`](crate::App#patterns) describes what a pattern may contain.
        #[track_caller]
        #[must_use]
        pub fn get<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::GET, pattern, handler)
        }

        /// Answers POST requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn post<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::POST, pattern, handler)
        }

        /// Answers PUT requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn put<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::PUT, pattern, handler)
        }

        /// Answers DELETE requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn delete<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::DELETE, pattern, handler)
        }

        /// Answers PATCH requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn patch<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::PATCH, pattern, handler)
        }

        /// Answers HEAD requests for `pattern`, in place of the handler for GET.
        #[track_caller]
        #[must_use]
        pub fn head<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::HEAD, pattern, handler)
        }

        /// Answers OPTIONS requests for `pattern`, in place of the automatic answer.
        #[track_caller]
        #[must_use]
        pub fn options<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::OPTIONS, pattern, handler)
        }

        /// Answers QUERY requests for `pattern`: safe requests with content.
        #[track_caller]
        #[must_use]
        pub fn query<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on($crate::route::query_method(), pattern, handler)
        }

        /// Answers requests for `pattern` in every method that has no other handler there.
        #[track_caller]
        #[must_use]
        pub fn any<Args, Via, H>(mut self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            let place = Location::caller();
            self $($field)*.add_handler(Methods::Any, pattern, handler, place);
            self
        }

        /// Answers requests for `prefix`, for `prefix/`, and for everything below it, in every method
        /// that has no other handler there: for handlers with routes of their own. Routes of this
        /// application that match a path more specifically go first.
        #[track_caller]
        #[must_use]
        pub fn subtree<Args, Via, H>(mut self, prefix: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            let place = Location::caller();
            self $($field)*.add_subtree(prefix, handler, place);
            self
        }

        /// Answers requests for `pattern` in `method`, which may be one of your own:
        /// `Method::from_bytes(b"PURGE")`.
        #[track_caller]
        #[must_use]
        pub fn on<Args, Via, H>(mut self, method: Method, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            let place = Location::caller();
            self $($field)*.add_handler(Methods::One(method), pattern, handler, place);
            self
        }

        /// Answers requests for `pattern` in several methods:
        /// `.route("/users", route::get(list).post(create))`.
        #[track_caller]
        #[must_use]
        pub fn route<T: Routes>(mut self, pattern: &str, methods: MethodRouter<T>) -> Self {
            let place = Location::caller();
            methods.add_to(&mut self $($field)*, pattern, place);
            self
        }

        /// Shares `value` with all handlers of the application, which get it as `State<T>`; `T` is its
        /// type. A later value of the same type replaces an earlier one.
        ///
        /// Every worker builds its own application, so a value that workers share is an `Arc`; handlers
        /// take it as [`StateRef`](crate::extract::StateRef), which does not count references across
        /// cores.
        #[must_use]
        pub fn state<T: 'static>(mut self, value: T) -> Self {
            self $($field)*.plan.states.insert(value);
            self
        }

        /// Adds all routes of `other` here: under the prefix of this scope, each inside its own
        /// middleware, and then inside the middleware added here so far.
        ///
        /// What belongs to `other` stays with it: its handlers and middleware see its own states and,
        /// for types that it lacks, the states given here; if it renders problems with a function of
        /// its own, that still applies to its routes. Nothing given to `other` is visible here, except
        /// its fallback, which comes along if there is none here.
        #[track_caller]
        #[must_use]
        pub fn merge(mut self, other: $crate::app::App) -> Self {
            let place = Location::caller();
            self $($field)*.add_app(other.into_scope(), place);
            self
        }

        /// Adds the routes that `build` adds to the scope it gets, under `prefix` and inside the
        /// middleware so far.
        #[track_caller]
        #[must_use]
        pub fn scope(mut self, prefix: &str, build: impl FnOnce(Scope) -> Scope) -> Self {
            let place = Location::caller();
            self $($field)*.add_scope(prefix, build, place);
            self
        }
    };
}
pub(crate) use routing;

impl Scope {
    routing!();

    /// Runs `middleware` around the routes that follow in this scope, inside middleware added earlier.
    #[track_caller]
    #[must_use]
    pub fn with<Args, M>(self, middleware: M) -> Self
    where
        M: IntoMiddleware<Args, Middleware: Middleware + 'static>,
    {
        self.add_with(middleware.into_middleware(), Location::caller())
    }

    /// Answers requests for the scope's prefix, and everything below, that have no route. All of the
    /// scope's middleware runs around the fallback, even if it is added later.
    ///
    /// The prefix matches as a route's pattern does. Of several scopes with a fallback, the first
    /// segment (from the left) in which their prefixes differ decides, as among routes: literal text,
    /// then a parameter with text around it, then a parameter, then the end of the prefix. The order in
    /// which they are added never matters.
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
