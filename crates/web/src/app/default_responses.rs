//! Responses to requests without a route, and the data that all endpoints of an application share.

use crate::app::route_table::{AUTOMATIC_METHODS, RouteTable};
use crate::http::head::RequestHead;
use crate::http::problem::Problem;
use crate::http::problem_renderer::{ProblemRenderer, render_problem, strip_problem_extensions};
use crate::http::request::Request;
use crate::http::response::{IntoResponse, Response};
use crate::http::route_options::RouteOptions;
use crate::http::service::{DynService, Endpoint, Service, call_pooled};
use crate::http::state::States;
use http::header::{ALLOW, LOCATION};
use http::{HeaderValue, StatusCode};
use peregrine_proto::TargetForm;
use peregrine_router::{Match, Parameters, has_dot_segments};
use peregrine_slot::{FutureSlot, PinnedFuture};
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// Data that an application's endpoints need, but that is known only after the whole application is
/// built. A merged application has its own `AppContext`.
#[derive(Default)]
pub(crate) struct AppContext {
    problem_renderer: OnceCell<ProblemRenderer>,
    table: OnceCell<Rc<RouteTable>>,
    states: OnceCell<Rc<States>>,
    /// The contexts of merged applications, each with the states that were added to it.
    merged: RefCell<Vec<(Rc<Self>, States)>>,
}

impl AppContext {
    /// Registers `other`, the context of a merged application to which `states` were added. `other`
    /// receives this application's problem renderer, table and states when they are set. Its own
    /// renderer and states take precedence.
    pub(crate) fn add_merged(&self, other: Rc<Self>, states: States) {
        self.merged.borrow_mut().push((other, states));
    }

    /// The states that this application's handlers and middleware see; set when it is built.
    pub(crate) fn states(&self) -> &Rc<States> {
        self.states.get().expect("states are set when the application is built")
    }

    /// Sets the states of this application. Each merged application sees its own states. For types
    /// that a merged application lacks, it sees the states of the enclosing application.
    pub(crate) fn set_states(&self, states: States) {
        for (merged_app, merged_states) in &mut *self.merged.borrow_mut() {
            let mut merged_states = std::mem::take(merged_states);
            merged_states.extend(&states);
            merged_app.set_states(merged_states);
        }
        if let Some(renderer) = self.problem_renderer.get() {
            states.set_problem_renderer(renderer);
        }
        self.states.get_or_init(|| Rc::new(states));
    }

    /// Sets the function that renders problems. Later calls have no effect.
    pub(crate) fn set_problem_renderer(&self, renderer: &ProblemRenderer) {
        self.problem_renderer.get_or_init(|| Rc::clone(renderer));
        for (merged_app, _) in &*self.merged.borrow() {
            merged_app.set_problem_renderer(renderer);
        }
    }

    pub(crate) fn set_table(&self, table: &Rc<RouteTable>) {
        self.table.get_or_init(|| Rc::clone(table));
        self.states().set_router(Rc::clone(&table.router));
        self.states().set_route_index(&table.route_index);
        for (merged_app, _) in &*self.merged.borrow() {
            merged_app.set_table(table);
        }
    }

    /// Renders `problem` with the application's function, if there is one.
    pub(crate) fn render_problem(&self, problem: Problem, head: &RequestHead) -> Response {
        let response = problem.into_response();
        match self.problem_renderer.get() {
            Some(renderer) => strip_problem_extensions(render_problem(&**renderer, head, response)),
            None => response,
        }
    }
}

/// The endpoints for requests without a route, inside the root scope's middleware.
#[derive(Clone)]
pub(crate) struct Unmatched {
    /// Called when no route and no scope's fallback handles the request, except for a 405.
    /// Redirects to the path with or without a slash, responds to `OPTIONS *`, calls the
    /// application's fallback, or responds 404.
    pub(crate) not_found: Rc<dyn Endpoint>,
    /// The options of the application's fallback, or the defaults.
    pub(crate) not_found_options: RouteOptions,
    /// Whether `not_found` calls the application's fallback instead of responding 404.
    pub(crate) has_fallback: bool,
    /// Responds 400 to paths that other servers may read differently.
    pub(crate) ambiguous: Rc<dyn Endpoint>,
}

/// Calls a service, and renders the problems in its responses with the application's function. If
/// there is no such function, only calls the service.
pub(crate) struct RenderProblems<S> {
    context: Rc<AppContext>,
    service: S,
}

