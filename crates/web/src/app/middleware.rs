//! Middleware: code that runs around handlers.
//!
//! A middleware receives the request and the next service. It may respond itself, change
//! the request or the response, or do work before and after. There are two forms.
//!
//! A **function** is the short form:
//!
//! ```
//! use peregrine::web::middleware::Next;
//! use peregrine::web::{App, Request, Response};
//!
//! async fn log(request: Request, next: Next<'_>) -> Response {
//!     let line = format!("{} {}", request.method(), request.path());
//!     let response = next.run(request).await;
//!     println!("{line} {}", response.status);
//!     response
//! }
//!
//! let app = App::new().wrap(log).get("/", || "hello");
//! assert_eq!(app.test().get("/").send_blocking().text(), "hello");
//! ```
//!
//! The function may take up to six extractors before these two arguments ([`from_fn`] has an
//! example). Write a closure as `async |request: Request, next: Next<'_>| ..`. A closure that
//! returns an async block, `|request, next: Next<'_>| async move { .. }`, does not compile
//! ("lifetime may not live long enough"): the returned future holds `next`, which the type of such
//! a closure cannot express. The requirements for [closures of handlers](crate::handler#closures)
//! apply to middleware too.
//!
//! [`Next`] hides the type of the next service. It stores that service's future in a slot from a
//! thread-local pool, so calls do not allocate once the pool is warm.
//!
//! A **type** that implements [`Middleware`] is the long form, for middleware that has settings or
//! belongs to a library:
//!
//! ```
//! use peregrine::http::{HeaderName, HeaderValue};
//! use peregrine::web::middleware::Middleware;
//! use peregrine::web::{App, Request, Response, Service};
//!
//! struct Stamp(HeaderName, HeaderValue);
//!
//! impl Middleware for Stamp {
//!     async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
//!         let response = next.call(request).await;
//!         response.with_header(self.0.clone(), self.1.clone())
//!     }
//! }
//!
//! let stamp = Stamp(HeaderName::from_static("x-stamp"), HeaderValue::from_static("1"));
//! let app = App::new().wrap(stamp).get("/", || "hello");
//! assert_eq!(app.test().get("/").send_blocking().header("x-stamp"), Some("1"));
//! ```

use crate::app::default_responses::{AppContext, RenderProblems};
use crate::http::from_request::FromRequestParts;
use crate::http::request::Request;
use crate::http::requirements::RouteRequirements;
use crate::http::response::{IntoResponse, Response};
use crate::http::service::{DynService, Endpoint, ErasedService, Service, call_pooled};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

/// Code that runs around services. One middleware value may run around many routes.
#[doc(alias = "Layer")]
#[doc(alias = "Transform")]
#[doc(alias = "Fairing")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "not a middleware",
    note = "implement `Middleware` for it, or give an `async fn(Request, Next<'_>)` as \
            `from_fn(function)`"
)]
pub trait Middleware {
    /// Handles a request, usually by calling `next`.
    #[doc(alias = "handle")]
    fn run<S: Service>(&self, request: Request, next: &S) -> impl Future<Output = Response>;

    /// Declares what this middleware needs from the application. Building the application checks
    /// these requirements.
    fn require(&self, _requirements: &mut RouteRequirements) {}

    /// Wraps one route, fallback or automatic response in this middleware. Called once for each of
    /// them, while the application is under construction. The default calls [`Middleware::run`] for
    /// each request; override it to store data for each route.
    #[doc(alias = "layer")]
    #[doc(alias = "new_transform")]
    fn wrap_service<S: Service + 'static>(self: Rc<Self>, service: S) -> impl Service + 'static
    where
        Self: Sized + 'static,
    {
        MiddlewareService { middleware: self, next: service }
    }
}

/// A middleware that may be absent. Created by [`optional`].
#[derive(Clone, Debug)]
pub struct Optional<M>(Option<Rc<M>>);

/// Creates a middleware from one that may be absent, for example because a setting turns it off.
/// `None` passes requests on unchanged.
#[doc(alias = "option_layer")]
#[must_use]
pub fn optional<M: Middleware>(middleware: Option<M>) -> Optional<M> {
    Optional(middleware.map(Rc::new))
}

impl<M: Middleware + 'static> Middleware for Optional<M> {
    async fn run<S: Service>(&self, request: Request, next: &S) -> Response {
        match &self.0 {
            Some(middleware) => middleware.run(request, next).await,
            None => next.call(request).await,
        }
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        if let Some(middleware) = &self.0 {
            middleware.require(requirements);
        }
    }

    fn wrap_service<S: Service + 'static>(self: Rc<Self>, service: S) -> impl Service + 'static {
        match &self.0 {
            Some(middleware) => ErasedService::new(Rc::clone(middleware).wrap_service(service)),
            None => ErasedService::new(service),
        }
    }
}

