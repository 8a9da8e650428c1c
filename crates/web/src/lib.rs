//! The building blocks of applications: requests, responses, bodies, handlers, extractors and
//! scopes.
//!
//! Nothing here does I/O or depends on the server, so a test can call an application without a
//! network, and most tests should.
//!
//! Start reading with [`Service`], the trait that handles a request and that handlers and
//! middleware are turned into, then `app/mod.rs`, which combines routes, handlers and middleware
//! into an application.
//!
//! The folders, from the bottom up, are `http` (messages and connections), `extract` (extractors),
//! `trace` and `sse`, `app` (routes, handlers and middleware) and `testing`. Each imports only from
//! those below it. This file re-exports their public items.
#![forbid(unsafe_code)]

// Defines the macro of the same name.
mod check_handler;
pub mod extract;
mod http;
pub mod sse;
pub mod testing;

pub use crate::app::built::{BuiltApp, MatchedEndpoint};
pub use crate::app::error::BuildError;
pub use crate::app::handler::{Handler, HandlerExt};
pub use crate::app::method_override::MethodOverride;
pub use crate::app::middleware::{self, Middleware, Next};
pub use crate::app::route_list::RouteList;
pub use crate::app::scope::Scope;
pub use crate::app::urls::{RoutePath, UrlError, Urls};
pub use crate::app::{App, TrailingSlash};
pub use crate::app::{guard, route};
pub use crate::http::body::{Body, BodyError};
pub use crate::http::client::{ClientInfo, TrustedProxies};
#[cfg(feature = "cookies")]
pub use crate::http::cookies;
pub use crate::http::head::RequestHead;
pub use crate::http::problem::Problem;
pub use crate::http::request::{Parts, Request};
pub use crate::http::response::into_response::IntoResponse;
pub use crate::http::response::{self, Headers, Response};
pub use crate::http::service::Service;
pub use crate::http::{connection, coop, private_response, upgrade};

/// Conditional requests (RFC 9110 §13).
#[cfg(feature = "conditions")]
pub mod precondition {
    pub use crate::extract::precondition::{
        PreconditionOutcome, Preconditions, Validators, not_modified, precondition_failed,
        truncate_to_seconds,
    };
}

/// The names that most applications need.
pub mod prelude {
    pub use crate::check_handler;
    pub use crate::extract::*;
    pub use crate::handler::HandlerExt;
    pub use crate::middleware::{Middleware, Next, from_fn};
    pub use crate::response::{AppendHeaders, Html, Redirect};
    pub use crate::sse::{self, Event, LastEventId, Sse};
    pub use crate::{
        App, Body, IntoResponse, Parts, Problem, Request, RequestHead, Response, Scope, Service,
    };
}

// The hidden items below are for the project's own crates. They are not part of the public API: any
// release may change or remove them.

#[doc(hidden)]
pub mod app;
#[doc(hidden)]
pub mod trace;

#[doc(hidden)]
pub use crate::app::{built, error, handler, method_override, register, scope, urls};
#[doc(hidden)]
#[cfg(feature = "deflate")]
pub use crate::http::deflate;
#[doc(hidden)]
pub use crate::http::{
    body, client, head, in_flight, memory, origin, panic, problem, request, requirements, service,
    state, task_local, timer,
};

/// Newline-delimited JSON, in requests and responses.
#[doc(hidden)]
pub mod ndjson {
    pub use crate::extract::ndjson::{DEFAULT_LINE_BYTES_MAX, NdJson};
}

/// A bounded single-threaded channel that carries a request body from a connection to a handler.
#[doc(hidden)]
pub mod pipe {
    pub use crate::http::body::pipe::{
        ConsumedBytes, DEFAULT_PIPE_BYTES_MAX, PipeFrame, PipeReader, PipeWriter, ReaderClosed,
        pipe,
    };
}

/// A thread-local pool of buffers, which a worker reuses instead of allocating.
#[doc(hidden)]
pub mod pool {
    pub use crate::http::body::pool::{get, put};
}

/// Information from the PROXY header of a connection.
#[doc(hidden)]
pub mod proxy_protocol {
    pub use crate::http::connection::proxy_protocol::{ProxyProtocolInfo, ProxyProtocolTls};
}

/// What selected a request's route besides the request's method and path. Caches need this so that
/// they never send one route's response to a request for another route.
#[doc(hidden)]
pub mod selection {
    pub use crate::http::head::selection::MountInfo;
}
