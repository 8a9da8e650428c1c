//! The routing table of a built application.
//!
//! The router identifies methods by numbers, and its patterns have no types. The table assigns
//! numbers to extension methods. It also checks the conditions that the router does not know:
//! guards, and the types of parameters.

use crate::app::pattern::Kind;
use crate::http::connection::ConnectionInfo;
use crate::http::guard::{Asked, Guard};
use crate::http::head::Head;
use crate::http::route_index::Facts;
use http::Method;
use peregrine_proto::Method as Known;
use peregrine_router::{Match, Parameters, Route, Router, Values};
use std::fmt;
use std::rc::Rc;

/// QUERY, for which the `http` crate has no constant.
#[must_use]
pub(crate) fn query_method() -> Method {
    Method::from_bytes(b"QUERY").expect("the name is a token")
}

/// The methods of the routes that one call adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Methods {
    One(Method),
    /// Every method without its own handler for the same paths.
    Any,
}

impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(method) => method.fmt(f),
            Self::Any => f.write_str("any method"),
        }
    }
}

/// The one number for all methods that the protocol crate does not know and no route names.
const OTHER: u8 = Known::Extension as u8;

/// The first number for extension methods that routes name.
const EXTENSIONS_FROM: u8 = OTHER + 1;

/// The maximum number of extension methods that an application may name.
pub(crate) const EXTENSIONS_MAX: usize = 32 - EXTENSIONS_FROM as usize;

/// The numbers by which the router identifies methods.
#[derive(Debug, Default)]
pub(crate) struct MethodIndex {
    extensions: Vec<Method>,
}

impl MethodIndex {
    /// Returns the number of `method`, and assigns one if the method is new. Returns `None` if
    /// there are too many extension methods.
    pub(crate) fn add(&mut self, method: &Method) -> Option<u8> {
        let known = Known::find(method.as_str().as_bytes());
        if known != Known::Extension {
            return Some(known as u8);
        }
        let place = self.extensions.iter().position(|extension| extension == method);
        let place = place.unwrap_or_else(|| {
            self.extensions.push(method.clone());
            self.extensions.len() - 1
        });
        u8::try_from(place).ok().filter(|_| place < EXTENSIONS_MAX).map(|at| EXTENSIONS_FROM + at)
    }

    fn name(&self, index: u8) -> Option<&str> {
        const NAMED: [Known; 10] = [
            Known::Get,
            Known::Head,
            Known::Post,
            Known::Put,
            Known::Delete,
            Known::Connect,
            Known::Options,
            Known::Trace,
            Known::Patch,
            Known::Query,
        ];
        if let Some(known) = NAMED.iter().find(|known| **known as u8 == index) {
            return known.name();
        }
        let place = usize::from(index.checked_sub(EXTENSIONS_FROM)?);
        self.extensions.get(place).map(Method::as_str)
    }

    /// The names of `methods`, separated by commas: the value of `Allow`.
    pub(crate) fn names(&self, methods: peregrine_router::Methods) -> String {
        let names: Vec<_> = methods.iter().filter_map(|index| self.name(index)).collect();
        names.join(", ")
    }
}

/// The routes of a built application.
pub(crate) struct Table {
    pub(crate) router: Rc<Router>,
    pub(crate) methods: MethodIndex,
    /// The conditions of routes, by route number; empty if no route has any.
    pub(crate) conditions: Box<[Conditions]>,
    pub(crate) facts: Rc<Facts>,
}

/// The conditions of a route besides its pattern and method.
#[derive(Default)]
pub(crate) struct Conditions {
    pub(crate) guards: Vec<Rc<dyn Guard>>,
    /// The types of parameters, by their indexes in the pattern.
    pub(crate) typed: Vec<(usize, Kind)>,
}

impl Conditions {
    /// Like `hold`. Also records which header fields the guards read, if the guards affect the
    /// result.
    fn hold_and_note(&self, asked: &Asked<'_>, values: &Values<'_, '_>) -> bool {
        if !self.guards.is_empty() && self.fit(values) {
            asked.head().note_guards(&self.guards);
        }
        self.hold(asked, values)
    }

