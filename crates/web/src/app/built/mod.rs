//! A built application, which finds the target of a request from the request's head.

mod ambiguous_path;
mod route;

use crate::app::default_responses::{AppContext, RoutingPanic, Unmatched};
use crate::app::fallbacks::Fallbacks;
use crate::app::handler::{Handler, Signature, ViaBuiltApp};
use crate::app::method_override::MethodOverride;
use crate::app::route_table::RouteTable;
use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::requirements::RouteRequirements;
use crate::http::response::Response;
use crate::http::service::{Endpoint, Service};
use crate::http::state::States;
use peregrine_proto::{Method, TargetForm};
use peregrine_router::{Match, Parameters, may_be_ambiguous};
pub(crate) use route::{BuiltRoute, RouteDetails};
pub use route::{MatchedEndpoint, RouteInfo};
use route::{NEVER_SHED_OPTIONS, UNMATCHED_OPTIONS};
use std::fmt;
use std::rc::Rc;

/// An application that is checked and ready to run. Each worker builds its own: the type is neither
/// `Send` nor `Sync` and contains no locks.
///
/// A server calls [`BuiltApp::find`] with each head and then [`MatchedEndpoint::call`] with the
/// request.
#[doc(alias = "Application")]
#[doc(alias = "Router")]
pub struct BuiltApp {
    table: Rc<RouteTable>,
    routes: Rc<[BuiltRoute]>,
    fallbacks: Rc<Fallbacks>,
    unmatched: Unmatched,
    context: Rc<AppContext>,
    interceptor: Option<Box<Interceptor>>,
    method_override: Option<Rc<MethodOverride>>,
    routing_panic: RoutingPanic,
}

/// A service that handles the requests that `filter` selects, before routes are looked up.
struct Interceptor {
    filter: Box<InterceptFilter>,
    endpoint: Rc<dyn Endpoint>,
}

type InterceptFilter = dyn Fn(&RequestHead) -> Option<Intercept>;

/// How the server treats a request that an interceptor handles.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intercept {
    /// The server itself depends on the response, so it never sheds the request.
    NeverShed,
    /// The request may also be for a route, so the server may shed it like any other.
    Sheddable,
}

impl BuiltApp {
    pub(crate) fn new(
        table: Rc<RouteTable>,
        routes: Box<[BuiltRoute]>,
        fallbacks: Fallbacks,
        unmatched: Unmatched,
        context: Rc<AppContext>,
    ) -> Self {
        let (routes, fallbacks) = (routes.into(), Rc::new(fallbacks));
        Self {
            table,
            routes,
            fallbacks,
            unmatched,
            context,
            interceptor: None,
            method_override: None,
            routing_panic: RoutingPanic::new(),
        }
    }

    pub(crate) fn with_method_override(self, method_override: Option<Rc<MethodOverride>>) -> Self {
        Self { method_override, ..self }
    }

