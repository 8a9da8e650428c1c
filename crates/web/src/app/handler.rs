//! Handlers: functions that handle requests.
//!
//! A handler is a function or closure, `async` or not, that takes up to twelve extractors. All
//! arguments except the last implement [`FromRequestParts`]; the last one may also read the body,
//! as a [`FromRequest`]. The result implements [`IntoResponse`]. Every [`Service`] is a handler
//! too.
//!
//! ```
//! use peregrine::web::{App, HandlerExt, Request};
//! use std::time::Duration;
//!
//! fn health() -> &'static str {
//!     "well"
//! }
//!
//! async fn echo(request: Request) -> String {
//!     format!("{} {}", request.method(), request.path())
//! }
//!
//! let greeting = String::from("hello");
//! let app = App::new()
//!     .get("/health", health)
//!     .any("/echo", echo.timeout(Duration::from_secs(5)))
//!     .get("/greeting", move || {
//!         let greeting = greeting.clone();
//!         async move { greeting }
//!     });
//! assert_eq!(app.test().get("/greeting").send_blocking().text(), "hello");
//! ```
//!
//! # Closures
//!
//! A handler is called for many requests, several at a time, for as long as the server runs. A
//! closure must therefore be `Fn` and `'static`:
//!
//! - If it borrows from the function around it, it needs `move`.
//! - If it moves a captured value out (`FnOnce`), clone the value first, as above; `async move ||
//!   ..` may also use the value in place.
//! - If it changes a captured value (`FnMut`), put the value into a [`Cell`](std::cell::Cell) or a
//!   [`RefCell`](std::cell::RefCell). Each worker has its own closure and value, so neither needs a
//!   lock. For a count that all workers share, use an atomic in an `Arc`.

use crate::http::from_request::{FromRequest, FromRequestParts};
use crate::http::guard::Guard;
use crate::http::request::Request;
use crate::http::requirements::RouteRequirements;
use crate::http::response::{IntoResponse, Response};
use crate::http::service::Service;
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::time::Duration;

pub use crate::http::route_options::{OnDisconnect, RouteOptions};

/// Anything with the shape of a handler: a function or closure of at most twelve arguments, `async`
/// or not, a [`Service`], or a handler with options. [`Handler`] checks that the arguments are
/// extractors.
///
/// Methods that take a handler require this trait before [`Handler`]. It determines `Args`, so that
/// a compiler error about a wrong handler names the argument or result that is wrong.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not shaped as a handler",
    label = "not a handler"
)]
pub trait Signature<Args> {}

/// A function that handles requests. `Args` distinguishes functions with different arguments. `Via`
/// distinguishes the kinds of the last argument. Both are markers that the compiler always infers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not a handler",
    note = "a handler is a function or closure, `async` or not, of at most 12 extractors that \
            returns an `IntoResponse`",
    note = "check what it returns if it is not `async`: to send JSON, derive `serde::Serialize` \
            and return `Json<_>`",
    note = "check the number of its arguments: `State<(A, B)>`, `Path<(A, B)>` and your own \
            extractors combine several values in one argument",
    note = "a closure must be `Fn`: put a value that it changes into a `Cell` or `RefCell`, and \
            clone a value before moving it out"
)]
pub trait Handler<Args, Via>: Signature<Args> {
    /// Handles a request.
    fn call(&self, request: Request) -> impl Future<Output = Response>;

    /// Declares what the arguments need from the application. Building the application checks these
    /// requirements.
    fn require(&self, requirements: &mut RouteRequirements);

    /// Sets the handler's server options.
    fn configure(&self, _options: &mut RouteOptions) {}
}

/// In `Args`, marks `async` handlers.
#[derive(Debug)]
pub enum ViaFuture {}

/// In `Args`, marks handlers that return their response directly.
#[derive(Debug)]
pub enum ViaValue {}

/// In `Args`, marks services used as handlers.
#[derive(Debug)]
pub enum ViaService {}

/// In `Args`, marks built applications used as handlers.
#[derive(Debug)]
pub enum ViaBuiltApp {}

/// In `Args`, marks handlers with options. Its own parameter is the `Args` of the handler inside.
#[derive(Debug)]
pub struct ViaOptions<Args>(PhantomData<Args>);

