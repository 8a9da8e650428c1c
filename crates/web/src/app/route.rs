//! Handlers for several methods of one path, and patterns for display.

use crate::app::handler::{Handler, Signature};
use crate::app::route_table::{MethodFilter, query_method};
use crate::app::scope::Scope;
use http::Method;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

pub use crate::app::pattern::display_pattern;
#[doc(hidden)]
pub use crate::app::pattern::next_parameter;

/// The doc comment of a handler with a route attribute, attached to its route as metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocComment(pub &'static str);

/// Handlers for several methods of one path, created by [`get`], [`post`] and the other functions
/// in this module: `.route("/users", get(list).post(create))`. The type parameters `Args` and `Via`
/// of its methods are always inferred ([`Handler`]).
#[derive(Debug)]
#[must_use = "the handlers do nothing until they are passed to `route`"]
pub struct MethodRouter<T>(T);

/// The handlers of a [`MethodRouter`]: `()`, or a pair of the handler that was added last and those
/// that were added before it.
pub trait MethodRoutes: sealed::Sealed {
    #[doc(hidden)]
    fn add_to(self, scope: &mut Scope, pattern: &str, location: &'static Location<'static>);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for () {}
    impl<H, Args, Via, T> Sealed for (super::MethodHandler<H, Args, Via>, T) {}
}

/// One handler with its method.
pub struct MethodHandler<H, Args, Via> {
    methods: MethodFilter,
    handler: H,
    markers: PhantomData<fn() -> (Args, Via)>,
}

impl<H, Args, Via> fmt::Debug for MethodHandler<H, Args, Via> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MethodHandler").field(&self.methods).finish()
    }
}

impl MethodRoutes for () {
    fn add_to(self, _: &mut Scope, _: &str, _: &'static Location<'static>) {}
}

impl<H, Args, Via, T> MethodRoutes for (MethodHandler<H, Args, Via>, T)
where
    H: Handler<Args, Via> + 'static,
    (Args, Via): 'static,
    T: MethodRoutes,
{
    fn add_to(self, scope: &mut Scope, pattern: &str, location: &'static Location<'static>) {
        let (last, earlier) = self;
        earlier.add_to(scope, pattern, location);
        scope.add_handler(last.methods, pattern, last.handler, location);
    }
}

impl<T: MethodRoutes> MethodRouter<T> {
    pub(crate) fn add_to(
        self,
        scope: &mut Scope,
        pattern: &str,
        location: &'static Location<'static>,
    ) {
        self.0.add_to(scope, pattern, location);
    }

    fn add_handler<Args, Via, H: Handler<Args, Via>>(
        self,
        methods: MethodFilter,
        handler: H,
    ) -> MethodRouter<(MethodHandler<H, Args, Via>, T)> {
        MethodRouter((MethodHandler { methods, handler, markers: PhantomData }, self.0))
    }

    /// Adds a handler for `method`, which may be an extension method.
    pub fn on<Args, Via, H: Signature<Args> + Handler<Args, Via>>(
        self,
        method: Method,
        handler: H,
    ) -> MethodRouter<(MethodHandler<H, Args, Via>, T)> {
        self.add_handler(MethodFilter::One(method), handler)
    }

    /// Adds a handler for every method without its own handler.
    pub fn any<Args, Via, H: Signature<Args> + Handler<Args, Via>>(
        self,
        handler: H,
    ) -> MethodRouter<(MethodHandler<H, Args, Via>, T)> {
        self.add_handler(MethodFilter::Any, handler)
    }
}

/// A handler for every method without its own handler.
pub fn any<Args, Via, H: Signature<Args> + Handler<Args, Via>>(
    handler: H,
) -> MethodRouter<(MethodHandler<H, Args, Via>, ())> {
    MethodRouter(()).any(handler)
}

/// A handler for `method`, which may be an extension method.
pub fn on<Args, Via, H: Signature<Args> + Handler<Args, Via>>(
    method: Method,
    handler: H,
) -> MethodRouter<(MethodHandler<H, Args, Via>, ())> {
    MethodRouter(()).on(method, handler)
}

macro_rules! methods {
    ($($name:ident $text:literal $method:expr;)*) => {
        impl<T: MethodRoutes> MethodRouter<T> {
            $(
                #[doc = concat!("Adds a handler for ", $text, ".")]
                pub fn $name<Args, Via, H: Signature<Args> + Handler<Args, Via>>(
                    self,
                    handler: H,
                ) -> MethodRouter<(MethodHandler<H, Args, Via>, T)> {
                    self.on($method, handler)
                }
            )*
        }

        $(
            #[doc = concat!("A handler for ", $text, ".")]
            pub fn $name<Args, Via, H: Signature<Args> + Handler<Args, Via>>(
                handler: H,
            ) -> MethodRouter<(MethodHandler<H, Args, Via>, ())> {
                MethodRouter(()).$name(handler)
            }
        )*
    };
}

methods! {
    get "GET, and for HEAD unless it has its own handler" Method::GET;
    post "POST" Method::POST;
    put "PUT" Method::PUT;
    delete "DELETE" Method::DELETE;
    patch "PATCH" Method::PATCH;
    head "HEAD" Method::HEAD;
    options "OPTIONS" Method::OPTIONS;
    query "QUERY" query_method();
}
