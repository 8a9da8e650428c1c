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

/// Handlers for several methods of one path, made by [`get`], [`post`] and the other functions
/// here: `.route("/users", get(list).post(create))`.
#[derive(Debug)]
#[must_use = "it does nothing until it is given to `route`"]
pub struct MethodRouter<T>(T);

/// The handlers of a [`MethodRouter`].
pub trait MethodRoutes: sealed::Sealed {
    #[doc(hidden)]
    fn add_to(self, to: &mut Scope, pattern: &str, place: &'static Location<'static>);
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
    args: PhantomData<fn() -> (Args, Via)>,
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
    fn add_to(self, to: &mut Scope, pattern: &str, place: &'static Location<'static>) {
        let (single, earlier) = self;
        earlier.add_to(to, pattern, place);
        to.add_handler(single.methods, pattern, single.handler, place);
    }
}

impl<T: MethodRoutes> MethodRouter<T> {
    pub(crate) fn add_to(self, to: &mut Scope, pattern: &str, place: &'static Location<'static>) {
        self.0.add_to(to, pattern, place);
    }

    fn add_handler<Args, Via, H: Handler<Args, Via>>(
        self,
        methods: MethodFilter,
        handler: H,
    ) -> MethodRouter<(MethodHandler<H, Args, Via>, T)> {
        MethodRouter((MethodHandler { methods, handler, args: PhantomData }, self.0))
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