/// Options for one handler, set where it is added to a route:
/// `.post("/files", upload.body_limit(64 << 20).run_to_completion())`. `Args` is always inferred.
pub trait HandlerExt<Args>: Signature<Args> + Sized {
    /// Lets the handler finish even if the peer disconnects.
    #[doc(alias = "detach")]
    #[doc(alias = "proxy_ignore_client_abort")]
    fn run_to_completion(self) -> WithOption<Self> {
        WithOption {
            handler: self,
            option: RouteOption::OnDisconnect(OnDisconnect::RunToCompletion),
        }
    }

    /// Drops the handler's future when the peer disconnects. This is the default.
    fn cancel_on_disconnect(self) -> WithOption<Self> {
        WithOption { handler: self, option: RouteOption::OnDisconnect(OnDisconnect::Cancel) }
    }

    /// Limits the size of the request body, in bytes. This limit overrides those of the middleware
    /// and the server, whether it is lower or higher. It is checked while the body is read, and
    /// extractors respond 413.
    #[doc(alias = "client_max_body_size")]
    #[doc(alias = "DefaultBodyLimit")]
    fn body_limit(self, bytes_max: u64) -> WithOption<Self> {
        WithOption { handler: self, option: RouteOption::BodyBytesMax(bytes_max) }
    }

    /// Limits the time until the response starts. If the limit expires, the server responds 503.
    fn timeout(self, limit: Duration) -> WithOption<Self> {
        WithOption { handler: self, option: RouteOption::Timeout(limit) }
    }

    /// Limits how many requests to this route each worker processes at the same time. A request
    /// counts from the arrival of its head until the end of its response. A WebSocket counts until
    /// it is closed. Requests over the limit get a 503 with `Retry-After` before their bodies are
    /// read. Use it for routes that need a scarce resource.
    ///
    /// ```
    /// use peregrine::prelude::*;
    ///
    /// async fn report() -> &'static str {
    ///     "this took long"
    /// }
    /// // With four workers, at most eight requests run at a time.
    /// let app = App::new().get("/report", report.requests_max(2));
    /// ```
    #[doc(alias = "concurrency_limit")]
    #[doc(alias = "max_in_flight")]
    #[doc(alias = "limit_conn")]
    fn requests_max(self, limit: usize) -> WithOption<Self> {
        WithOption { handler: self, option: RouteOption::RequestsMax(limit) }
    }

    /// Exempts the route from load shedding. Use it for health checks, which matter most under
    /// overload. The server then accepts these requests under any load, so the handler must be
    /// cheap.
    ///
    /// ```
    /// use peregrine::prelude::*;
    ///
    /// let app = App::new().get("/healthz", (|| "well").never_shed());
    /// ```
    #[doc(alias = "load_shed")]
    #[doc(alias = "exempt")]
    fn never_shed(self) -> WithOption<Self> {
        WithOption { handler: self, option: RouteOption::NeverShed }
    }

    /// Turns off the check of ambiguous paths for this route.
    ///
    /// By default, the application responds 400 (`ambiguous-path`) to paths with dot segments in
    /// any encoding. It also responds 400 to paths with empty segments, `%2F`, `%5C` or path
    /// parameters (`;a=b`), if a server that normalizes the path would serve a different route: the
    /// middleware of that route, such as authentication, would not have run. Turn the check off
    /// only if no server behind the handler, such as a proxy's upstream, relies on the middleware
    /// of other routes.
    ///
    /// ```
    /// use peregrine::prelude::*;
    /// use peregrine::web::HandlerExt;
    ///
    /// let app = App::new().get("/raw/{*path}", (|| "raw").allow_ambiguous_paths());
    /// assert_eq!(app.test().get("/raw/a/../b").send_blocking().text(), "raw");
    /// ```
    fn allow_ambiguous_paths(self) -> WithOption<Self> {
        WithOption { handler: self, option: RouteOption::AllowAmbiguousPaths }
    }

    /// Restricts the handler to requests that `guard` accepts. Other requests go to the next route
    /// for their path. If there are several guards, all must accept. See [`guard`](crate::guard).
    #[doc(alias = "when")]
    #[doc(alias = "predicate")]
    fn guard(self, guard: impl Guard + 'static) -> Guarded<Self> {
        Guarded { handler: self, guard: Rc::new(guard) }
    }

