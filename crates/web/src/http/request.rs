//! A request: its head, its body, and the server's information about it.

use crate::http::body::Body;
use crate::http::client::ClientInfo;
use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use crate::http::private_response::PrivateResponse;
use crate::http::state::States;
use http::Extensions;
use peregrine_router::Values;
use std::fmt;
use std::rc::Rc;

/// A request on its way to a handler.
#[derive(Debug)]
pub struct Request {
    /// Everything except the body.
    pub parts: Parts,
    /// The body. A client that waits for status 100 (Continue) before it sends the body receives
    /// that status only when the body is first read.
    pub body: Body,
}

/// A request without its body. Extractors that do not read the body get their values from it.
#[doc(alias = "RequestParts")]
pub struct Parts {
    /// Method, target and fields, as they were sent.
    pub head: RequestHead,
    extensions: Extensions,
    states: Rc<States>,
    connection: Rc<ConnectionInfo>,
}

impl Request {
    /// Builds a request, as the server does.
    #[must_use]
    pub fn new(
        head: RequestHead,
        body: Body,
        states: Rc<States>,
        connection: Rc<ConnectionInfo>,
    ) -> Self {
        Self { parts: Parts { head, extensions: Extensions::new(), states, connection }, body }
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> http::Method {
        self.parts.head.method()
    }

    /// The path as sent by the client, still percent-encoded.
    #[must_use]
    pub fn path(&self) -> &str {
        self.parts.head.path()
    }

    /// The value of the first header field called `name` (case-insensitive), if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.parts.head.header(name)
    }

    /// All header fields in order, with names and values as they were sent. For a map, use
    /// [`RequestHead::to_header_map`] or the extractor `HeaderMap`.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.parts.head.headers()
    }

    /// The same as [`Request::header`], under RFC 9110's name, which [`RequestHead`] uses too.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.header(name)
    }

    /// The client that sent the request, even through proxies: address, host and scheme.
    #[must_use]
    pub fn client(&self) -> ClientInfo<'_> {
        self.parts.client()
    }

    /// Splits the request into its parts and its body.
    #[must_use]
    pub fn into_parts(self) -> (Parts, Body) {
        (self.parts, self.body)
    }

    /// Builds a request from its parts and its body.
    #[must_use]
    pub fn from_parts(parts: Parts, body: Body) -> Self {
        Self { parts, body }
    }
}

impl Parts {
    /// Values that middleware attached to this request.
    #[must_use]
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Values that middleware attached to this request.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }

    /// The application's shared values.
    #[must_use]
    pub fn states(&self) -> &Rc<States> {
        &self.states
    }

    /// The pattern of the route that matched the request, such as `/users/{id}`.
    #[must_use]
    pub fn pattern(&self) -> Option<&str> {
        self.states.router()?.pattern(self.head.route_id()?)
    }

    /// The path's parameters: names, and values that are still percent-encoded. `None` if no
    /// application has received the request, as in some tests.
    #[must_use]
    pub fn path_parameters(&self) -> Option<Values<'_, '_>> {
        let router = self.states.router()?;
        Some(router.values(self.head.path_parameters(), self.head.path().as_bytes()))
    }

    /// How many optional parameters the request's route omits. The pattern that the application
    /// wrote has them; see [`RouteIndex`](crate::http::route_index::RouteIndex).
    pub(crate) fn omitted_parameters(&self) -> usize {
        let omitted = || {
            let omitted_parameters = &self.states.route_index()?.omitted_parameters;
            omitted_parameters.get(self.head.route_id()? as usize).copied()
        };
        omitted().unwrap_or(0)
    }

    /// Replaces the states with those of the nested or merged application that handles the request
    /// next.
    pub(crate) fn set_states(&mut self, states: &Rc<States>) {
        self.states = Rc::clone(states);
    }

    /// The connection on which the request was received. The caller may use the identity of the
    /// client in it, so if the client presented a certificate, this marks the response as specific
    /// to this client, and shared caches do not store it ([`PrivateResponse`]).
    #[must_use]
    pub fn connection(&self) -> &Rc<ConnectionInfo> {
        PrivateResponse::mark_connection(&self.head, &self.connection);
        &self.connection
    }

    /// As [`Parts::connection`], but does not mark the response as specific to this client. For
    /// code that does not use the identity of the client for the response, such as logs, and for
    /// code that sets the mark itself; see [`RequestHead::header_bytes_untracked`].
    #[doc(hidden)]
    #[must_use]
    pub fn connection_untracked(&self) -> &Rc<ConnectionInfo> {
        &self.connection
    }

    /// The client that sent the request, even through proxies: address, host and scheme.
    #[must_use]
    pub fn client(&self) -> ClientInfo<'_> {
        ClientInfo::new(&self.head, &self.connection)
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("head", &self.head)
            .field("peer", &self.connection.peer)
            .finish()
    }
}