impl<S> RenderProblems<S> {
    pub(crate) fn new(context: &Rc<AppContext>, service: S) -> Self {
        Self { context: Rc::clone(context), service }
    }
}

impl<S: Service> DynService for RenderProblems<S> {
    fn call_dyn<'s>(&'s self, slot: FutureSlot, request: Request) -> PinnedFuture<'s, Response> {
        let Some(renderer) = self.context.problem_renderer.get() else {
            return self.service.call_in(slot, request);
        };
        let head = request.parts.head.share();
        let response = self.service.call(request);
        slot.pin(async move {
            strip_problem_extensions(render_problem(&**renderer, &head, response.await))
        })
    }
}

impl<S: Service + 'static> Endpoint for RenderProblems<S> {
    fn call_owned(
        self: Rc<Self>,
        slot: FutureSlot,
        request: Request,
    ) -> PinnedFuture<'static, Response> {
        if self.context.problem_renderer.get().is_none() {
            return slot.pin(async move { self.service.call(request).await });
        }
        slot.pin(async move {
            let head = request.parts.head.share();
            let response = self.service.call(request).await;
            // The renderer is set, as checked above. The future owns `self`, so it cannot also
            // contain the reference that the check returned.
            match self.context.problem_renderer.get() {
                Some(renderer) => {
                    strip_problem_extensions(render_problem(&**renderer, &head, response))
                }
                None => response,
            }
        })
    }
}

/// An endpoint of a merged application, whose own states take precedence over those of the
/// enclosing application.
pub(crate) struct MergedEndpoint {
    context: Rc<AppContext>,
    endpoint: Rc<dyn Endpoint>,
}

impl MergedEndpoint {
    pub(crate) fn new(context: &Rc<AppContext>, endpoint: Rc<dyn Endpoint>) -> Self {
        Self { context: Rc::clone(context), endpoint }
    }
}

impl DynService for MergedEndpoint {
    fn call_dyn<'s>(
        &'s self,
        slot: FutureSlot,
        mut request: Request,
    ) -> PinnedFuture<'s, Response> {
        request.parts.set_states(self.context.states());
        self.endpoint.call_dyn(slot, request)
    }
}

impl Endpoint for MergedEndpoint {
    fn call_owned(
        self: Rc<Self>,
        slot: FutureSlot,
        mut request: Request,
    ) -> PinnedFuture<'static, Response> {
        request.parts.set_states(self.context.states());
        Rc::clone(&self.endpoint).call_owned(slot, request)
    }
}

/// Responds to requests without a route: 404, 405, redirects, and OPTIONS.
pub(crate) struct DefaultResponses {
    context: Rc<AppContext>,
    /// Called instead of responding 404.
    fallback: Option<Rc<dyn Endpoint>>,
}

impl DefaultResponses {
    pub(crate) fn new(context: &Rc<AppContext>, fallback: Option<Rc<dyn Endpoint>>) -> Self {
        Self { context: Rc::clone(context), fallback }
    }
}

impl Service for DefaultResponses {
    async fn call(&self, request: Request) -> Response {
        let table = self.context.table.get().expect("the table is set when the app is built");
        let head = &request.parts.head;
        // RFC 9110 §9.3.7: "OPTIONS *" applies to the server in general, not to a resource.
        if head.index().target_form == TargetForm::Asterisk {
            return Response::new(StatusCode::NO_CONTENT);
        }
        // Repeats the lookup of `BuiltApp::find`, because its result does not pass through the
        // middleware. The lookup is cheap, and this path is rare.
        let (method, connection) =
            (table.method_number(head), request.parts.connection_untracked());
        let found = table.find(head, connection, method, &mut Parameters::default());
        match found {
            Match::MethodNotAllowed { allow } => {
                method_not_allowed(head, &table.names(allow.union(AUTOMATIC_METHODS)))
            }
            Match::Redirect { add_slash } => slash_redirect(&request, add_slash),
            // Middleware may have changed the path after the first lookup, so this lookup may find
            // a route, but it is too late to call it.
            Match::Found { .. } | Match::NotFound => match &self.fallback {
                Some(fallback) => call_pooled(&**fallback, request).await,
                None => not_found(head).into_response(),
            },
        }
    }
}