    /// Names the handler's route, so that [`Urls`](crate::urls::Urls) can build URLs for it.
    /// Routes with the same pattern may have the same name.
    #[doc(alias = "name")]
    fn named(self, name: &str) -> Named<Self> {
        Named { handler: self, name: name.into() }
    }

    /// Attaches `metadata` to the handler's route, for code that inspects routes
    /// ([`RouteInfo::metadata`](crate::built::RouteInfo::metadata)).
    #[doc(alias = "metadata")]
    #[doc(alias = "noted")]
    fn with_metadata<T: 'static>(self, metadata: T) -> WithMetadata<Self> {
        WithMetadata { handler: self, metadata: Rc::new(metadata) }
    }
}

impl<Args, H: Signature<Args>> HandlerExt<Args> for H {}

/// A handler with an additional option. Created by [`HandlerExt`].
#[derive(Clone, Copy, Debug)]
pub struct WithOption<H> {
    handler: H,
    option: RouteOption,
}

#[derive(Clone, Copy, Debug)]
enum RouteOption {
    OnDisconnect(OnDisconnect),
    BodyBytesMax(u64),
    Timeout(Duration),
    RequestsMax(usize),
    NeverShed,
    AllowAmbiguousPaths,
}

impl<Args, H: Signature<Args>> Signature<ViaOptions<Args>> for WithOption<H> {}

impl<Args, Via, H: Handler<Args, Via>> Handler<ViaOptions<Args>, Via> for WithOption<H> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        self.handler.call(request)
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        self.handler.require(requirements);
    }

    fn configure(&self, options: &mut RouteOptions) {
        self.handler.configure(options);
        match self.option {
            RouteOption::OnDisconnect(on_disconnect) => options.on_disconnect = on_disconnect,
            RouteOption::BodyBytesMax(bytes_max) => options.body_bytes_max = Some(bytes_max),
            RouteOption::Timeout(limit) => options.timeout = Some(limit),
            RouteOption::RequestsMax(limit) => options.requests_max = Some(limit),
            RouteOption::NeverShed => options.is_never_shed = true,
            RouteOption::AllowAmbiguousPaths => options.allows_ambiguous_paths = true,
        }
    }
}

/// A handler that receives only the requests that a guard accepts. Created by
/// [`HandlerExt::guard`].
#[derive(Clone)]
pub struct Guarded<H> {
    handler: H,
    guard: Rc<dyn Guard>,
}

/// A handler whose route has a name. Created by [`HandlerExt::named`].
#[derive(Clone, Debug)]
pub struct Named<H> {
    handler: H,
    name: Rc<str>,
}

/// A handler whose route has metadata. Created by [`HandlerExt::with_metadata`].
#[derive(Clone, Debug)]
pub struct WithMetadata<H> {
    handler: H,
    metadata: Rc<dyn Any>,
}

impl<H: fmt::Debug> fmt::Debug for Guarded<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("handler", &self.handler).finish_non_exhaustive()
    }
}

/// Implements [`Handler`] for a wrapper that adds the requirement `$require` to its handler.
macro_rules! delegate_handler {
    ($($Wrapper:ident $require:expr;)*) => {
        $(
            impl<Args, H: Signature<Args>> Signature<ViaOptions<Args>> for $Wrapper<H> {}

            impl<Args, Via, H: Handler<Args, Via>> Handler<ViaOptions<Args>, Via> for $Wrapper<H> {
                fn call(&self, request: Request) -> impl Future<Output = Response> {
                    self.handler.call(request)
                }

                fn require(&self, requirements: &mut RouteRequirements) {
                    self.handler.require(requirements);
                    $require(self, requirements);
                }

                fn configure(&self, options: &mut RouteOptions) {
                    self.handler.configure(options);
                }
            }
        )*
    };
}

delegate_handler! {
    Guarded |wrapper: &Self, requirements: &mut RouteRequirements| requirements.add_guard(&wrapper.guard);
    Named |wrapper: &Self, requirements: &mut RouteRequirements| requirements.set_route_name(&wrapper.name);
    WithMetadata |wrapper: &Self, requirements: &mut RouteRequirements| requirements.add_metadata(Rc::clone(&wrapper.metadata));
}

impl<S: Service> Signature<ViaService> for S {}

