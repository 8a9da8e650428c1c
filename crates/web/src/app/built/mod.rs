//! A built application: from a head to the target that answers it.

mod ambiguous_path;
mod route;

use crate::app::default_responses::{Panicked, Shared};
use crate::app::fallbacks::Fallbacks;
use crate::app::method_override::MethodOverride;
use crate::app::route::Table;
use crate::app::scope::Unmatched;
use crate::http::connection::ConnectionInfo;
use crate::http::head::Head;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::route_options::RouteOptions;
use crate::http::service::{Endpoint, Service};
use crate::http::state::States;
use peregrine_proto::{Method, TargetForm};
use peregrine_router::{Match, Parameters, may_be_ambiguous};
use peregrine_slot::{FutureSlot, Held};
pub(crate) use route::Built;
use route::{About, FIRST_OPTIONS, UNROUTED_OPTIONS};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

/// An application that is checked and ready to run. Every worker has its own: it is neither `Send` nor
/// `Sync`, and nothing in it is locked.
///
/// A server calls [`Application::find`] with each head and then [`Target::call`] with the request.
pub struct Application {
    table: Rc<Table>,
    routes: Rc<[Built]>,
    fallbacks: Rc<Fallbacks>,
    unmatched: Unmatched,
    shared: Rc<Shared>,
    first: Option<Box<First>>,
    method_override: Option<Rc<MethodOverride>>,
    panicked: Panicked,
}

/// What answers before all routes.
struct First {
    claims: Box<Claims>,
    endpoint: Rc<dyn Endpoint>,
}

type Claims = dyn Fn(&Head) -> Option<Claim>;

/// What is claimed by whoever answers before all routes.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The server needs the answer itself: it is never shed.
    Surely,
    /// It may be anybody's, and is shed as others are.
    Perhaps,
}

/// What answers a request: a route, a fallback, or an automatic answer.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    endpoint: &'a Rc<dyn Endpoint>,
    options: &'a RouteOptions,
    pattern: Option<&'a Rc<str>>,
}

/// A route, for lists that people read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RouteInfo<'a> {
    /// The method, or `any method`.
    pub methods: &'a str,
    /// The whole pattern.
    pub pattern: &'a str,
    /// What it asks of requests beside that, such as `id is u32, the host is example.org`; empty if nothing.
    pub conditions: &'a str,
    /// Where it was added.
    pub place: &'static Location<'static>,
    /// What the route asks of the server.
    pub options: &'a RouteOptions,
    about: &'a About,
}

impl<'a> RouteInfo<'a> {
    /// The name that [`HandlerExt::named`](crate::HandlerExt::named) gave it.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.about.name.as_deref()
    }

    /// The notes of type `T` beside it, the outermost first: of scopes and middleware around it
    /// ([`Scope::noted`](crate::Scope::noted)), then of its handler
    /// ([`HandlerExt::noted`](crate::HandlerExt::noted)).
    ///
    /// ```
    /// use peregrine::prelude::*;
    ///
    /// struct Owner(&'static str);
    ///
    /// let app = App::new().noted(Owner("the bird team")).get("/birds", || "all of them");
    /// let application = app.build()?;
    /// let route = application.routes().next().expect("there is one");
    /// assert_eq!(route.notes::<Owner>().next().map(|owner| owner.0), Some("the bird team"));
    /// # Ok::<(), peregrine::web::BuildError>(())
    /// ```
    pub fn notes<T: 'static>(&self) -> impl DoubleEndedIterator<Item = &'a T> + use<'a, T> {
        self.about.notes.iter().filter_map(|note| note.downcast_ref())
    }

    /// The type that the pattern gives a parameter, such as `u32` in `{id:u32}`.
    #[must_use]
    pub fn type_of(&self, parameter: &str) -> Option<&'static str> {
        let types = self.about.types.iter();
        types.rev().find(|(name, _)| name == parameter).map(|(_, kind)| *kind)
    }

    /// How many optional parameters this pattern leaves out of the one that was written.
    #[must_use]
    pub fn absent(&self) -> usize {
        self.about.absent
    }

    /// Is the pattern another route's with a slash at its end, which the application did not write?
    #[must_use]
    pub fn is_slash_twin(&self) -> bool {
        self.about.is_slash_twin
    }
}

impl Application {
    pub(crate) fn new(
        table: Rc<Table>,
        routes: Box<[Built]>,
        fallbacks: Fallbacks,
        unmatched: Unmatched,
        shared: Rc<Shared>,
    ) -> Self {
        let (routes, fallbacks) = (routes.into(), Rc::new(fallbacks));
        Self {
            table,
            routes,
            fallbacks,
            unmatched,
            shared,
            first: None,
            method_override: None,
            panicked: Panicked::new(),
        }
    }

    pub(crate) fn overriding(self, method_override: Option<Rc<MethodOverride>>) -> Self {
        Self { method_override, ..self }
    }

