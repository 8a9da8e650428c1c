//! Authentication: reads the credentials of requests and verifies them.
//!
//! [`BasicAuth`], [`BearerToken`] and [`ApiKey`] are extractors that read credentials without
//! verifying them. The [`Authenticate`] middleware passes credentials to a function of the
//! application, which returns a user or `None`; it responds with 401 for `None`, and handlers
//! receive the user as [`User`]. With the feature `jwt`, [`JwtVerifier`] verifies signed tokens,
//! and [`Jwt`] extracts their claims.
//!
//! This crate does no I/O: the application supplies the function that fetches an issuer's keys.
//! Start reading with `authenticate.rs`; `credentials.rs` has the grammar.
#![forbid(unsafe_code)]

mod authenticate;
mod challenge;
mod credentials;
#[cfg(feature = "jwt")]
mod jwt;
mod secret_hash;
#[cfg(test)]
mod tests;
mod user;

pub use authenticate::{Authenticate, IntoUser};
pub use challenge::insufficient_scope;
pub use credentials::{ApiKey, ApiKeyLocation, BasicAuth, BearerToken};
#[cfg(feature = "jwt")]
pub use jsonwebtoken;
#[cfg(feature = "jwt")]
pub use jwt::{ClaimRule, Jwt, JwtKeyError, JwtKeys, JwtVerifier, RemoteJwks};
pub use secret_hash::SecretHash;
pub use user::User;