/// Rejects requests whose paths other servers may read as different paths.
pub(crate) struct AmbiguousPath;

impl Service for AmbiguousPath {
    async fn call(&self, request: Request) -> Response {
        let path = request.parts.head.path();
        let detail = if has_dot_segments(path.as_bytes()) {
            format!(
                "The path {path} has a segment `.` or `..`, perhaps encoded (`%2E`, `%2F`, `%5C`). \
                 Servers resolve such segments differently, so the request is refused. Resolve \
                 them before sending the request."
            )
        } else {
            format!(
                "The path {path} has an empty segment (`//`), an encoded slash (`%2F`), a backslash \
                 (`%5C`) or a path parameter (`;`). A server that normalizes it would serve a different \
                 resource, so the request is refused. Send the path in its normal form."
            )
        };
        Problem::new(StatusCode::BAD_REQUEST, "ambiguous-path", detail).into_response()
    }
}

fn not_found(head: &RequestHead) -> Problem {
    let detail = format!(
        "No route matches {method} {path}. Check the path's spelling: paths are case-sensitive, and \
         a slash at the end makes a difference.",
        path = head.path(),
        method = head.method_str(),
    );
    Problem::new(StatusCode::NOT_FOUND, "unknown-route", detail)
}

/// A 405, or the automatic response to OPTIONS. `method_names` is the value of `Allow`.
fn method_not_allowed(head: &RequestHead, method_names: &str) -> Response {
    // Method names are tokens, so the conversion cannot fail.
    let allow = HeaderValue::from_str(method_names).unwrap_or(HeaderValue::from_static(""));
    if head.index().method == peregrine_proto::Method::Options {
        return Response::new(StatusCode::NO_CONTENT).with_header(ALLOW, allow);
    }
    let (method, path) = (head.method_str(), head.path());
    let detail = format!("{path} does not support {method}. It supports {method_names}.");
    let allowed: Vec<_> = method_names.split(", ").collect();
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
        .with_member("allow", allowed);
    // RFC 9110 §15.5.6: a 405 response must have an Allow field.
    problem.into_response().with_header(ALLOW, allow)
}

fn slash_redirect(request: &Request, add_slash: bool) -> Response {
    let (head, prefix) = (&request.parts.head, request.client().prefix());
    let path = head.original_path();
    let path = if add_slash { path } else { path.strip_suffix('/').unwrap_or(path) };
    let slash = if add_slash { "/" } else { "" };
    let location = match head.query() {
        Some(query) => format!("{prefix}{path}{slash}?{query}"),
        None => format!("{prefix}{path}{slash}"),
    };
    // RFC 9110 §15.4.9: after a 308, the client repeats the request with the same method and body.
    let response = Response::new(StatusCode::PERMANENT_REDIRECT);
    match HeaderValue::from_str(&location) {
        Ok(location) => response.with_header(LOCATION, location),
        // The prefix or the path has characters that a field value cannot have.
        Err(_) => not_found(head).into_response(),
    }
}

/// The target of a request if a guard panicked during the lookup. Its endpoint resumes that panic,
/// so the server handles it like a panic in a handler.
#[derive(Clone)]
pub(crate) struct RoutingPanic {
    /// The payload of the last panic, until the endpoint takes it.
    payload: Rc<Cell<Option<Box<dyn Any + Send>>>>,
    endpoint: Rc<dyn Endpoint>,
}

impl RoutingPanic {
    pub(crate) fn new() -> Self {
        let payload = Rc::default();
        Self { endpoint: Rc::new(ResumePanic(Rc::clone(&payload))), payload }
    }

    /// Runs `find`; if it panics, returns the endpoint that resumes the panic.
    pub(crate) fn catch<T>(&self, find: impl FnOnce() -> T) -> Result<T, &Rc<dyn Endpoint>> {
        // Unwind safety: a lookup modifies only the head, which stays consistent at every step.
        catch_unwind(AssertUnwindSafe(find)).map_err(|payload| {
            self.payload.set(Some(payload));
            &self.endpoint
        })
    }
}

struct ResumePanic(Rc<Cell<Option<Box<dyn Any + Send>>>>);

impl Service for ResumePanic {
    async fn call(&self, _: Request) -> Response {
        resume_unwind(self.0.take().unwrap_or_else(|| Box::new("a guard of a route panicked")))
    }
}
