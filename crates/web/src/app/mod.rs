//! Builds applications: collects routes, middleware and states, and checks them.
//!
//! The type parameters `Args` and `Via` of methods that take a handler are markers that the
//! compiler always infers ([`Handler`]).

mod builder;
pub mod built;
mod conflicts;
mod default_responses;
pub mod error;
mod fallbacks;
pub mod guard;
pub mod handler;
pub mod method_override;
pub mod middleware;
mod pattern;
pub mod register;
pub mod route;
pub(crate) mod route_list;
mod route_methods;
mod route_table;
pub mod scope;
pub mod urls;

use crate::app::builder::{AppBuilder, BuildHook, RouteEntry};
use crate::app::built::{BuiltApp, BuiltRoute};
use crate::app::conflicts::{method_sets, parameter_names, report_shadowed};
use crate::app::default_responses::AppContext;
use crate::app::error::{BuildError, BuildErrorKind};
use crate::app::fallbacks::Fallbacks;
use crate::app::handler::{Handler, Signature};
use crate::app::method_override::MethodOverride;
use crate::app::middleware::{IntoMiddleware, Middleware};
use crate::app::pattern::CATCH_ALL;
use crate::app::route::{MethodRouter, MethodRoutes};
use crate::app::route_list::RouteList;
use crate::app::route_methods::route_methods;
use crate::app::route_table::{MethodFilter, MethodIndex, RouteConditions, RouteTable};
use crate::app::scope::Scope;
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use crate::http::problem_renderer::ProblemRenderer;
use crate::http::requirements::PathShape;
use crate::http::response::IntoResponse;
use crate::http::route_index::{RouteIndex, RouteNames};
use http::Method;
use peregrine_router::{RouteError, Router, RouterBuilder};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

pub use peregrine_router::TrailingSlash;

/// An application under construction.
///
/// ```
/// use peregrine::web::{App, Request};
///
/// async fn greet(request: Request) -> String {
///     format!("You requested {}", request.path())
/// }
///
/// let app = App::new()
///     .get("/", || "the front page")
///     .scope("/users", |scope| scope.get("/{id}", greet).post("/", || "made one"));
///
/// let client = app.test();
/// assert_eq!(client.get("/").send_blocking().text(), "the front page");
/// assert_eq!(client.get("/users/7").send_blocking().text(), "You requested /users/7");
/// assert_eq!(client.delete("/users").send_blocking().status(), 405);
/// ```
///
/// # Middleware
///
/// [`App::wrap`] wraps a middleware around everything that is added **after** it, in this scope and
/// in nested scopes. Middleware that is added earlier runs outside middleware that is added later.
/// (In axum, `layer` wraps the routes added before it.)
///
/// Requests without a route pass through middleware too. A request that gets a 404 passes through
/// all of the application's own middleware, even middleware added last. A request that gets a 405
/// or the automatic response to OPTIONS passes through the middleware of a route with the same
/// path. So access logs see every request, and CORS middleware sees preflights.
///
/// # Responses without a handler
///
/// - HEAD for a path with a GET handler but no HEAD handler: the GET handler is called.
/// - OPTIONS for a path with routes, but none for OPTIONS: 204 with `Allow`. `OPTIONS *`: 204.
/// - A path with routes, but none for the method: 405 with `Allow`. If several patterns match the
///   path, `Allow` lists the methods of all of them.
/// - A path without a route: 404, unless there is a fallback ([`App::fallback`],
///   [`Scope::fallback`](crate::Scope::fallback)).
///
/// # Coming from axum
///
/// | axum | here |
/// |---|---|
/// | `.route("/x", get(a).post(b))` | the same, or `.get("/x", a).post("/x", b)` |
/// | `.nest("/api", router)` | [`App::scope`], or `scope("/api", \|scope\| scope.merge(app))` |
/// | `.layer(..)` wraps the routes above it | [`App::wrap`] wraps the routes below it |
/// | one state type, `.with_state(..)` | any number of types, each added with [`App::state`] |
/// | a conflict or a missing state panics or does not compile | [`App::build`] returns all errors |
/// | a POST-only `/users/new` hides `GET /users/{id}` for that path | it does not hide it |
///
/// # Patterns
///
/// A pattern begins with `/`; each part between slashes is one of these:
///
/// | segment | matches |
/// |---|---|
/// | `text` | this text, percent-encoded or not |
/// | `{name}.json`, `v{name}`, `a-{name}-b` | one or more bytes between the fixed texts |
/// | `{name}` | one non-empty segment |
/// | `{*name}` | the rest of the path, including slashes, if it has at least one byte |
///
/// If several patterns match a path, they are compared from the left, and the first segment that
/// differs decides: the kind that is higher in this table takes precedence. The order in which
/// routes are added does not matter. A parameter may have a type: `{id:u32}` matches only what
/// parses as a `u32`. The last parameters may be optional: `/birds/{page?}` also matches `/birds`.
/// `{{` and `}}` stand for literal braces. Patterns are case-sensitive.
/// [`RouterBuilder::insert`](peregrine_router::RouterBuilder::insert) has the details.
#[doc(alias = "Router")]
pub struct App {
    scope: Scope,
    problem_renderer: Option<ProblemRenderer>,
    trailing_slash: TrailingSlash,
    method_override: Option<Rc<MethodOverride>>,
}

