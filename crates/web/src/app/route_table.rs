//! The routing table of a built application.
//!
//! The router identifies methods by numbers, and its patterns have no types. The table assigns
//! numbers to extension methods. It also checks the conditions that the router does not know about:
//! guards, and the types of parameters.

use crate::app::pattern::ParameterType;
use crate::http::connection::ConnectionInfo;
use crate::http::guard::{Guard, GuardContext};
use crate::http::head::RequestHead;
use crate::http::route_index::RouteIndex;
use http::Method;
use peregrine_proto::Method as KnownMethod;
use peregrine_router::{Match, Parameters, Route, Router, Values};
use std::fmt;
use std::rc::Rc;

/// QUERY, for which the `http` crate has no constant.
#[must_use]
pub(crate) fn query_method() -> Method {
    Method::from_bytes(b"QUERY").expect("the name is a token")
}

/// The methods for which a handler was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MethodFilter {
    One(Method),
    /// Every method without its own handler for the same paths.
    Any,
}

impl fmt::Display for MethodFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(method) => method.fmt(f),
            Self::Any => f.write_str("any method"),
        }
    }
}

/// The number shared by all methods that the protocol crate does not know and no route names.
const OTHER_METHOD: u8 = KnownMethod::Extension as u8;

/// The number of the first extension method that a route names.
const FIRST_EXTENSION_METHOD: u8 = OTHER_METHOD + 1;

/// The maximum number of extension methods that an application may name. A `MethodSet` has 32 bits.
pub(crate) const EXTENSION_METHODS_MAX: usize = 32 - FIRST_EXTENSION_METHOD as usize;

/// The numbers by which the router identifies methods.
#[derive(Debug, Default)]
pub(crate) struct MethodIndex {
    extensions: Vec<Method>,
}

impl MethodIndex {
    /// Returns the number of `method`, and assigns one if the method is new. Returns `None` if
    /// there are too many extension methods.
    pub(crate) fn add(&mut self, method: &Method) -> Option<u8> {
        let known = KnownMethod::from_name(method.as_str().as_bytes());
        if known != KnownMethod::Extension {
            return Some(known as u8);
        }
        let index = self.extensions.iter().position(|extension| extension == method);
        let index = index.unwrap_or_else(|| {
            self.extensions.push(method.clone());
            self.extensions.len() - 1
        });
        u8::try_from(index)
            .ok()
            .filter(|_| index < EXTENSION_METHODS_MAX)
            .map(|index| FIRST_EXTENSION_METHOD + index)
    }

    fn name(&self, number: u8) -> Option<&str> {
        const NAMED: [KnownMethod; 10] = [
            KnownMethod::Get,
            KnownMethod::Head,
            KnownMethod::Post,
            KnownMethod::Put,
            KnownMethod::Delete,
            KnownMethod::Connect,
            KnownMethod::Options,
            KnownMethod::Trace,
            KnownMethod::Patch,
            KnownMethod::Query,
        ];
        if let Some(known) = NAMED.iter().find(|known| **known as u8 == number) {
            return known.name();
        }
        let position = usize::from(number.checked_sub(FIRST_EXTENSION_METHOD)?);
        self.extensions.get(position).map(Method::as_str)
    }

    /// The names of `methods`, separated by commas: the value of `Allow`.
    pub(crate) fn names(&self, methods: peregrine_router::MethodSet) -> String {
        let names: Vec<_> = methods.iter().filter_map(|number| self.name(number)).collect();
        names.join(", ")
    }
}

/// The routes of a built application.
pub(crate) struct RouteTable {
    pub(crate) router: Rc<Router>,
    pub(crate) method_index: MethodIndex,
    /// The conditions of routes, by route ID; empty if no route has any.
    pub(crate) conditions: Box<[RouteConditions]>,
    pub(crate) route_index: Rc<RouteIndex>,
}

/// The conditions of a route other than its pattern and method.
#[derive(Default)]
pub(crate) struct RouteConditions {
    pub(crate) guards: Vec<Rc<dyn Guard>>,
    /// The types of parameters, by their indexes in the pattern.
    pub(crate) typed_parameters: Vec<(usize, ParameterType)>,
}

impl RouteConditions {
    /// Like `are_met`. Unless the parameter types already reject the route, also records which
    /// header fields the guards read, so that the response varies by them.
    fn record_and_check(&self, context: &GuardContext<'_>, values: &Values<'_, '_>) -> bool {
        if !self.guards.is_empty() && self.types_match(values) {
            context.head().record_guards(&self.guards);
        }
        self.are_met(context, values)
    }

