//! Applications: routes, middleware and states, joined, checked and made ready to run.

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

use crate::app::builder::{Entry, Inspector};
use crate::app::built::{Application, Built};
use crate::app::conflicts::{hidden, method_bits, parameter_names};
use crate::app::default_responses::Shared;
use crate::app::error::{BuildError, Fault};
use crate::app::fallbacks::Fallbacks;
use crate::app::handler::{Handler, Signature};
use crate::app::method_override::MethodOverride;
use crate::app::middleware::{IntoMiddleware, Middleware};
use crate::app::pattern::REST;
use crate::app::route::{MethodRouter, Routes};
use crate::app::route_list::RouteList;
use crate::app::route_methods::routing;
use crate::app::route_table::{Conditions, MethodIndex, Methods, Table};
use crate::app::scope::Scope;
use crate::http::head::Head;
use crate::http::problem::Problem;
use crate::http::problem_renderer::ProblemHook;
use crate::http::requirements::PathShape;
use crate::http::response::IntoResponse;
use crate::http::route_index::{Facts, Names};
use http::Method;
use peregrine_router::{Builder, Problem as RouterProblem, Router};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

pub use peregrine_router::SlashPolicy;

/// An application under construction.
///
/// ```
/// use peregrine::web::{App, Request};
///
/// async fn greet(request: Request) -> String {
///     format!("Good day, you who asked for {}", request.path())
/// }
///
/// let app = App::new()
///     .get("/", || "the front page")
///     .scope("/users", |scope| scope.get("/{id}", greet).post("/", || "made one"));
///
/// let client = app.test();
/// assert_eq!(client.get("/").send_now().text(), "the front page");
/// assert_eq!(client.get("/users/7").send_now().text(), "Good day, you who asked for /users/7");
/// assert_eq!(client.delete("/users").send_now().status(), 405);
/// ```
///
/// # Middleware
///
/// [`App::with`] puts a middleware around everything that is added **after** it, in this scope and the
/// scopes within; middleware added earlier is further out. (In axum, `layer` is around the routes added
/// before it.) Answers without a route run through middleware too: a 404 through all of the
/// application's own, including any added last; a 405, or the automatic answer to OPTIONS, through the
/// middleware of a route that has the path. So access logs see every request, and CORS sees preflights.
///
/// # Answers without a handler
///
/// - HEAD, wherever GET has a handler: the GET handler is called.
/// - OPTIONS: status 204 with `Allow`; for `*`, status 204.
/// - 405 with `Allow` where a path has routes but none for the method. If several patterns match the
///   path, `Allow` has the methods of all of them.
/// - 404 elsewhere, unless there is a [`App::fallback`].
///
/// # Coming from axum
///
/// | axum | here |
/// |---|---|
/// | `.route("/x", get(a).post(b))` | the same with [`route::get`](crate::route::get), or `.get("/x", a).post("/x", b)` |
/// | `.nest("/api", router)` | [`App::scope`], or `scope("/api", \|scope\| scope.merge(app))` |
/// | `.layer(..)` around what is above it | [`App::with`] around what is below it |
/// | one state type, `.with_state(..)` | any number of types, each by [`App::state`] |
/// | a conflict or a missing state panics or does not compile | [`App::build`] returns all faults |
/// | a POST-only `/users/new` hides `GET /users/{id}` from `/users/new` | it does not: both patterns are asked |
///
/// # Patterns
///
/// A pattern begins with `/`; each part between slashes is one of these:
///
/// | segment | matches |
/// |---|---|
/// | `text` | this text, in any spelling with escapes |
/// | `{name}.json`, `v{name}`, `a-{name}-b` | one or more bytes between the fixed texts |
/// | `{name}` | one segment that is not empty |
/// | `{*name}` | the rest of the path, slashes included, if it has at least one byte |
///
/// Where several patterns match a path, the first segment (from the left) in which they differ decides,
/// in the order of this table. The order in which routes are added never matters. `{{` and `}}` stand
/// for literal braces. Case matters. The [router](peregrine_router::Builder::insert) has the fine
/// print.
pub struct App {
    scope: Scope,
    hook: Option<ProblemHook>,
    slash_policy: SlashPolicy,
    method_override: Option<Rc<MethodOverride>>,
}