impl App {
    /// An application without routes.
    #[must_use]
    pub fn new() -> Self {
        let scope = Scope::root(Rc::new(AppContext::default()));
        Self {
            scope,
            problem_renderer: None,
            trailing_slash: TrailingSlash::Strict,
            method_override: None,
        }
    }
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}

impl App {
    route_methods!(.scope);

    /// Runs `middleware` around everything that is added later, and inside middleware that was
    /// added earlier. `middleware` is a [`Middleware`], or an async function whose arguments are up
    /// to six extractors, the request, and [`Next`](crate::Next).
    #[doc(alias = "layer")]
    #[doc(alias = "middleware")]
    #[doc(alias = "with")]
    #[track_caller]
    #[must_use]
    pub fn wrap<Args, M>(self, middleware: M) -> Self
    where
        M: IntoMiddleware<Args, Middleware: Middleware + 'static>,
    {
        Self {
            scope: self.scope.add_middleware(middleware.into_middleware(), Location::caller()),
            ..self
        }
    }

    /// Handles requests for paths without a route, instead of a 404. All of the application's
    /// middleware runs around the fallback, even middleware added later.
    #[track_caller]
    #[must_use]
    pub fn fallback<Args, Via, H>(mut self, handler: H) -> Self
    where
        H: Signature<Args> + Handler<Args, Via> + 'static,
        (Args, Via): 'static,
    {
        self.scope.set_fallback(handler, Location::caller());
        self
    }

    /// Sets the function that renders every problem. This includes the problems of extractors,
    /// handlers and middleware, the 404 and the 405. It also includes the server's own responses:
    /// to invalid or late requests, the 500 after a handler's panic, and the 503 after a route's
    /// timeout. The default is `application/problem+json`.
    ///
    /// `render` receives the problem and the head of the request, for example to read `Accept`. If
    /// the server could not parse the request, the head is empty: it has no fields, and its method
    /// and path are GET and `/`, whatever the peer sent. If `render` panics, the panic is logged
    /// and the problem is sent in its default form.
    ///
    /// `render` runs outside all middleware, so middleware sees the problem in its default form.
    /// Header fields that middleware adds to the response are kept, unless `render` sets the same
    /// fields or the fields describe the default body. The server's own responses do not pass
    /// through middleware.
    ///
    /// ```
    /// use peregrine::web::{App, RequestHead, Problem, Response};
    ///
    /// let app = App::new().on_problem(|problem: Problem, _: &RequestHead| {
    ///     Response::new(problem.status).with_body(format!("Oh no! {}", problem.kind))
    /// });
    /// assert_eq!(app.test().get("/x").send_blocking().text(), "Oh no! unknown-route");
    /// ```
    #[doc(alias = "error_handler")]
    #[doc(alias = "catcher")]
    #[must_use]
    pub fn on_problem<F, R>(mut self, render: F) -> Self
    where
        F: Fn(Problem, &RequestHead) -> R + 'static,
        R: IntoResponse,
    {
        self.problem_renderer =
            Some(Rc::new(move |problem, head: &RequestHead| render(problem, head).into_response()));
        self
    }

