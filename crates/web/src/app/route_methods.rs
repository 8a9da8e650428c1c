//! The methods by which applications and scopes get their routes.

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
            self.on($crate::app::route_table::query_method(), pattern, handler)
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

        /// Lets the routes that follow here, and in the scopes within, answer only what `guard` accepts. See
        /// [`guard`](crate::guard). Of several guards all must accept.
        #[must_use]
        pub fn when(mut self, guard: impl $crate::http::guard::Guard + 'static) -> Self {
            self $($field)*.add_guard(guard);
            self
        }

        /// Turns off the check of ambiguous paths for the routes, fallbacks and merged applications
        /// that follow here, and in the scopes within. See
        /// [`HandlerExt::allow_ambiguous_paths`](crate::HandlerExt::allow_ambiguous_paths).
        #[must_use]
        pub fn allow_ambiguous_paths(mut self) -> Self {
            self $($field)*.allows_ambiguous_paths = true;
            self
        }

        /// Puts `note` beside the routes that follow here, and in the scopes within, for those who look at routes
        /// ([`RouteInfo::notes`](crate::application::RouteInfo::notes)). It has no effect on requests.
        #[must_use]
        pub fn noted<T: 'static>(mut self, note: T) -> Self {
            self $($field)*.add_note(Rc::new(note));
            self
        }

        /// Calls `inspector` when the application is built, with all of its routes; of a merged application, with
        /// those of the one that it was merged into. What it finds wrong are faults: each says what, where, and how
        /// to fix it.
        #[must_use]
        pub fn inspect(
            mut self,
            inspector: impl FnOnce(&$crate::Application) -> Result<(), Vec<String>> + 'static,
        ) -> Self {
            self $($field)*.plan.inspectors.push(Box::new(inspector));
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

        /// Adds the routes of a function from scope to scope, of a handler that was made with the attribute macros (the
        /// feature `macros`), or of a tuple of these.
        #[allow(clippy::should_implement_trait, reason = "nobody takes an application for a number")]
        #[must_use]
        pub fn add(mut self, routes: impl $crate::app::register::Routed) -> Self {
            routes.add_to(&mut self $($field)*);
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