impl App {
    /// An application without routes.
    #[must_use]
    pub fn new() -> Self {
        let scope = Scope::root(Rc::new(Shared::default()));
        Self { scope, hook: None, slash_policy: SlashPolicy::Strict, method_override: None }
    }
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}

impl App {
    routing!(.scope);

    /// Runs `middleware` around everything that follows, inside the middleware added before: a
    /// [`Middleware`], or an async function of up to six extractors, the request, and
    /// [`Next`](crate::Next).
    #[track_caller]
    #[must_use]
    pub fn with<Args, M>(self, middleware: M) -> Self
    where
        M: IntoMiddleware<Args, Middleware: Middleware + 'static>,
    {
        Self {
            scope: self.scope.add_with(middleware.into_middleware(), Location::caller()),
            ..self
        }
    }

    /// Answers requests for paths that have no route, in place of the 404. All of the application's
    /// middleware runs around the fallback, even if it is added later.
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

    /// Sets the form of every problem: of extractors, handlers and middleware, of 404 and 405, and of
    /// the server's own answers (to requests that break a rule or come too late, the 500 of a handler
    /// that panicked, the 503 of one that took longer than its route allows). The default is
    /// `application/problem+json`.
    ///
    /// `render` gets the problem and the head of the request, for its `Accept` say. If the server could
    /// not understand the request, the head is empty: it has no fields, and its method and path are GET
    /// and `/` whatever the peer sent. If `render` panics, the log says so and the problem is sent in
    /// its default form.
    ///
    /// `render` is called outside all middleware, which see the problem in its default form. Header
    /// fields that they put on the response stay, unless `render` sets them too or they describe the
    /// default body. The server's own answers do not go through middleware.
    ///
    /// ```
    /// use peregrine::web::{App, Head, Problem, Response};
    ///
    /// let app = App::new().on_problem(|problem: Problem, _: &Head| {
    ///     Response::new(problem.status).with_body(format!("Oh no! {}", problem.kind))
    /// });
    /// assert_eq!(app.test().get("/x").send_now().text(), "Oh no! unknown-route");
    /// ```
    #[must_use]
    pub fn on_problem<F, R>(mut self, render: F) -> Self
    where
        F: Fn(Problem, &Head) -> R + 'static,
        R: IntoResponse,
    {
        self.hook =
            Some(Rc::new(move |problem, head: &Head| render(problem, head).into_response()));
        self
    }

    /// Sets what a slash at the end of a path means. The default is [`SlashPolicy::Strict`]; a redirect
    /// has status 308 and keeps the query.
    #[must_use]
    pub fn slash_policy(mut self, policy: SlashPolicy) -> Self {
        self.slash_policy = policy;
        self
    }

    /// Lets POST requests say that another method is meant. The default is that they cannot. In a merged application
    /// it has no effect.
    #[must_use]
    pub fn method_override(mut self, method_override: MethodOverride) -> Self {
        self.method_override = Some(Rc::new(method_override));
        self
    }

    /// The routes, with problems in this application's form.
    pub(crate) fn into_scope(self) -> Scope {
        if let Some(hook) = &self.hook {
            self.scope.plan.shared.set_hook(hook);
        }
        self.scope
    }

    /// The application's routes as text, for a command that shows them and ends.
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
    pub fn routes(self) -> Result<RouteList, BuildError> {
        Ok(RouteList::of(&self.build()?))
    }