    /// Sets what a trailing slash in a path means. The default is [`TrailingSlash::Strict`]. With
    /// [`TrailingSlash::Redirect`], the response has status 308 and keeps the query. This setting
    /// has no effect on an application that is merged into another one.
    #[doc(alias = "normalize_path")]
    #[doc(alias = "NormalizePath")]
    #[doc(alias = "strict_slashes")]
    #[must_use]
    pub fn trailing_slash(mut self, policy: TrailingSlash) -> Self {
        self.trailing_slash = policy;
        self
    }

    /// Lets POST requests name another method. By default they cannot. This setting has no effect
    /// on an application that is merged into another one.
    #[must_use]
    pub fn method_override(mut self, method_override: MethodOverride) -> Self {
        self.method_override = Some(Rc::new(method_override));
        self
    }

    /// Returns the root scope. Its routes keep this application's problem renderer.
    pub(crate) fn into_scope(self) -> Scope {
        if let Some(renderer) = &self.problem_renderer {
            self.scope.builder.context.set_problem_renderer(renderer);
        }
        self.scope
    }

    /// The application's routes as text, for a command that prints them and exits.
    ///
    /// ```
    /// use peregrine::prelude::*;
    ///
    /// let app = App::new().get("/birds", || "all of them");
    /// if std::env::args().any(|argument| argument == "--routes") {
    ///     print!("{}", app.routes()?);
    /// }
    /// # Ok::<(), peregrine::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`build`](Self::build).
    #[doc(alias = "print_routes")]
    pub fn routes(self) -> Result<RouteList, BuildError> {
        Ok(RouteList::new(&self.build()?))
    }

    /// Checks the application and makes it ready to run.
    ///
    /// # Errors
    /// Returns all errors together: patterns that cannot be parsed, routes that conflict, states
    /// that handlers or middleware need but the application lacks, handlers whose path parameters
    /// do not match their pattern, two fallbacks for the same paths, and route options that the
    /// server could not apply. If there are none of these, returns the errors of
    /// [`on_build`](Self::on_build). Each error says where it is and how to fix it.
    #[doc(alias = "into_make_service")]
    pub fn build(self) -> Result<BuiltApp, BuildError> {
        let (slash_policy, method_override) = (self.trailing_slash, self.method_override.clone());
        let (mut builder, unmatched) = self.into_scope().finish();
        builder.context.set_states(std::mem::take(&mut builder.states));
        if slash_policy == TrailingSlash::Ignore {
            builder.routes.retain(|entry| !entry.is_slash_variant);
        }
        let mut errors = std::mem::take(&mut builder.errors);

        let mut method_index = MethodIndex::default();
        let router = build_router(&builder.routes, &mut method_index, slash_policy, &mut errors);
        for entry in &builder.routes {
            check_path_shape(entry, &mut errors);
        }
        let routes = &builder.routes;
        let route_index = Rc::new(RouteIndex {
            names: collect_names(routes, &mut errors),
            omitted_parameters: routes.iter().map(|entry| entry.omitted_parameters).collect(),
        });
        check_requirements(&builder, &mut errors);
        let fallbacks = Fallbacks::build(builder.fallbacks)
            .map_err(|fallback_errors| errors.extend(fallback_errors));

        let (true, Some(router), Ok(fallbacks)) = (errors.is_empty(), router, fallbacks) else {
            return Err(BuildError { errors });
        };
        let conditions = route_conditions(&builder.routes, &router);
        let table =
            Rc::new(RouteTable { router: Rc::new(router), method_index, conditions, route_index });
        builder.context.set_table(&table);
        let describe = |id: u32| {
            let found = table.conditions.get(id as usize);
            found.map_or_else(String::new, |conditions| conditions.describe(table.router.names(id)))
        };
        let routes = builder.routes.into_iter().zip(0..);
        let routes = routes
            .map(|(entry, id)| BuiltRoute::from(*entry).with_conditions(describe(id)))
            .collect();
        let built = BuiltApp::new(table, routes, fallbacks, unmatched, builder.context);
        run_build_hooks(built.with_method_override(method_override), builder.build_hooks)
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("routes", &self.scope.builder.routes.len())
            .finish_non_exhaustive()
    }
}

