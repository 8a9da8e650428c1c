//! Requests, responses, bodies and connections, and the per-thread state that they use, such as
//! timers and memory accounting.
//!
//! Nothing here depends on the code of applications and extractors (`app`, `extract`), but the
//! traits and types that they share are here. An application receives a [`RequestHead`] and a
//! [`Body`] on a connection ([`ConnectionInfo`]), and returns a [`Response`]. [`Service`] is the
//! trait for code that does so; the other folders build on it.
//!
//! [`Body`]: body::Body
//! [`ConnectionInfo`]: connection::ConnectionInfo
//! [`RequestHead`]: head::RequestHead
//! [`Response`]: response::Response
//! [`Service`]: service::Service

pub mod body;
pub mod client;
pub mod connection;
#[cfg(feature = "cookies")]
pub mod cookies;
pub mod coop;
#[cfg(feature = "deflate")]
pub mod deflate;
pub(crate) mod from_request;
pub(crate) mod guard;
pub mod head;
pub mod in_flight;
pub(crate) mod interim;
pub mod memory;
pub mod origin;
pub mod panic;
pub mod private_response;
pub mod problem;
pub(crate) mod problem_renderer;
pub mod request;
pub mod requirements;
pub mod response;
pub(crate) mod route_index;
pub(crate) mod route_options;
pub mod service;
pub mod state;
pub mod task_local;
pub mod timer;
pub mod upgrade;