    /// Passes the requests for which `filter` returns an [`Intercept`] to a service, before all
    /// routes and without the application's middleware. `new_service` receives this application, so
    /// that the service can pass on requests that it does not handle.
    #[doc(hidden)]
    #[must_use]
    pub fn intercept<S: Service + 'static>(
        mut self,
        filter: impl Fn(&RequestHead) -> Option<Intercept> + 'static,
        new_service: impl FnOnce(Self) -> S,
    ) -> Self {
        let inner = Self {
            table: Rc::clone(&self.table),
            routes: Rc::clone(&self.routes),
            fallbacks: Rc::clone(&self.fallbacks),
            unmatched: self.unmatched.clone(),
            context: Rc::clone(&self.context),
            interceptor: self.interceptor.take(),
            method_override: self.method_override.clone(),
            routing_panic: self.routing_panic.clone(),
        };
        let endpoint = Rc::new(new_service(inner));
        self.interceptor = Some(Box::new(Interceptor { filter: Box::new(filter), endpoint }));
        self
    }

    /// Finds the target for the request with `head` on `connection`, and stores the route and its
    /// parameters in `head`. Does not allocate, except to override a method, to check an ambiguous
    /// path, or in a [`guard`](crate::guard). If a guard panics, the returned target panics when it
    /// is called.
    #[inline]
    #[must_use]
    pub fn find<'a>(
        &'a self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
    ) -> MatchedEndpoint<'a> {
        if let Some(interceptor) = &self.interceptor
            && let Some(intercept) = (interceptor.filter)(head)
        {
            let options = match intercept {
                Intercept::NeverShed => &NEVER_SHED_OPTIONS,
                Intercept::Sheddable => &UNMATCHED_OPTIONS,
            };
            return MatchedEndpoint { endpoint: &interceptor.endpoint, options, pattern: None };
        }
        if let Some(method_override) = &self.method_override
            && head.index().method == Method::Post
        {
            method_override.apply(head);
        }
        if head.index().method == Method::Options
            && let Some(target) = self.preflight(head, connection)
        {
            return self.reject_ambiguous(head, connection, target);
        }
        let found = self.resolve(head);
        if let Match::Found { route } = found {
            let route = &self.routes[route as usize];
            if route.is_unconditional_literal
                || !route.has_conditions
                    && !may_be_ambiguous(head.index().path_bytes(head.as_bytes()))
            {
                return route.target();
            }
        }
        let target = self.find_slowly(head, connection, found);
        self.reject_ambiguous(head, connection, target)
    }

    /// Finds the route without checking its conditions (guards and parameter types), and stores it
    /// in `head`.
    #[inline]
    fn resolve(&self, head: &mut RequestHead) -> Match {
        let method = self.table.method_number(head);
        let router = &self.table.router;
        head.resolve(|path, parameters| match router.find(path, method, parameters) {
            Match::Found { route } => (Some(route), Match::Found { route }),
            other => (None, other),
        })
    }

    /// Finds the target if the route has conditions, the path may be ambiguous, or there is no
    /// route. `found` is the result of `resolve`.
    #[inline(never)]
    fn find_slowly(
        &self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
        found: Match,
    ) -> MatchedEndpoint<'_> {
        let target = match found {
            Match::Found { route } => match &self.routes[route as usize] {
                route if route.has_conditions => {
                    self.catch_panic(|| self.find_conditional(head, connection))
                }
                route => return route.target(),
            },
            _ => self.catch_panic(|| self.find_default(head, connection, found)),
        };
        target.unwrap_or_else(|panic_target| panic_target)
    }

    /// Like `find_preflight`. If a guard panics, returns the target that panics.
    fn preflight(
        &self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
    ) -> Option<MatchedEndpoint<'_>> {
        self.catch_panic(|| self.find_preflight(head, connection)).unwrap_or_else(Some)
    }

    /// Runs `find`, which may call guards. If a guard panics, returns the target that panics.
    fn catch_panic<'a, T>(&'a self, find: impl FnOnce() -> T) -> Result<T, MatchedEndpoint<'a>> {
        self.routing_panic.catch(find).map_err(|endpoint| MatchedEndpoint {
            endpoint,
            options: &UNMATCHED_OPTIONS,
            pattern: None,
        })
    }

    /// Returns the target for a CORS preflight. Returns `None` in three cases: the request is not a
    /// preflight; no route would handle the actual request, which the preflight precedes; or the
    /// OPTIONS request has a route of its own, which either was added only for OPTIONS or is the
    /// very route that would handle the actual request.
    ///
    /// The preflight goes to the middleware around the route that would handle the actual request,
    /// because each scope may have its own CORS rules.
    #[cold]
    fn find_preflight(
        &self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
    ) -> Option<MatchedEndpoint<'_>> {
        let actual_route = self.table.find_preflighted(head, connection)?;
        let method = self.table.method_number(head);
        if let Match::Found { route } =
            self.table.find(head, connection, method, &mut Parameters::default())
            && (route == actual_route || self.routes[route as usize].methods == "OPTIONS")
        {
            return None;
        }
        Some(self.routes[actual_route as usize].method_mismatch_target())
    }

    /// Checks the conditions of the route that the router found, which is the first route of its
    /// pattern. If they do not hold, searches again and checks the conditions of all routes.
    #[inline(never)]
    fn find_conditional(
        &self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
    ) -> MatchedEndpoint<'_> {
        if let Some(route) = head.route_id()
            && self.table.accepts(route, head, connection)
        {
            return self.routes[route as usize].target();
        }
        let mut parameters = Parameters::default();
        let found =
            self.table.find(head, connection, self.table.method_number(head), &mut parameters);
        let route = match found {
            Match::Found { route } => Some(route),
            _ => None,
        };
        head.resolve(|_, stored| {
            *stored = parameters;
            (route, ())
        });
        let Some(route) = route else { return self.find_default(head, connection, found) };
        self.routes[route as usize].target()
    }

    /// Finds the target of a request without a route: a default response or a fallback.
    #[cold]
    fn find_default(
        &self,
        head: &mut RequestHead,
        connection: &ConnectionInfo,
        found: Match,
    ) -> MatchedEndpoint<'_> {
        let path = head.path();
        let mut options = &UNMATCHED_OPTIONS;
        let mut parameters = Parameters::default();
        // The allowed methods and the redirect target depend on the routes whose conditions hold,
        // so the conditions are checked now.
        let found = match found {
            Match::MethodNotAllowed { .. } | Match::Redirect { .. } => {
                self.table.find(head, connection, self.table.method_number(head), &mut parameters)
            }
            other => other,
        };
        let endpoint = match found {
            Match::MethodNotAllowed { allow } => {
                // Any route for the path will do: the middleware around it runs around the 405,
                // which lists the methods of all routes.
                let method = allow.iter().next().unwrap_or_default();
                match self.table.find(head, connection, method, &mut parameters) {
                    Match::Found { route } => {
                        return self.routes[route as usize].method_mismatch_target();
                    }
                    _ => &self.unmatched.not_found,
                }
            }
            Match::NotFound if head.index().target_form != TargetForm::Asterisk => {
                let fallback = self.fallbacks.find(path);
                options = fallback
                    .map_or(&self.unmatched.not_found_options, |fallback| &fallback.options);
                fallback.map_or(&self.unmatched.not_found, |fallback| &fallback.endpoint)
            }
            // A redirect, or `OPTIONS *`: `not_found` responds to both.
            _ => &self.unmatched.not_found,
        };
        MatchedEndpoint { endpoint, options, pattern: None }
    }

    /// Handles one request with this application's routes and states, even if another application
    /// has already routed the request. Of the server options of routes, only body limits apply: if
    /// there is a server, it does not see which route is found here.
    pub async fn call(&self, mut request: Request) -> Response {
        request.parts.set_states(self.states());
        let connection = Rc::clone(request.parts.connection_untracked());
        request.parts.head.enter_nested_app();
        let target = self.find(&mut request.parts.head, &connection);
        crate::http::service::call_pooled(&**target.endpoint, request).await
    }

    /// The response for `problem`, rendered by the application's function
    /// ([`App::on_problem`](crate::App::on_problem)). The server uses this for its own responses.
    ///
    /// `head` is the request's head as [`BuiltApp::find`] left it, so a merged application
    /// renders the problems of its own routes. If no request could be parsed, pass an empty head
    /// ([`RequestHead::from_pool`]). If the rendering function panics, the panic is logged and the
    /// problem is sent in its default form.
    #[must_use]
    pub fn render_problem(&self, problem: Problem, head: &RequestHead) -> Response {
        let route = head.route_id().and_then(|route| self.routes.get(route as usize));
        route.map_or(&self.context, |route| &route.context).render_problem(problem, head)
    }

    /// The states of this application.
    #[must_use]
    pub fn states(&self) -> &Rc<States> {
        self.context.states()
    }

    /// All routes, in the order in which they were added.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = RouteInfo<'_>> {
        self.routes.iter().map(BuiltRoute::info)
    }
}

impl Signature<ViaBuiltApp> for BuiltApp {}

/// An application used as a handler of another one. It uses its own routes and states. The server
/// applies only the options of the outer route. So if an inner route sets an option such as
/// `timeout` or `run_to_completion`, the outer route must have the same or a stricter setting.
/// Otherwise, building the outer application fails.
impl Handler<ViaBuiltApp, ()> for BuiltApp {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        BuiltApp::call(self, request)
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        for route in self.routes() {
            let name = format!("{} {} ({})", route.methods, route.pattern, route.location);
            requirements.add_nested_route(name, route.options);
        }
    }
}

impl fmt::Debug for BuiltApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.routes()).finish()
    }
}