    fn hold(&self, asked: &Asked<'_>, values: &Values<'_, '_>) -> bool {
        self.fit(values) && self.guards.iter().all(|guard| guard.accepts(asked))
    }

    /// Whether the values have the types of their parameters.
    fn fit(&self, values: &Values<'_, '_>) -> bool {
        let fits =
            |(place, kind): &(usize, Kind)| values.get(*place).is_some_and(|raw| kind.fits(raw));
        self.typed.iter().all(fits)
    }

    /// A description for route lists: `id is u32, the host is example.org`.
    pub(crate) fn words(&self, names: &[Box<str>]) -> String {
        let typed = self.typed.iter().map(|(place, kind)| {
            format!("{} is {}", names.get(*place).map_or("", |name| &**name), kind.name)
        });
        let guards = self.guards.iter().map(|guard| guard.name().into_owned());
        typed.chain(guards).collect::<Vec<_>>().join(", ")
    }
}

impl Table {
    /// Whether the conditions of `route` hold. The route's parameters are already stored in `head`.
    pub(crate) fn answers(&self, route: u32, head: &Head, connection: &ConnectionInfo) -> bool {
        let values = self.router.values(head.parameters(), head.path().as_bytes());
        let conditions = self.conditions.get(route as usize);
        let asked = Asked::new(head, connection);
        conditions.is_none_or(|conditions| conditions.hold_and_note(&asked, &values))
    }

    /// Finds the route for a path and a method, skipping routes whose conditions do not hold.
    pub(crate) fn find(
        &self,
        head: &Head,
        connection: &ConnectionInfo,
        method: u8,
        parameters: &mut Parameters,
    ) -> Match {
        let path = head.path().as_bytes();
        if self.conditions.is_empty() {
            return self.router.find(path, method, parameters);
        }
        let asked = Asked::new(head, connection);
        self.router.find_where(path, method, parameters, |route, values| {
            let conditions = self.conditions.get(route.id() as usize);
            conditions.is_none_or(|conditions| conditions.hold_and_note(&asked, &values))
        })
    }

    /// The router's number for the request's method.
    #[inline]
    pub(crate) fn method(&self, head: &Head) -> u8 {
        let known = head.index().method;
        if known == Known::Extension { self.extension(head.method_name()) } else { known as u8 }
    }

    /// Returns the route that would answer the request that a CORS preflight announces. Returns
    /// `None` if `head` is not a preflight or no route would answer.
    ///
    /// Guards see the announced method. They cannot see the announced request's header fields,
    /// because a preflight does not contain them. So if the guards reject all routes, the first
    /// route for the path is used, regardless of its guards.
    pub(crate) fn announced(&self, head: &Head, connection: &ConnectionInfo) -> Option<u32> {
        let name = head.field_text("access-control-request-method")?;
        let known = Known::find(name.as_bytes());
        let method = if known == Known::Extension { self.extension(name) } else { known as u8 };
        let asked = Asked::announced(head, connection, name);
        let find = |has_guards: bool| {
            let path = head.path().as_bytes();
            let conditions = |route: &Route| self.conditions.get(route.id() as usize);
            self.router.find_where(path, method, &mut Parameters::default(), |route, values| {
                conditions(route).is_none_or(|all| match has_guards {
                    true => all.hold(&asked, &values),
                    false => all.fit(&values),
                })
            })
        };
        match find(true) {
            Match::Found { route } => Some(route),
            _ => match find(false) {
                Match::Found { route } => Some(route),
                _ => None,
            },
        }
    }

    #[cold]
    fn extension(&self, name: &str) -> u8 {
        let extensions = (EXTENSIONS_FROM..).zip(&self.methods.extensions);
        let mut same = extensions.filter(|(_, extension)| extension.as_str() == name);
        same.next().map_or(OTHER, |(index, _)| index)
    }

    /// The names of `methods`, separated by commas.
    pub(crate) fn names(&self, methods: peregrine_router::Methods) -> String {
        self.methods.names(methods)
    }
}

/// The methods that every path with a route supports.
pub(crate) const AUTOMATIC: peregrine_router::Methods =
    peregrine_router::Methods::of(Known::Options as u8);
