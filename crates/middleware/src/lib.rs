//! The middleware included in Peregrine, one file each.
//!
//! Each uses only the two traits of `peregrine-web` ([`Middleware`] and [`Service`]), depends on
//! neither server nor driver, and is added to a scope or an application with `.wrap(..)`.
//! Middleware added earlier runs around middleware added later.
//!
//! The usual order, from the outside: [`SetRequestId`], so that everything inside can log the
//! request's ID; [`AccessLog`], which sees the final response; [`ResponseHeaders`]; [`CatchPanic`];
//! [`Timeout`]; [`BodyLimit`].
//!
//! `Cors`, `Csrf` and `SecurityHeaders` require the features of these names.
//!
//! Start with `body_limit.rs`, the shortest, to see what a middleware looks like.
//!
//! [`Middleware`]: peregrine_web::Middleware
//! [`Service`]: peregrine_web::Service
#![forbid(unsafe_code)]

pub mod access_log;
#[cfg(any(feature = "cors", feature = "csrf"))]
mod allowed_origins;
pub mod body_limit;
pub mod catch_panic;
#[cfg(feature = "cors")]
pub mod cors;
#[cfg(feature = "csrf")]
pub mod csrf;
#[cfg(any(feature = "csrf", feature = "security-headers"))]
mod random;
pub mod request_id;
pub mod require_client_identity;
pub mod response_headers;
#[cfg(feature = "security-headers")]
pub mod security_headers;
mod snapshot;
#[cfg(test)]
mod test_support;
pub mod timeout;

pub use access_log::AccessLog;
pub use body_limit::BodyLimit;
pub use catch_panic::CatchPanic;
#[cfg(feature = "cors")]
pub use cors::Cors;
#[cfg(feature = "csrf")]
pub use csrf::{Csrf, CsrfKey, CsrfToken};
pub use request_id::{RequestId, SetRequestId};
pub use require_client_identity::RequireClientIdentity;
pub use response_headers::ResponseHeaders;
#[cfg(feature = "security-headers")]
pub use security_headers::{CspNonce, SecurityHeaders};
pub use timeout::Timeout;
