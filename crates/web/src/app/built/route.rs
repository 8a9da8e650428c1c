//! The routes of a built application: as targets of requests and as entries of route lists.

use crate::app::default_responses::AppContext;
use crate::http::request::Request;
use crate::http::response::Response;
use crate::http::route_options::{OnDisconnect, RouteOptions};
use crate::http::service::Endpoint;
use peregrine_slot::{FutureSlot, PinnedFuture};
use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

/// The target of a request: a route, a fallback, or an automatic response.
#[doc(alias = "MatchedRoute")]
#[derive(Clone, Copy)]
pub struct MatchedEndpoint<'a> {
    pub(super) endpoint: &'a Rc<dyn Endpoint>,
    pub(super) options: &'a RouteOptions,
    pub(super) pattern: Option<&'a Rc<str>>,
}

impl<'a> MatchedEndpoint<'a> {
    /// The server options of the route.
    #[must_use]
    pub fn options(&self) -> &'a RouteOptions {
        self.options
    }

    /// The body limit to set before [`MatchedEndpoint::call`], in bytes: the route's own limit, or
    /// `server_limit` if the route has none. Middleware can replace the limit, so the route's own
    /// limit is set again just before the handler runs. The limit is checked while the body is
    /// read, so a server need not reject a request with a larger `Content-Length`.
    ///
    /// If the route has no limit of its own and its handler lifts the server's limit
    /// ([`RouteOptions::lifts_body_limit`]), `call` lifts the limit, except for middleware that
    /// reads the whole body into memory ([`Body::buffer_limit`](crate::Body::buffer_limit)).
    #[must_use]
    pub fn body_limit(&self, server_limit: u64) -> u64 {
        self.options.body_bytes_max.unwrap_or(server_limit)
    }

    /// The route's pattern; `None` if no route handles the request.
    #[must_use]
    pub fn pattern(&self) -> Option<&'a Rc<str>> {
        self.pattern
    }

    /// Handles `request`, whose head must be the one that was passed to
    /// [`BuiltApp::find`](crate::BuiltApp::find). The future lives in `slot`, so nothing is
    /// allocated once the slot has grown to the size of the application's futures. The future owns
    /// everything that it needs from the application, and runs no application code before the first
    /// poll.
    #[inline]
    pub fn call(self, slot: FutureSlot, request: Request) -> PinnedFuture<'static, Response> {
        Rc::clone(self.endpoint).call_owned(slot, self.lift_limit(request))
    }

    /// Removes the server's body limit from `request`, if the handler's options lift it and set no
    /// limit of their own.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn lift_limit(self, mut request: Request) -> Request {
        if self.options.lifts_body_limit && self.options.body_bytes_max.is_none() {
            request.body = request.body.with_lifted_limit();
        }
        request
    }
}

impl fmt::Debug for MatchedEndpoint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MatchedEndpoint").field("pattern", &self.pattern).finish_non_exhaustive()
    }
}

/// A route, described for route lists.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RouteInfo<'a> {
    /// One method, or `any method`.
    pub methods: &'a str,
    /// The full pattern.
    pub pattern: &'a str,
    /// Conditions other than the method and the pattern, such as `id is u32, the host is
    /// example.org`; empty if there are none.
    pub conditions: &'a str,
    /// Where the route was added in the source.
    pub location: &'static Location<'static>,
    /// The route's server options.
    pub options: &'a RouteOptions,
    details: &'a RouteDetails,
}

impl<'a> RouteInfo<'a> {
    /// The name set with [`HandlerExt::named`](crate::HandlerExt::named).
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.details.name.as_deref()
    }

    /// The metadata of type `T` on the route, outermost first: that of the scopes and middleware
    /// around the route ([`Scope::with_metadata`](crate::Scope::with_metadata)), then that of its
    /// handler ([`HandlerExt::with_metadata`](crate::HandlerExt::with_metadata)).
    ///
    /// ```
    /// use peregrine::prelude::*;
    ///
    /// struct Owner(&'static str);
    ///
    /// let app = App::new().with_metadata(Owner("the bird team")).get("/birds", || "all of them");
    /// let application = app.build()?;
    /// let route = application.routes().next().expect("one route was added");
    /// assert_eq!(route.metadata::<Owner>().next().map(|owner| owner.0), Some("the bird team"));
    /// # Ok::<(), peregrine::web::BuildError>(())
    /// ```
    pub fn metadata<T: 'static>(&self) -> impl DoubleEndedIterator<Item = &'a T> + use<'a, T> {
        self.details.metadata.iter().filter_map(|metadata| metadata.downcast_ref())
    }

    /// The type of a parameter in the pattern, such as `u32` in `{id:u32}`.
    #[must_use]
    pub fn parameter_type(&self, parameter: &str) -> Option<&'static str> {
        let types = self.details.parameter_types.iter();
        types.rev().find(|(name, _)| name == parameter).map(|(_, kind)| *kind)
    }

    /// The number of optional parameters of the written pattern that this pattern omits.
    #[must_use]
    pub fn omitted_parameters(&self) -> usize {
        self.details.omitted_parameters
    }

    /// Whether this pattern was derived from another route's pattern by adding a trailing slash.
    #[must_use]
    pub fn is_slash_variant(&self) -> bool {
        self.details.is_slash_variant
    }
}