/// The service after a middleware function: the next middleware, or the handler.
#[derive(Clone, Copy)]
pub struct Next<'n>(&'n dyn DynService);

impl<'n> Next<'n> {
    fn new<S: Service>(service: &'n S) -> Self {
        Self(service)
    }

    /// Passes `request` on and returns the response.
    pub fn run(self, request: Request) -> impl Future<Output = Response> + 'n {
        call_pooled(self.0, request)
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Next")
    }
}

/// The argument of [`App::wrap`](crate::App::wrap): a [`Middleware`], or an async function whose
/// arguments are at most six extractors, the request, and [`Next`]. `Args` distinguishes the two
/// and is always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "not a middleware",
    note = "a middleware is a type that implements `Middleware`, or an `async fn(Request, Next<'_>)` \
            that may have up to 6 extractors before these two arguments",
    note = "a closure is written `async |request: Request, next: Next<'_>| ..`, and must be `Fn`: \
            put a value that it changes into a `Cell` or `RefCell`"
)]
pub trait IntoMiddleware<Args> {
    /// The resulting middleware.
    type Middleware;

    /// Creates the middleware.
    fn into_middleware(self) -> Self::Middleware;
}

/// In `Args`, marks types that implement [`Middleware`].
#[derive(Debug)]
pub enum ViaType {}

impl<M: Middleware> IntoMiddleware<ViaType> for M {
    type Middleware = M;

    fn into_middleware(self) -> M {
        self
    }
}

/// Creates a [`Middleware`] from an async function whose arguments are at most six extractors, the
/// request, and [`Next`]. Only code that requires a [`Middleware`] needs `from_fn`:
/// [`App::wrap`](crate::App::wrap) accepts the function itself.
///
/// The extractors must not read the body. If an extractor rejects the request, the extractor's
/// problem is the response.
///
/// ```
/// use peregrine::http::Method;
/// use peregrine::web::middleware::Next;
/// use peregrine::web::{App, Problem, Request, Response};
/// # use peregrine::http::StatusCode;
/// # use peregrine::web::{Parts, extract::FromRequestParts};
/// # struct Key(String);
/// # impl FromRequestParts for Key {
/// #     async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
/// #         parts.head.header("x-key").map(|key| Key(key.to_owned())).ok_or_else(|| {
/// #             Problem::new(StatusCode::UNAUTHORIZED, "no-key", "Send a key in X-Key.")
/// #         })
/// #     }
/// # }
///
/// async fn with_key(
///     Key(key): Key,
///     request: Request,
///     next: Next<'_>,
/// ) -> Result<Response, Problem> {
///     if key == "open sesame" {
///         return Ok(next.run(request).await);
///     }
///     Err(Problem::new(StatusCode::FORBIDDEN, "wrong-key", "This key opens nothing."))
/// }
///
/// let app = App::new().wrap(with_key).get("/", || "gold");
/// let client = app.test();
/// assert_eq!(client.get("/").header("x-key", "open sesame").send_blocking().text(), "gold");
/// assert_eq!(client.get("/").header("x-key", "open rye").send_blocking().status(), 403);
/// assert_eq!(client.get("/").send_blocking().status(), 401);
/// ```
#[must_use]
pub fn from_fn<F, Args>(function: F) -> FromFn<F, Args>
where
    FromFn<F, Args>: Middleware,
{
    FromFn { function, args: PhantomData }
}

/// A function as a middleware. Created by [`from_fn`] and [`App::wrap`](crate::App::wrap).
pub struct FromFn<F, Args> {
    function: F,
    args: PhantomData<fn() -> Args>,
}

impl<F, Args> fmt::Debug for FromFn<F, Args> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

