//! What an application is made of: requests, responses, bodies, handlers, extractors, scopes.
//!
//! Nothing here does I/O or knows the server: an application can be called in a test without a
//! network, and that is how its tests should run.
//!
//! Start with [`Service`], which everything comes down to, then `app.rs`, which joins routes,
//! handlers and middleware into one.
#![forbid(unsafe_code)]

pub mod body;
pub mod connection;
pub mod extract;
pub mod head;
pub mod pipe;
pub mod pool;
pub mod problem;
pub mod request;
pub mod requirements;
pub mod response;
pub mod service;
pub mod state;
pub mod upgrade;

pub use body::{Body, BodyError};
pub use head::Head;
pub use problem::Problem;
pub use request::{Parts, Request};
pub use response::{Fields, Response};
pub use service::Service;