/// Builds the router. Adds its errors to `errors`; if there are any, the result must not be used.
fn build_router(
    entries: &[Box<RouteEntry>],
    method_index: &mut MethodIndex,
    slash_policy: TrailingSlash,
    errors: &mut Vec<BuildErrorKind>,
) -> Option<Router> {
    let sets = method_sets(entries, method_index, slash_policy).unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    let mut builder = RouterBuilder::new();
    builder.trailing_slash(slash_policy);
    // Routes with conditions are guarded routes of the router, which checks them in the order of
    // insertion. HEAD handlers are inserted first, so that they are checked before GET handlers,
    // which may also handle HEAD.
    let is_for_head = |entry: &RouteEntry| entry.methods == MethodFilter::One(Method::HEAD);
    let (head_routes, other_routes): (Vec<_>, Vec<_>) =
        entries.iter().zip(sets).zip(0..).partition(|((entry, _), _)| is_for_head(entry));
    let mut order = Vec::with_capacity(entries.len());
    for ((entry, set), id) in head_routes.into_iter().chain(other_routes) {
        order.push((id, set));
        let (pattern, location) = (&entry.pattern, entry.location.to_string());
        if entry.has_conditions() {
            builder.insert_guarded(pattern, set, id, &location);
        } else {
            builder.insert_labelled(pattern, set, id, &location);
        }
    }
    let translate = |error: &RouteError| translate_router_error(error, entries, method_index);
    let router = builder.build().map_err(|error| errors.extend(error.errors.iter().map(translate)));
    report_shadowed(entries, &order, slash_policy, errors);
    router.ok()
}

/// Reports states that are missing and settings that are invalid, of handlers, fallbacks and
/// middleware.
fn check_requirements(builder: &AppBuilder, errors: &mut Vec<BuildErrorKind>) {
    let routes = builder.routes.iter();
    let routes = routes.map(|entry| (entry.description(), &entry.requirements, &entry.context));
    let others = builder.requirements.iter();
    let others = others.map(|other| (other.name.clone(), &other.requirements, &other.context));
    for (name, requirements, context) in routes.chain(others) {
        let missing = requirements.states().filter(|(id, _)| !context.states().contains(*id));
        errors.extend(
            missing.map(|(_, state)| BuildErrorKind::MissingState { route: name.clone(), state }),
        );
        let reasons = requirements.config_errors().iter().cloned();
        errors.extend(
            reasons.map(|reason| BuildErrorKind::InvalidSetting { owner: name.clone(), reason }),
        );
    }
}

/// Runs the checks of [`App::on_build`] on the built application.
fn run_build_hooks(built: BuiltApp, hooks: Vec<Box<BuildHook>>) -> Result<BuiltApp, BuildError> {
    let messages = hooks.into_iter().filter_map(|hook| hook(&built).err()).flatten();
    let errors: Vec<_> = messages.map(|message| BuildErrorKind::BuildHook { message }).collect();
    if errors.is_empty() { Ok(built) } else { Err(BuildError { errors }) }
}