    fn are_met(&self, context: &GuardContext<'_>, values: &Values<'_, '_>) -> bool {
        self.types_match(values) && self.guards.iter().all(|guard| guard.check(context))
    }

    /// Whether the values have the types of their parameters.
    fn types_match(&self, values: &Values<'_, '_>) -> bool {
        let type_matches = |(index, kind): &(usize, ParameterType)| {
            values.get(*index).is_some_and(|raw| kind.accepts(raw))
        };
        self.typed_parameters.iter().all(type_matches)
    }

    /// A description for route lists: `id is u32, the host is example.org`.
    pub(crate) fn describe(&self, names: &[Box<str>]) -> String {
        let typed = self.typed_parameters.iter().map(|(index, kind)| {
            format!("{} is {}", names.get(*index).map_or("", |name| &**name), kind.name)
        });
        let guards = self.guards.iter().map(|guard| guard.description().into_owned());
        typed.chain(guards).collect::<Vec<_>>().join(", ")
    }
}

impl RouteTable {
    /// Whether the conditions of `route` hold. The route's parameters are already stored in `head`.
    pub(crate) fn accepts(
        &self,
        route: u32,
        head: &RequestHead,
        connection: &ConnectionInfo,
    ) -> bool {
        let values = self.router.values(head.path_parameters(), head.path().as_bytes());
        let conditions = self.conditions.get(route as usize);
        let context = GuardContext::new(head, connection);
        conditions.is_none_or(|conditions| conditions.record_and_check(&context, &values))
    }

    /// Finds the route for a path and a method, skipping routes whose conditions do not hold.
    pub(crate) fn find(
        &self,
        head: &RequestHead,
        connection: &ConnectionInfo,
        method: u8,
        parameters: &mut Parameters,
    ) -> Match {
        let path = head.path().as_bytes();
        if self.conditions.is_empty() {
            return self.router.find(path, method, parameters);
        }
        let context = GuardContext::new(head, connection);
        self.router.find_where(path, method, parameters, |route, values| {
            let conditions = self.conditions.get(route.id() as usize);
            conditions.is_none_or(|conditions| conditions.record_and_check(&context, &values))
        })
    }

    /// The router's number for the request's method.
    #[inline]
    pub(crate) fn method_number(&self, head: &RequestHead) -> u8 {
        let known = head.index().method;
        if known == KnownMethod::Extension {
            self.extension_number(head.method_str())
        } else {
            known as u8
        }
    }

    /// Returns the route that would handle the actual request, which a CORS preflight precedes.
    /// Returns `None` if `head` is not a preflight or no route would handle the actual request.
    ///
    /// Guards see the method of the actual request. They cannot see its header fields, because a
    /// preflight does not contain them. So if the guards reject all routes, the first route for the
    /// path and this method is used, regardless of its guards.
    pub(crate) fn find_preflighted(
        &self,
        head: &RequestHead,
        connection: &ConnectionInfo,
    ) -> Option<u32> {
        let name = head.header("access-control-request-method")?;
        let known = KnownMethod::from_name(name.as_bytes());
        let method =
            if known == KnownMethod::Extension { self.extension_number(name) } else { known as u8 };
        let context = GuardContext::preflight(head, connection, name);
        let find = |checks_guards: bool| {
            let path = head.path().as_bytes();
            let conditions = |route: &Route| self.conditions.get(route.id() as usize);
            self.router.find_where(path, method, &mut Parameters::default(), |route, values| {
                conditions(route).is_none_or(|conditions| match checks_guards {
                    true => conditions.are_met(&context, &values),
                    false => conditions.types_match(&values),
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

    /// The number of the method called `name`, which the protocol crate does not know.
    #[cold]
    fn extension_number(&self, name: &str) -> u8 {
        let extensions = (FIRST_EXTENSION_METHOD..).zip(&self.method_index.extensions);
        let mut matches = extensions.filter(|(_, extension)| extension.as_str() == name);
        matches.next().map_or(OTHER_METHOD, |(number, _)| number)
    }

    /// The names of `methods`, separated by commas.
    pub(crate) fn names(&self, methods: peregrine_router::MethodSet) -> String {
        self.method_index.names(methods)
    }
}

/// The methods that every path with a route supports.
pub(crate) const AUTOMATIC_METHODS: peregrine_router::MethodSet =
    peregrine_router::MethodSet::single(KnownMethod::Options as u8);
