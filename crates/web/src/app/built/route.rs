//! The routes of a built application, as targets of requests and as rows of lists.

use crate::app::default_responses::Shared;
use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::route_options::{OnDisconnect, RouteOptions};
use crate::http::service::Endpoint;
use peregrine_slot::{FutureSlot, Held};
use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

/// What answers a request: a route, a fallback, or an automatic answer.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub(super) endpoint: &'a Rc<dyn Endpoint>,
    pub(super) options: &'a RouteOptions,
    pub(super) pattern: Option<&'a Rc<str>>,
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

/// A route of a built application.
pub(crate) struct Built {
    pub(crate) endpoint: Rc<dyn Endpoint>,
    pub(crate) unrouted: Rc<dyn Endpoint>,
    pub(crate) options: RouteOptions,
    pub(crate) is_guarded: bool,
    /// It has no parameters, no guards, and a pattern that all servers read alike. They then read
    /// every path that matches it alike, and no path needs a check.
    pub(crate) is_literal: bool,
    /// What it asks for, in words.
    pub(crate) conditions: String,
    /// From the application that the route belongs to.
    pub(crate) shared: Rc<Shared>,
    pub(crate) pattern: Rc<str>,
    pub(crate) methods: String,
    pub(crate) place: &'static Location<'static>,
    /// What no request asks for.
    pub(crate) about: Box<About>,
}

/// What those may want to know who look at routes.
#[derive(Debug, Default)]
pub(crate) struct About {
    pub(crate) name: Option<Rc<str>>,
    pub(crate) notes: Vec<Rc<dyn Any>>,
    pub(crate) types: Vec<(String, &'static str)>,
    pub(crate) absent: usize,
    pub(crate) is_slash_twin: bool,
}

impl Built {
    #[inline]
    pub(super) fn target(&self) -> Target<'_> {
        Target { endpoint: &self.endpoint, options: &self.options, pattern: Some(&self.pattern) }
    }

    /// What answers for the route's path in place of the route.
    pub(super) fn unrouted(&self) -> Target<'_> {
        let options = match self.options.allows_ambiguous_paths {
            true => &UNROUTED_AMBIGUOUS_OPTIONS,
            false => &UNROUTED_OPTIONS,
        };
        Target { endpoint: &self.unrouted, options, pattern: None }
    }

    /// The route for lists.
    pub(super) fn info(&self) -> RouteInfo<'_> {
        RouteInfo {
            methods: &self.methods,
            pattern: &self.pattern,
            conditions: &self.conditions,
            place: self.place,
            options: &self.options,
            about: &self.about,
        }
    }

    /// The same with what it asks for, in words.
    pub(crate) fn asking(self, conditions: String) -> Self {
        Self { conditions, ..self }
    }
}

/// The server options of a request without a route: nothing special.
pub(super) static UNROUTED_OPTIONS: RouteOptions = RouteOptions {
    on_disconnect: OnDisconnect::Cancel,
    body_bytes_max: None,
    lifts_body_limit: false,
    takes_calls: false,
    timeout: None,
    requests_max: None,
    is_never_shed: false,
    allows_ambiguous_paths: false,
};

/// The same beside a route that takes ambiguous paths.
static UNROUTED_AMBIGUOUS_OPTIONS: RouteOptions =
    RouteOptions { allows_ambiguous_paths: true, ..UNROUTED_OPTIONS };

/// The same where another service answers first, such as an authority's checks: what the server
/// itself needs is never shed.
pub(super) static FIRST_OPTIONS: RouteOptions =
    RouteOptions { is_never_shed: true, ..UNROUTED_OPTIONS };
