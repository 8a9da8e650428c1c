//! The methods of applications and scopes that add routes.

/// The methods that applications and scopes share. `$field` is the path from `self` to the scope.
/// The type parameters `Args` and `Via` are markers that the compiler infers
/// ([`Handler`](crate::app::handler::Handler)).
macro_rules! route_methods {
    ($($field:tt)*) => {
        /// Handles GET requests for `pattern`. HEAD requests call `handler` too, unless they have
        /// their own handler: `handler` sees the method HEAD, and the server omits the body.
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

        /// Handles POST requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn post<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::POST, pattern, handler)
        }

        /// Handles PUT requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn put<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::PUT, pattern, handler)
        }

        /// Handles DELETE requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn delete<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::DELETE, pattern, handler)
        }

        /// Handles PATCH requests for `pattern`.
        #[track_caller]
        #[must_use]
        pub fn patch<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::PATCH, pattern, handler)
        }

        /// Handles HEAD requests for `pattern`, in place of the handler for GET.
        #[track_caller]
        #[must_use]
        pub fn head<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::HEAD, pattern, handler)
        }

        /// Handles OPTIONS requests for `pattern`, in place of the automatic response.
        #[track_caller]
        #[must_use]
        pub fn options<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on(Method::OPTIONS, pattern, handler)
        }

        /// Handles QUERY requests for `pattern`: safe requests with a body.
        #[track_caller]
        #[must_use]
        pub fn query<Args, Via, H>(self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            self.on($crate::app::route_table::query_method(), pattern, handler)
        }

        /// Handles requests for `pattern` with any method that has no other handler there.
        #[track_caller]
        #[must_use]
        pub fn any<Args, Via, H>(mut self, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            let location = Location::caller();
            self $($field)*.add_handler(MethodFilter::Any, pattern, handler, location);
            self
        }

        /// Handles requests for `prefix`, for `prefix/`, and for everything below it, with any
        /// method that has no other handler there. Use it for handlers that route requests
        /// themselves. Routes of this application that match a path more specifically take
        /// precedence.
        #[doc(alias = "nest_service")]
        #[doc(alias = "nest_no_strip")]
        #[doc(alias = "prefix")]
        #[doc(alias = "catch_all")]
        #[doc(alias = "wildcard")]
        #[track_caller]
        #[must_use]
        pub fn subtree<Args, Via, H>(mut self, prefix: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            let location = Location::caller();
            self $($field)*.add_subtree(prefix, handler, location);
            self
        }

        /// Handles requests for `pattern` with `method`, which may be an extension method:
        /// `Method::from_bytes(b"PURGE")`.
        #[track_caller]
        #[must_use]
        pub fn on<Args, Via, H>(mut self, method: Method, pattern: &str, handler: H) -> Self
        where
            H: Signature<Args> + Handler<Args, Via> + 'static,
            (Args, Via): 'static,
        {
            let location = Location::caller();
            self $($field)*.add_handler(MethodFilter::One(method), pattern, handler, location);
            self
        }

        /// Handles requests for `pattern` with several methods:
        /// `.route("/users", route::get(list).post(create))`.
        #[track_caller]
        #[must_use]
        pub fn route<T: MethodRoutes>(mut self, pattern: &str, methods: MethodRouter<T>) -> Self {
            let location = Location::caller();
            methods.add_to(&mut self $($field)*, pattern, location);
            self
        }

        /// Restricts the routes that are added later, here and in nested scopes, to requests that
        /// `guard` accepts. If there are several guards, all must accept. See
        /// [`guard`](crate::guard).
        #[doc(alias = "predicate")]
        #[doc(alias = "when")]
        #[must_use]
        pub fn guard(mut self, guard: impl $crate::http::guard::Guard + 'static) -> Self {
            self $($field)*.add_guard(guard);
            self
        }

        /// Turns off the check of ambiguous paths for the routes, fallbacks and merged applications
        /// that are added later, here and in nested scopes. See
        /// [`HandlerExt::allow_ambiguous_paths`](crate::HandlerExt::allow_ambiguous_paths).
        #[must_use]
        pub fn allow_ambiguous_paths(mut self) -> Self {
            self $($field)*.allows_ambiguous_paths = true;
            self
        }

        /// Attaches `metadata` to the routes that are added later, here and in nested scopes, for
        /// code that inspects routes ([`RouteInfo::metadata`](crate::built::RouteInfo::metadata)).
        /// It does not affect requests.
        #[doc(alias = "noted")]
        #[must_use]
        pub fn with_metadata<T: 'static>(mut self, metadata: T) -> Self {
            self $($field)*.add_metadata(Rc::new(metadata));
            self
        }

        /// Adds a check that runs after the application is built, if there are no other errors.
        /// `check` receives the built application with all of its routes. If this application is
        /// merged into another one, `check` receives the other one. Each text that `check` returns
        /// is reported as an error, so the text should say what is wrong, where it is in the
        /// source, and how to fix it.
        #[doc(alias = "inspect")]
        #[must_use]
        pub fn on_build(
            mut self,
            check: impl FnOnce(&$crate::BuiltApp) -> Result<(), Vec<String>> + 'static,
        ) -> Self {
            self $($field)*.builder.build_hooks.push(Box::new(check));
            self
        }

        /// Shares `value` with all handlers of the application, which receive it as `State<T>`,
        /// where `T` is its type. A later value of the same type replaces an earlier one.
        ///
        /// Each worker builds its own application, so a value that workers share must be in an
        /// `Arc`. Handlers extract the `Arc` as [`StateRef`](crate::extract::StateRef), which does
        /// not change the `Arc`'s reference count.
        #[doc(alias = "with_state")]
        #[doc(alias = "app_data")]
        #[doc(alias = "manage")]
        #[must_use]
        pub fn state<T: 'static>(mut self, value: T) -> Self {
            self $($field)*.builder.states.insert(value);
            self
        }

        /// Adds all routes of `other` under the prefix of this scope. Each route keeps its own
        /// middleware, and the middleware added here so far runs outside it.
        ///
        /// The handlers and middleware of `other` see the states of `other`. For a type that
        /// `other` lacks, they see the state of this application. If `other` has its own function
        /// that renders problems ([`App::on_problem`](crate::App::on_problem)), its routes still
        /// use that function. If there is no fallback here, the fallback of `other` is used. The
        /// states of `other` are not visible here, and its settings of trailing slashes and method
        /// overrides have no effect.
        #[track_caller]
        #[must_use]
        pub fn merge(mut self, other: $crate::app::App) -> Self {
            let location = Location::caller();
            self $($field)*.merge_app(other.into_scope(), location);
            self
        }

        /// Adds the routes of a function that takes a scope and returns it, of a handler defined
        /// with an attribute macro (feature `macros`), or of a tuple of these.
        #[doc(alias = "service")]
        #[doc(alias = "configure")]
        #[doc(alias = "add")]
        #[must_use]
        pub fn register(mut self, routes: impl $crate::app::register::RegisterRoutes) -> Self {
            routes.register(&mut self $($field)*);
            self
        }

        /// Adds a scope under `prefix`, inside the middleware added so far. `build` receives the
        /// scope and adds routes to it.
        #[doc(alias = "nest")]
        #[doc(alias = "subtree")]
        #[track_caller]
        #[must_use]
        pub fn scope(mut self, prefix: &str, build: impl FnOnce(Scope) -> Scope) -> Self {
            let location = Location::caller();
            self $($field)*.add_scope(prefix, build, location);
            self
        }
    };
}
pub(crate) use route_methods;
