//! What applications are made of: requests, responses, bodies, handlers, extractors, scopes.
//!
//! Nothing here does I/O or knows the server: a test can call an application without a network, and
//! most tests should.
//!
//! Start with [`Service`], which underlies everything, then `app.rs`, which joins routes, handlers and
//! middleware into one.
#![forbid(unsafe_code)]

pub mod accept;
pub mod account;
pub mod app;
pub mod application;
pub mod body;
pub mod client;
mod client_identity;
#[doc(hidden)]
pub mod clock;
pub mod connection;
#[cfg(feature = "cookies")]
pub mod cookies;
#[cfg(feature = "deflate")]
#[doc(hidden)]
pub mod deflate;
pub mod extract;
mod fallbacks;
pub mod fault;
#[cfg(any(
    feature = "cbor",
    feature = "fast-json",
    feature = "message-pack",
    feature = "protobuf"
))]
mod formats;
pub mod guard;
pub mod handler;
pub mod head;
#[doc(hidden)]
pub mod held;
#[doc(hidden)]
pub mod in_progress;
pub mod interim;
pub mod method_override;
pub mod middleware;
pub mod ndjson;
pub mod origin;
mod panicked;
#[doc(hidden)]
pub mod panics;
mod pattern;
pub mod personal;
pub mod pipe;
mod plan;
pub mod pool;
#[cfg(feature = "conditions")]
pub mod precondition;
pub mod problem;
pub mod proxied;
pub mod request;
pub mod requirements;
pub mod respond;
pub mod response;
mod rivals;
pub mod route;
mod route_list;
pub mod routed;
mod routing;
pub mod scope;
pub mod selection;
pub mod service;
pub mod sse;
pub mod state;
pub mod test;
pub mod trace;
pub mod turn;
mod unrouted;
pub mod upgrade;
pub mod urls;

pub use app::{App, SlashPolicy};
pub use application::{Application, Target};
pub use body::{Body, BodyError};
pub use client::{Client, TrustedProxies};
pub use fault::BuildError;
pub use handler::{Handler, HandlerExt};
pub use head::Head;
pub use middleware::{Middleware, Next};
pub use problem::Problem;
pub use request::{Parts, Request};
pub use respond::IntoResponse;
pub use response::{Fields, Response};
pub use route_list::RouteList;
pub use scope::Scope;
pub use service::Service;

/// Everything that most applications name.
pub mod prelude {
    pub use crate::check_handler;
    pub use crate::extract::*;
    pub use crate::handler::HandlerExt;
    pub use crate::middleware::{Middleware, Next, from_fn};
    pub use crate::respond::{AppendHeaders, Html, Redirect};
    pub use crate::sse::{self, Event, LastEventId, Sse};
    pub use crate::{
        App, Body, Head, IntoResponse, Parts, Problem, Request, Response, Scope, Service,
    };
}