/// A route of a built application.
pub(crate) struct BuiltRoute {
    pub(crate) endpoint: Rc<dyn Endpoint>,
    /// Handles requests that match the pattern, but whose method has no handler.
    pub(crate) method_mismatch_endpoint: Rc<dyn Endpoint>,
    pub(crate) options: RouteOptions,
    /// Whether a guard or a parameter type can reject a request that matches the pattern.
    pub(crate) has_conditions: bool,
    /// The route has no parameters and no conditions, and its pattern contains nothing that servers
    /// interpret differently. The paths that match it differ from it only in percent-encoding or a
    /// trailing slash, so none of them needs the check for ambiguous paths.
    pub(crate) is_unconditional_literal: bool,
    /// A description of the route's conditions.
    pub(crate) conditions: String,
    /// The context of the application that the route belongs to, which may be a merged one.
    pub(crate) context: Rc<AppContext>,
    pub(crate) pattern: Rc<str>,
    pub(crate) methods: String,
    pub(crate) location: &'static Location<'static>,
    /// Data that is not needed to handle requests.
    pub(crate) details: Box<RouteDetails>,
}

/// The properties of a route that only [`RouteInfo`] shows.
#[derive(Debug, Default)]
pub(crate) struct RouteDetails {
    pub(crate) name: Option<Rc<str>>,
    pub(crate) metadata: Vec<Rc<dyn Any>>,
    pub(crate) parameter_types: Vec<(String, &'static str)>,
    pub(crate) omitted_parameters: usize,
    pub(crate) is_slash_variant: bool,
}

impl BuiltRoute {
    #[inline]
    pub(super) fn target(&self) -> MatchedEndpoint<'_> {
        MatchedEndpoint {
            endpoint: &self.endpoint,
            options: &self.options,
            pattern: Some(&self.pattern),
        }
    }

    /// The target for requests that match the route's pattern, but whose method has no handler.
    pub(super) fn method_mismatch_target(&self) -> MatchedEndpoint<'_> {
        let options = match self.options.allows_ambiguous_paths {
            true => &UNMATCHED_AMBIGUOUS_OPTIONS,
            false => &UNMATCHED_OPTIONS,
        };
        MatchedEndpoint { endpoint: &self.method_mismatch_endpoint, options, pattern: None }
    }

    /// The route as an entry of a list.
    pub(super) fn info(&self) -> RouteInfo<'_> {
        RouteInfo {
            methods: &self.methods,
            pattern: &self.pattern,
            conditions: &self.conditions,
            location: self.location,
            options: &self.options,
            details: &self.details,
        }
    }

    /// Sets the description of the route's conditions.
    pub(crate) fn with_conditions(self, conditions: String) -> Self {
        Self { conditions, ..self }
    }
}

/// The server options of a request without a route: the defaults.
pub(super) static UNMATCHED_OPTIONS: RouteOptions = RouteOptions {
    on_disconnect: OnDisconnect::Cancel,
    body_bytes_max: None,
    lifts_body_limit: false,
    is_grpc: false,
    timeout: None,
    requests_max: None,
    is_never_shed: false,
    allows_ambiguous_paths: false,
};

/// Like [`UNMATCHED_OPTIONS`], but for the path of a route that accepts ambiguous paths.
static UNMATCHED_AMBIGUOUS_OPTIONS: RouteOptions =
    RouteOptions { allows_ambiguous_paths: true, ..UNMATCHED_OPTIONS };

/// Like [`UNMATCHED_OPTIONS`], but for responses on which the server itself depends, such as those
/// to certificate challenges. They are never shed.
pub(super) static NEVER_SHED_OPTIONS: RouteOptions =
    RouteOptions { is_never_shed: true, ..UNMATCHED_OPTIONS };