    /// Checks everything and makes the application ready to run.
    ///
    /// # Errors
    /// All faults at once: patterns that cannot be read, routes that conflict, missing states of
    /// handlers or middleware, handlers whose path parameters are not those of their pattern, two
    /// fallbacks for the same paths, route options that could not be kept. Each fault says where it is
    /// and how to fix it.
    pub fn build(self) -> Result<Application, BuildError> {
        let (slash_policy, method_override) = (self.slash_policy, self.method_override.clone());
        let (mut plan, unmatched) = self.into_scope().finish();
        plan.shared.set_states(std::mem::take(&mut plan.states));
        if slash_policy == SlashPolicy::Ignore {
            plan.entries.retain(|entry| !entry.is_slash_twin);
        }
        let mut faults = std::mem::take(&mut plan.faults);

        let mut index = MethodIndex::default();
        let bits = method_bits(&plan.entries, &mut index, slash_policy);
        if let Err(fault) = &bits {
            faults.push(fault.clone());
        }
        let mut builder = Builder::new();
        builder.slash_policy(slash_policy);
        let all = plan.entries.iter().zip(bits.unwrap_or_default()).zip(0..);
        // Of guarded routes the first counts, and a handler for HEAD comes before one for GET.
        let is_for_head = |entry: &Entry| entry.methods == Methods::One(Method::HEAD);
        let (heads, others): (Vec<_>, Vec<_>) = all.partition(|((entry, _), _)| is_for_head(entry));
        let mut order = Vec::with_capacity(plan.entries.len());
        for ((entry, bits), id) in heads.into_iter().chain(others) {
            order.push((id, bits));
            let (pattern, place) = (&entry.pattern, entry.place.to_string());
            if entry.is_guarded() {
                builder.insert_guarded(pattern, bits, id, &place);
            } else {
                builder.insert_labelled(pattern, bits, id, &place);
            }
        }
        let router = builder.build();
        if let Err(error) = &router {
            let translated =
                error.problems.iter().map(|problem| translate(problem, &plan.entries, &index));
            faults.extend(translated);
        }

        hidden(&plan.entries, &order, slash_policy, &mut faults);
        for entry in &plan.entries {
            check_path(entry, &mut faults);
        }
        let absent = plan.entries.iter().map(|entry| entry.absent).collect();
        let facts = Rc::new(Facts { names: names(&plan.entries, &mut faults), absent });
        let entries = plan.entries.iter();
        let entries = entries.map(|entry| (entry.name(), &entry.requirements, &entry.shared));
        let others = plan.needs.iter();
        let others = others.map(|need| (need.name.clone(), &need.requirements, &need.shared));
        for (name, needs, shared) in entries.chain(others) {
            let lacking = needs.states().filter(|(id, _)| !shared.states().contains(*id));
            faults.extend(
                lacking.map(|(_, state)| Fault::MissingState { route: name.clone(), state }),
            );
            let wrong = needs.faults().iter().cloned();
            faults.extend(wrong.map(|reason| Fault::Setting { of: name.clone(), reason }));
        }
        let fallbacks = Fallbacks::build(plan.fallbacks).map_err(|more| faults.extend(more));

        let (true, Ok(router), Ok(fallbacks)) = (faults.is_empty(), router, fallbacks) else {
            return Err(BuildError { faults });
        };
        let conditions = conditions(&plan.entries, &router);
        let table = Rc::new(Table { router: Rc::new(router), methods: index, conditions, facts });
        plan.shared.set_table(&table);
        let words = |id: u32| {
            let conditions = table.conditions.get(id as usize);
            conditions.map_or_else(String::new, |all| all.words(table.router.names(id)))
        };
        let routes = plan.entries.into_iter().zip(0..);
        let routes = routes.map(|(entry, id)| Built::from(*entry).asking(words(id))).collect();
        let built = Application::new(table, routes, fallbacks, unmatched, plan.shared);
        inspected(built.overriding(method_override), plan.inspectors)
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("routes", &self.scope.plan.entries.len())
            .finish_non_exhaustive()
    }
}

/// The application, if all who look at it find nothing wrong.
fn inspected(
    built: Application,
    inspectors: Vec<Box<Inspector>>,
) -> Result<Application, BuildError> {
    let found = inspectors.into_iter().filter_map(|inspector| inspector(&built).err());
    let faults: Vec<_> = found.flatten().map(|what| Fault::Found { what }).collect();
    if faults.is_empty() { Ok(built) } else { Err(BuildError { faults }) }
}

