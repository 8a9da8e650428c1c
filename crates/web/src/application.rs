//! An application ready to run: from a head to what answers it.

use crate::connection::ConnectionInfo;
use crate::handler::{OnDisconnect, RouteOptions};
use crate::head::Head;
use crate::request::Request;
use crate::response::Response;
use crate::route::Table;
use crate::scope::{Entry, ScopeFallback};
use crate::service::{Endpoint, Service};
use crate::state::States;
use crate::test::TestClient;
use peregrine_proto::TargetForm;
use peregrine_router::Match;
use peregrine_slot::{FutureSlot, Held, Placed};
use std::fmt;
use std::panic::Location;
use std::rc::Rc;

/// An application that was checked and is ready to run. Every worker has its own: it is neither
/// `Send` nor `Sync`, and nothing in it is locked.
///
/// A server calls [`Application::find`] with each head and then [`Target::call`] with the request.
pub struct Application {
    table: Rc<Table>,
    routes: Box<[Built]>,
    /// Those of the longest prefix first.
    fallbacks: Box<[ScopeFallback]>,
    missing: Rc<dyn Endpoint>,
    states: Rc<States>,
}

/// A route of a built application.
pub(crate) struct Built {
    endpoint: Rc<dyn Endpoint>,
    unrouted: Rc<dyn Endpoint>,
    options: RouteOptions,
    pattern: Rc<str>,
    methods: String,
    place: &'static Location<'static>,
}

impl From<Entry> for Built {
    fn from(entry: Entry) -> Self {
        let Entry { endpoint, unrouted, options, pattern, methods, place, .. } = entry;
        let pattern = pattern.into();
        Self { endpoint, unrouted, options, pattern, methods: methods.to_string(), place }
    }
}

/// What a request without a route asks of the server: nothing special.
static UNROUTED_OPTIONS: RouteOptions =
    RouteOptions { on_disconnect: OnDisconnect::Cancel, body_bytes_max: None, timeout: None };

/// What answers a request: a route, or what stands in for one.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    endpoint: &'a Rc<dyn Endpoint>,
    options: &'a RouteOptions,
    pattern: Option<&'a Rc<str>>,
}

/// A route as it is told to people.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RouteInfo<'a> {
    /// The method, or `any method`.
    pub methods: &'a str,
    /// The whole pattern.
    pub pattern: &'a str,
    /// Where it was added.
    pub place: &'static Location<'static>,
    /// What it asks of the server.
    pub options: &'a RouteOptions,
}

impl Application {
    pub(crate) fn new(
        table: Rc<Table>,
        routes: Box<[Built]>,
        mut fallbacks: Vec<ScopeFallback>,
        missing: Rc<dyn Endpoint>,
        states: States,
    ) -> Self {
        let segments = |fallback: &ScopeFallback| fallback.prefix.matches('/').count();
        fallbacks.sort_by_key(|fallback| std::cmp::Reverse(segments(fallback)));
        let (fallbacks, states) = (fallbacks.into(), Rc::new(states));
        Self { table, routes, fallbacks, missing, states }
    }

    /// Finds what answers the request that `head` begins, and notes the route and its parameters
    /// in `head`. Allocates nothing.
    #[inline]
    #[must_use]
    pub fn find<'a>(&'a self, head: &mut Head) -> Target<'a> {
        let method = self.table.method(head);
        let router = &self.table.router;
        let found = head.resolve(|path, parameters| match router.find(path, method, parameters) {
            Match::Found { route } => (Some(route), Match::Found { route }),
            other => (None, other),
        });
        let Match::Found { route } = found else { return self.find_unrouted(head, found) };
        let route = &self.routes[route as usize];
        Target { endpoint: &route.endpoint, options: &route.options, pattern: Some(&route.pattern) }
    }

    #[cold]
    fn find_unrouted(&self, head: &mut Head, found: Match) -> Target<'_> {
        let path = head.path();
        let endpoint = match found {
            Match::MethodMissing { allow } => {
                let method = allow.iter().next().unwrap_or_default();
                let mut parameters = peregrine_router::Parameters::default();
                match self.table.router.find(path.as_bytes(), method, &mut parameters) {
                    Match::Found { route } => &self.routes[route as usize].unrouted,
                    _ => &self.missing,
                }
            }
            Match::Missing if head.index().form != TargetForm::Asterisk => {
                let mut fallbacks = self.fallbacks.iter();
                let fallback = fallbacks.find(|fallback| is_below(path, &fallback.prefix));
                fallback.map_or(&self.missing, |fallback| &fallback.endpoint)
            }
            _ => &self.missing,
        };
        Target { endpoint, options: &UNROUTED_OPTIONS, pattern: None }
    }

    /// The values that all handlers share.
    #[must_use]
    pub fn states(&self) -> &Rc<States> {
        &self.states
    }

    /// All routes in the order in which they were added.
    pub fn routes(&self) -> impl ExactSizeIterator<Item = RouteInfo<'_>> {
        self.routes.iter().map(|route| RouteInfo {
            methods: &route.methods,
            pattern: &route.pattern,
            place: route.place,
            options: &route.options,
        })
    }

    /// A client that calls this application without a network.
    #[must_use]
    pub fn test(self) -> TestClient {
        TestClient::new(Rc::new(self), ConnectionInfo::default())
    }
}

/// Is `path` below `prefix`, whose parameters match any segment?
fn is_below(path: &str, prefix: &str) -> bool {
    let mut segments = path.split('/');
    let mut prefix = prefix.split('/');
    prefix.all(|wanted| {
        segments.next().is_some_and(|segment| wanted == segment || wanted.contains('{'))
    })
}

/// An application within another: its own routes and its own states answer.
impl Service for Application {
    async fn call(&self, mut request: Request) -> Response {
        request.parts.set_states(&self.states);
        let target = self.find(&mut request.parts.head);
        crate::service::place_in_stock(&**target.endpoint, target.prepare(request)).await
    }
}

impl<'a> Target<'a> {
    /// What the route asks of the server. Its limit of the body needs no attention: `call` sets it.
    #[must_use]
    pub fn options(&self) -> &'a RouteOptions {
        self.options
    }

    /// The route's pattern; `None` if no route has the path.
    #[must_use]
    pub fn pattern(&self) -> Option<&'a Rc<str>> {
        self.pattern
    }

    /// Answers `request` as [`call`](Self::call) does, with a future that owns its slot and what it
    /// needs of the application.
    #[inline]
    pub fn hold(self, slot: FutureSlot, request: Request) -> Held<Response> {
        Rc::clone(self.endpoint).hold(slot, self.prepare(request))
    }

    /// Answers `request`, whose head is the one that led here. The future lives in `slot`, so nothing
    /// is allocated once the slot has grown to the size of the application's futures.
    #[inline]
    pub fn call<'s>(self, slot: &'s mut FutureSlot, request: Request) -> Placed<'s, Response>
    where
        'a: 's,
    {
        self.endpoint.place(slot, self.prepare(request))
    }

    #[inline]
    fn prepare(&self, mut request: Request) -> Request {
        if let Some(bytes_max) = self.options.body_bytes_max {
            request.body = request.body.limited(bytes_max);
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