/// The conditions of all routes; empty if no route has any.
fn route_conditions(entries: &[Box<RouteEntry>], router: &Router) -> Box<[RouteConditions]> {
    if !entries.iter().any(|entry| entry.has_conditions()) {
        return Box::default();
    }
    let conditions = |(entry, id): (&RouteEntry, u32)| {
        let typed = entry.typed_parameters.iter();
        let typed =
            typed.filter_map(|(name, kind)| Some((router.parameter_index(id, name)?, *kind)));
        RouteConditions { guards: entry.guards.clone(), typed_parameters: typed.collect() }
    };
    entries.iter().map(|entry| &**entry).zip(0..).map(conditions).collect()
}

/// The patterns of named routes. Routes with the same name must have the same pattern; their
/// methods may differ, and a parameter may be optional in only some of these routes.
fn collect_names(entries: &[Box<RouteEntry>], errors: &mut Vec<BuildErrorKind>) -> RouteNames {
    let mut names = RouteNames::default();
    let mut first_entries: HashMap<Rc<str>, &RouteEntry> = HashMap::new();
    for entry in entries {
        let Some(name) = entry.requirements.route_name() else { continue };
        // A written pattern may expand to several patterns, and a subtree adds several. Only the
        // one with all optional parameters and without an added slash or catch-all is compared.
        let has_addition = entry.is_slash_variant || entry.pattern.ends_with(CATCH_ALL);
        if entry.omitted_parameters == 0 && !has_addition {
            let first = *first_entries.entry(Rc::clone(name)).or_insert(entry);
            if first.pattern != entry.pattern {
                let (first, second, name) =
                    (first.description(), entry.description(), name.to_string());
                errors.push(BuildErrorKind::DuplicateName { first, second, name });
            }
        }
        names.add(name, &entry.pattern);
    }
    names
}

/// Reports the path parameters that the handler or its middleware expects, if they do not match the
/// pattern.
fn check_path_shape(entry: &RouteEntry, errors: &mut Vec<BuildErrorKind>) {
    let names = parameter_names(&entry.pattern);
    let count_max = names.len() + entry.omitted_parameters;
    let found = || match names.len() {
        0 => "none".to_owned(),
        count => format!("{count}: {}", names.join(", ")),
    };
    for shape in entry.requirements.paths() {
        let expected = match shape {
            // The type may also expect the parameters that this pattern omits, which are read as
            // `None`.
            PathShape::Count(count) if (names.len()..=count_max).contains(count) => continue,
            PathShape::Count(1) => "1 parameter".to_owned(),
            PathShape::Count(count) => format!("{count} parameters"),
            PathShape::Names(wanted) => {
                let missing = wanted.iter().filter(|name| !names.contains(name));
                let missing: Vec<_> = missing.map(|name| format!("`{name}`")).collect();
                if missing.is_empty() {
                    continue;
                }
                missing.join(", ")
            }
        };
        errors.push(BuildErrorKind::PathMismatch {
            route: entry.description(),
            expected,
            found: found(),
        });
    }
}

/// Converts a router error to a build error.
fn translate_router_error(
    route_error: &RouteError,
    entries: &[Box<RouteEntry>],
    method_index: &MethodIndex,
) -> BuildErrorKind {
    let describe = |id: u32| entries[id as usize].description();
    match route_error {
        RouteError::InvalidPattern { route, error } => {
            let reason = format!("at byte {}: {}", error.position, error.kind);
            BuildErrorKind::InvalidPattern { route: describe(route.id), reason }
        }
        RouteError::Duplicate { first, second, methods } => {
            let handles_any = |id: u32| entries[id as usize].methods == MethodFilter::Any;
            let methods = if handles_any(first.id) && handles_any(second.id) {
                MethodFilter::Any.to_string()
            } else {
                method_index.names(*methods)
            };
            BuildErrorKind::Conflict {
                first: describe(first.id),
                second: describe(second.id),
                methods,
            }
        }
        // The only other error that can occur here is too many routes: ids are unique indexes of
        // entries, and every entry has methods.
        other => BuildErrorKind::LimitExceeded { message: other.to_string() },
    }
}