    /// Has requests that `claims` claims answered by what `service` makes, before all routes and without the
    /// application's middleware. That is given this application, to which it may pass what it does not answer.
    #[doc(hidden)]
    #[must_use]
    pub fn answer_first<S: Service + 'static>(
        mut self,
        claims: impl Fn(&Head) -> Option<Claim> + 'static,
        service: impl FnOnce(Self) -> S,
    ) -> Self {
        let rest = Self {
            table: Rc::clone(&self.table),
            routes: Rc::clone(&self.routes),
            fallbacks: Rc::clone(&self.fallbacks),
            unmatched: self.unmatched.clone(),
            shared: Rc::clone(&self.shared),
            first: self.first.take(),
            method_override: self.method_override.clone(),
            panicked: self.panicked.clone(),
        };
        let endpoint = Rc::new(service(rest));
        self.first = Some(Box::new(First { claims: Box::new(claims), endpoint }));
        self
    }

    /// Finds the target for the request that `head` begins on `connection`, and notes the route and its parameters
    /// in `head`. Allocates nothing, unless a [`guard`](crate::guard) does. If a guard panics, the target does when it
    /// is called.
    #[inline]
    #[must_use]
    pub fn find<'a>(&'a self, head: &mut Head, connection: &ConnectionInfo) -> Target<'a> {
        if let Some(first) = &self.first
            && let Some(claim) = (first.claims)(head)
        {
            let options = match claim {
                Claim::Surely => &FIRST_OPTIONS,
                Claim::Perhaps => &UNROUTED_OPTIONS,
            };
            return Target { endpoint: &first.endpoint, options, pattern: None };
        }
        if let Some(rule) = &self.method_override
            && head.index().method == Method::Post
        {
            rule.apply(head);
        }
        if head.index().method == Method::Options
            && let Some(target) = self.preflight(head, connection)
        {
            return self.unless_ambiguous(head, connection, target);
        }
        let found = self.resolve(head);
        if let Match::Found { route } = found {
            let route = &self.routes[route as usize];
            if route.is_literal
                || !route.is_guarded && !may_be_ambiguous(head.index().path_of(head.as_bytes()))
            {
                return route.target();
            }
        }
        let target = self.find_rest(head, connection, found);
        self.unless_ambiguous(head, connection, target)
    }

    /// What the router finds, as if no route were guarded.
    #[inline]
    fn resolve(&self, head: &mut Head) -> Match {
        let method = self.table.method(head);
        let router = &self.table.router;
        head.resolve(|path, parameters| match router.find(path, method, parameters) {
            Match::Found { route } => (Some(route), Match::Found { route }),
            other => (None, other),
        })
    }

    /// The target of what the router found, where that is guarded or no route.
    #[inline(never)]
    fn find_rest(&self, head: &mut Head, connection: &ConnectionInfo, found: Match) -> Target<'_> {
        let target = match found {
            Match::Found { route } => match &self.routes[route as usize] {
                route if route.is_guarded => {
                    self.unless_panics(|| self.find_guarded(head, connection))
                }
                route => return route.target(),
            },
            _ => self.unless_panics(|| self.find_unrouted(head, connection, found)),
        };
        target.unwrap_or_else(|panicked| panicked)
    }

    fn preflight(&self, head: &mut Head, connection: &ConnectionInfo) -> Option<Target<'_>> {
        self.unless_panics(|| self.find_preflight(head, connection)).unwrap_or_else(Some)
    }

    /// Runs `find`, which may ask guards. If one panics, the target that panics.
    fn unless_panics<'a, T>(&'a self, find: impl FnOnce() -> T) -> Result<T, Target<'a>> {
        self.panicked.unless(find).map_err(|endpoint| Target {
            endpoint,
            options: &UNROUTED_OPTIONS,
            pattern: None,
        })
    }

    /// What answers a preflight of CORS: whoever answers OPTIONS by name, or else the scope of the route that would
    /// answer the request that it announces, since each scope has rules of its own. `None`: the request is no
    /// preflight, or a route for it is found as for every other request.
    #[cold]
    fn find_preflight(&self, head: &mut Head, connection: &ConnectionInfo) -> Option<Target<'_>> {
        let announced = self.table.announced(head, connection)?;
        let method = self.table.method(head);
        if let Match::Found { route } =
            self.table.find(head, connection, method, &mut Parameters::default())
            && (route == announced || self.routes[route as usize].methods == "OPTIONS")
        {
            return None;
        }
        Some(self.routes[announced as usize].unrouted())
    }

    /// Asks the route that was found, which is the first of its pattern, and where it does not answer looks again.
    #[inline(never)]
    fn find_guarded(&self, head: &mut Head, connection: &ConnectionInfo) -> Target<'_> {
        if let Some(route) = head.route()
            && self.table.answers(route, head, connection)
        {
            return self.routes[route as usize].target();
        }
        let mut parameters = Parameters::default();
        let found = self.table.find(head, connection, self.table.method(head), &mut parameters);
        let route = match found {
            Match::Found { route } => Some(route),
            _ => None,
        };
        head.resolve(|_, noted| {
            *noted = parameters;
            (route, ())
        });
        let Some(route) = route else { return self.find_unrouted(head, connection, found) };
        self.routes[route as usize].target()
    }

    #[cold]
    fn find_unrouted(
        &self,
        head: &mut Head,
        connection: &ConnectionInfo,
        found: Match,
    ) -> Target<'_> {
        let path = head.path();
        let mut options = &UNROUTED_OPTIONS;
        let mut parameters = Parameters::default();
        // Which methods there are, and where a redirect leads, depends on the routes that answer this request.
        let found = match found {
            Match::MethodMissing { .. } | Match::Redirect { .. } => {
                self.table.find(head, connection, self.table.method(head), &mut parameters)
            }
            other => other,
        };
        let endpoint = match found {
            Match::MethodMissing { allow } => {
                let method = allow.iter().next().unwrap_or_default();
                match self.table.find(head, connection, method, &mut parameters) {
                    Match::Found { route } => return self.routes[route as usize].unrouted(),
                    _ => &self.unmatched.missing,
                }
            }
            Match::Missing if head.index().form != TargetForm::Asterisk => {
                let fallback = self.fallbacks.find(path);
                options =
                    fallback.map_or(&self.unmatched.missing_options, |fallback| &fallback.options);
                fallback.map_or(&self.unmatched.missing, |fallback| &fallback.endpoint)
            }
            _ => &self.unmatched.missing,
        };
        Target { endpoint, options, pattern: None }
    }

    /// Answers one request with this application's routes and states, whatever application the request
    /// was given to before. Server options of routes are not applied, since there is no server; body
    /// limits of routes are.
    pub async fn call(&self, mut request: Request) -> Response {
        request.parts.set_states(self.states());
        let connection = Rc::clone(request.parts.peek_connection());
        request.parts.head.keep_route();
        let target = self.find(&mut request.parts.head, &connection);
        crate::http::service::place_in_stock(&**target.endpoint, request).await
    }

    /// The response for `problem`, in the form that the application gives its problems
    /// ([`App::on_problem`](crate::App::on_problem)): for the server's own answers.
    ///
    /// `head` is the request's as [`Application::find`] left it, so that a problem on a merged
    /// application's route takes the form of that application. If no request was understood, the head
    /// is an empty one ([`Head::take`]). If the application's function panics, the log says so and the
    /// problem is sent in its default form.
    #[must_use]
    pub fn render(&self, problem: Problem, head: &Head) -> Response {
        let route = head.route().and_then(|route| self.routes.get(route as usize));
        route.map_or(&self.shared, |route| &route.shared).render(problem, head)
    }

    /// The values that all handlers share.
    #[must_use]
    pub fn states(&self) -> &Rc<States> {
        self.shared.states()
    }

    /// All routes in the order in which they were added.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = RouteInfo<'_>> {
        self.routes.iter().map(|route| RouteInfo {
            methods: &route.methods,
            pattern: &route.pattern,
            conditions: &route.conditions,
            place: route.place,
            options: &route.options,
            about: &route.about,
        })
    }
}