/// Implements [`IntoMiddleware`] and [`Middleware`] for functions.
macro_rules! impl_from_fn {
    ($(($($Extractor:ident)*))*) => {
        $(
            impl<F, R, $($Extractor,)*> IntoMiddleware<($($Extractor,)*)> for F
            where
                F: AsyncFn($($Extractor,)* Request, Next<'_>) -> R,
            {
                type Middleware = FromFn<F, ($($Extractor,)*)>;

                fn into_middleware(self) -> Self::Middleware {
                    FromFn { function: self, args: PhantomData }
                }
            }

            impl<F, R, $($Extractor,)*> Middleware for FromFn<F, ($($Extractor,)*)>
            where
                F: AsyncFn($($Extractor,)* Request, Next<'_>) -> R,
                R: IntoResponse,
                $($Extractor: FromRequestParts,)*
            {
                #[allow(unused_mut, reason = "without extractors nothing changes before the call")]
                #[allow(non_snake_case, reason = "each value is named as its type")]
                async fn run<S: Service>(&self, mut request: Request, next: &S) -> Response {
                    $(
                        let $Extractor = $Extractor::from_request_parts(&mut request.parts);
                        let $Extractor = match $Extractor.await {
                            Ok(value) => value,
                            Err(problem) => return problem.into_response(),
                        };
                    )*
                    let next = Next::new(next);
                    (self.function)($($Extractor,)* request, next).await.into_response()
                }

                #[allow(unused_variables, reason = "without extractors nothing is needed")]
                fn require(&self, requirements: &mut RouteRequirements) {
                    $($Extractor::require(requirements);)*
                }
            }
        )*
    };
}

// There is no `F`, which is the type of the function.
impl_from_fn! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E G) }

/// The middleware that was added to a scope with `wrap`, innermost first. Each route that is added
/// later is wrapped in it. The types of the middleware are erased, so that [`App`](crate::App) and
/// [`Scope`](crate::Scope) have no type parameters.
#[derive(Clone, Default)]
pub(crate) struct MiddlewareStack(Option<Rc<StackNode>>);

struct StackNode {
    middleware: Box<dyn ErasedMiddleware>,
    outer: MiddlewareStack,
}

impl MiddlewareStack {
    /// Adds `middleware` inside the existing ones.
    pub(crate) fn push<M: Middleware + 'static>(self, middleware: M) -> Self {
        Self(Some(Rc::new(StackNode { middleware: Box::new(Rc::new(middleware)), outer: self })))
    }

    /// Whether the stack is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Wraps `endpoint` in all middleware.
    pub(crate) fn wrap(&self, endpoint: Rc<dyn Endpoint>) -> Rc<dyn Endpoint> {
        self.nodes().fold(endpoint, |endpoint, node| node.middleware.wrap(ErasedService(endpoint)))
    }

    /// Wraps `service` in all middleware. The application's problem renderer renders the problems
    /// in the responses of the result.
    pub(crate) fn wrap_and_render<S: Service + 'static>(
        &self,
        service: S,
        context: &Rc<AppContext>,
    ) -> Rc<dyn Endpoint> {
        let mut nodes = self.nodes().peekable();
        if nodes.peek().is_none() {
            return Rc::new(RenderProblems::new(context, service));
        }
        let mut endpoint: Rc<dyn Endpoint> = Rc::new(service);
        while let Some(node) = nodes.next() {
            endpoint = match nodes.peek() {
                Some(_) => node.middleware.wrap(ErasedService(endpoint)),
                // The outermost middleware: problems are rendered outside it.
                None => node.middleware.wrap_and_render(ErasedService(endpoint), context),
            };
        }
        endpoint
    }

    /// Collects the requirements of all middleware.
    pub(crate) fn require(&self, requirements: &mut RouteRequirements) {
        for node in self.nodes() {
            node.middleware.require(requirements);
        }
    }

    fn nodes(&self) -> impl Iterator<Item = &StackNode> {
        std::iter::successors(self.0.as_deref(), |node| node.outer.0.as_deref())
    }
}

/// A middleware with its type erased.
trait ErasedMiddleware {
    fn wrap(&self, next: ErasedService) -> Rc<dyn Endpoint>;

    fn wrap_and_render(&self, next: ErasedService, context: &Rc<AppContext>) -> Rc<dyn Endpoint>;

    fn require(&self, requirements: &mut RouteRequirements);
}

impl<M: Middleware + 'static> ErasedMiddleware for Rc<M> {
    fn wrap(&self, next: ErasedService) -> Rc<dyn Endpoint> {
        Rc::new(Self::clone(self).wrap_service(next))
    }

    fn wrap_and_render(&self, next: ErasedService, context: &Rc<AppContext>) -> Rc<dyn Endpoint> {
        Rc::new(RenderProblems::new(context, Self::clone(self).wrap_service(next)))
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        (**self).require(requirements);
    }
}

/// A service wrapped in one middleware.
struct MiddlewareService<M, S> {
    middleware: Rc<M>,
    next: S,
}

impl<M: Middleware, S: Service> Service for MiddlewareService<M, S> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        self.middleware.run(request, &self.next)
    }
}