/// What routes ask of requests; nothing if none of them asks for anything.
fn conditions(entries: &[Box<Entry>], router: &Router) -> Box<[Conditions]> {
    if !entries.iter().any(|entry| entry.is_guarded()) {
        return Box::default();
    }
    let conditions = |(entry, id): (&Entry, u32)| {
        let typed = entry.typed.iter();
        let typed =
            typed.filter_map(|(name, kind)| Some((router.parameter_index(id, name)?, *kind)));
        Conditions { guards: entry.guards.clone(), typed: typed.collect() }
    };
    entries.iter().map(|entry| &**entry).zip(0..).map(conditions).collect()
}

/// The patterns of routes with names. One name stands for one pattern as it was written, whatever the methods.
fn names(entries: &[Box<Entry>], faults: &mut Vec<Fault>) -> Names {
    let mut names = Names::default();
    let mut firsts: HashMap<(Rc<str>, bool), &Entry> = HashMap::new();
    // What is written once stands for one of these, and for others beside it.
    let is_whole =
        |entry: &Entry| entry.absent == 0 && !entry.is_slash_twin && !entry.pattern.ends_with(REST);
    for entry in entries {
        let Some(name) = entry.requirements.route_name() else { continue };
        let first = *firsts.entry((Rc::clone(name), false)).or_insert(entry);
        let is_elsewhere = first.pattern != entry.pattern && first.place != entry.place;
        let (first, is_again) = match firsts.entry((Rc::clone(name), true)) {
            _ if is_elsewhere || !is_whole(entry) => (first, false),
            // A function that is added twice, for example.
            first => {
                let first = *first.or_insert(entry);
                (first, first.pattern != entry.pattern)
            }
        };
        if is_elsewhere || is_again {
            let (first, second) = (first.name(), entry.name());
            faults.push(Fault::SameName { first, second, name: name.to_string() });
        }
        names.add(name, &entry.pattern);
    }
    names
}

fn check_path(entry: &Entry, faults: &mut Vec<Fault>) {
    let names = parameter_names(&entry.pattern);
    let has = || match names.len() {
        0 => "none".to_owned(),
        count => format!("{count}: {}", names.join(", ")),
    };
    for shape in entry.requirements.paths() {
        let takes = match shape {
            // What is left out is `None`.
            PathShape::Count(count)
                if (names.len()..=names.len() + entry.absent).contains(count) =>
            {
                continue;
            }
            PathShape::Count(1) => "1 parameter".to_owned(),
            PathShape::Count(count) => format!("{count} parameters"),
            PathShape::Names(wanted) => {
                let lacking = wanted.iter().filter(|name| !names.contains(name));
                let lacking: Vec<_> = lacking.map(|name| format!("`{name}`")).collect();
                if lacking.is_empty() {
                    continue;
                }
                lacking.join(", ")
            }
        };
        faults.push(Fault::PathMismatch { route: entry.name(), takes, has: has() });
    }
}

/// Translates the router's problem into the application's terms.
fn translate(problem: &RouterProblem, entries: &[Box<Entry>], index: &MethodIndex) -> Fault {
    let name = |id: u32| entries[id as usize].name();
    match problem {
        RouterProblem::Pattern { route, error } => {
            let reason = format!("at byte {}: {}", error.position, error.fault);
            Fault::Pattern { route: name(route.id), reason }
        }
        RouterProblem::Duplicate { first, second, methods } => {
            let any = |id: u32| entries[id as usize].methods == Methods::Any;
            let methods = if any(first.id) && any(second.id) {
                Methods::Any.to_string()
            } else {
                index.names(*methods)
            };
            Fault::Conflict { first: name(first.id), second: name(second.id), methods }
        }
        // Ids count the entries, and every entry has methods, so only their number can be wrong.
        other => Fault::TooMany { what: other.to_string() },
    }
}