impl<'a> Target<'a> {
    /// What the route asks of the server.
    #[must_use]
    pub fn options(&self) -> &'a RouteOptions {
        self.options
    }

    /// The limit in bytes that the request's body starts with, where the server's own is `server`: the
    /// outermost one. Middleware may set other limits, and `call` sets the route's own inside them. A
    /// body is checked when it is read, so a server need not refuse a larger one.
    ///
    /// A handler may lift the server's limit for itself ([`RouteOptions::lifts_body_limit`]);
    /// `call` does so. It stays in force for middleware that reads the whole body into memory
    /// ([`Body::whole_limit`](crate::Body::whole_limit)).
    #[must_use]
    pub fn body_limit(&self, server: u64) -> u64 {
        self.options.body_bytes_max.unwrap_or(server)
    }

    /// The route's pattern; `None` if no route has the path.
    #[must_use]
    pub fn pattern(&self) -> Option<&'a Rc<str>> {
        self.pattern
    }

    /// Answers `request`, whose head is the one that led here. The future lives in `slot`, so nothing
    /// is allocated once the slot has grown to the size of the application's futures. The future owns
    /// what it needs of the application, and runs none of it before the first poll.
    #[inline]
    pub fn call(self, slot: FutureSlot, request: Request) -> Held<'static, Response> {
        Rc::clone(self.endpoint).hold(slot, self.lift_limit(request))
    }

    /// The request as a handler with limits of its own takes it.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn lift_limit(self, mut request: Request) -> Request {
        if self.options.lifts_body_limit && self.options.body_bytes_max.is_none() {
            request.body = request.body.lifted();
        }
        request
    }
}

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.routes()).finish()
    }
}