impl<S: Service> Handler<ViaService, ()> for S {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        Service::call(self, request)
    }

    fn require(&self, _: &mut RouteRequirements) {}
}

/// A handler as a [`Service`], with the types of its arguments erased.
pub(crate) struct HandlerService<H, Args, Via> {
    handler: H,
    /// The route's body limit, which overrides those of the middleware around it.
    body_bytes_max: Option<u64>,
    markers: PhantomData<fn() -> (Args, Via)>,
}

impl<H, Args, Via> HandlerService<H, Args, Via> {
    pub(crate) fn new(handler: H, options: &RouteOptions) -> Self {
        Self { handler, body_bytes_max: options.body_bytes_max, markers: PhantomData }
    }
}

impl<Args, Via, H: Handler<Args, Via>> Service for HandlerService<H, Args, Via> {
    fn call(&self, mut request: Request) -> impl Future<Output = Response> {
        if let Some(limit) = self.body_bytes_max {
            request.body = request.body.limited(limit);
        }
        self.handler.call(request)
    }
}

impl<F, R> Signature<(ViaFuture,)> for F where F: AsyncFn() -> R {}

impl<F, R> Signature<(ViaValue,)> for F
where
    F: Fn() -> R,
    R: IntoResponse,
{
}

impl<F, R> Handler<(ViaFuture,), ()> for F
where
    F: AsyncFn() -> R,
    R: IntoResponse,
{
    async fn call(&self, _: Request) -> Response {
        self().await.into_response()
    }

    fn require(&self, _: &mut RouteRequirements) {}
}

impl<F, R> Handler<(ViaValue,), ()> for F
where
    F: Fn() -> R,
    R: IntoResponse,
{
    async fn call(&self, _: Request) -> Response {
        self().into_response()
    }

    fn require(&self, _: &mut RouteRequirements) {}
}

/// Implements [`Handler`] for one number of arguments. `$Fn` is the function trait, `$await` awaits
/// the result of an `async` function, and `$bound` is the bound on the result by which
/// [`Signature`] distinguishes other functions from `async` ones.
macro_rules! handler {
    ($Marker:ident, $Fn:ident, [$($await:tt)*], [$($bound:tt)*], $($First:ident)*, $Last:ident) => {
        impl<F, R, $($First,)* $Last> Signature<($Marker, $($First,)* $Last)> for F
        where
            F: $Fn($($First,)* $Last) -> R,
            $($bound)*
        {
        }

        impl<F, R, Via, $($First,)* $Last> Handler<($Marker, $($First,)* $Last), Via> for F
        where
            F: $Fn($($First,)* $Last) -> R,
            R: IntoResponse,
            $($First: FromRequestParts,)*
            $Last: FromRequest<Via>,
        {
            #[allow(unused_mut, reason = "a single argument consumes the request unchanged")]
            #[allow(non_snake_case, reason = "each value is named as its type")]
            async fn call(&self, mut request: Request) -> Response {
                $(
                    let $First = match $First::from_request_parts(&mut request.parts).await {
                        Ok(value) => value,
                        Err(problem) => return problem.into_response(),
                    };
                )*
                let $Last = match $Last::from_request(request).await {
                    Ok(value) => value,
                    Err(problem) => return problem.into_response(),
                };
                self($($First,)* $Last)$($await)*.into_response()
            }

            fn require(&self, requirements: &mut RouteRequirements) {
                $($First::require(requirements);)*
                $Last::require(requirements);
            }
        }
    };
}

/// Implements [`Handler`] for one to twelve arguments.
macro_rules! handlers {
    ($(($($First:ident)*, $Last:ident))*) => {
        $(
            handler!(ViaFuture, AsyncFn, [.await], [], $($First)*, $Last);
            handler!(ViaValue, Fn, [], [R: IntoResponse], $($First)*, $Last);
        )*
    };
}

// There is no `F`, which is the type of the function.
handlers! {
    (, A)
    (A, B)
    (A B, C)
    (A B C, D)
    (A B C D, E)
    (A B C D E, G)
    (A B C D E G, H)
    (A B C D E G H, I)
    (A B C D E G H I, J)
    (A B C D E G H I J, K)
    (A B C D E G H I J K, L)
    (A B C D E G H I J K L, M)
}
