//! Who asks: credentials that requests bring, and what is to be thought of them.
//!
//! [`BasicAuth`], [`BearerToken`] and [`ApiKey`] are extractors that read credentials and judge nothing. [`Authenticate`] is the middleware that asks a
//! function of the application's who that is, and answers whoever is nobody; handlers take the result as [`User`]. With the feature `jwt`,
//! [`JwtVerifier`] judges tokens that others have signed, and [`Jwt`] gives handlers what they say.
//!
//! This crate does no I/O: keys of issuers come by a function of the application's. It builds on `peregrine-web` only.
//!
//! Start with `authenticate.rs`; `credentials.rs` is the grammar.
#![forbid(unsafe_code)]

mod authenticate;
mod challenge;
mod credentials;
#[cfg(feature = "jwt")]
mod jwt;
mod secret;
#[cfg(test)]
mod tests;
mod user;

pub use authenticate::{Authenticate, Verdict};
pub use challenge::insufficient_scope;
pub use credentials::{ApiKey, ApiKeyPlace, BasicAuth, BearerToken};
#[cfg(feature = "jwt")]
pub use jsonwebtoken;
#[cfg(feature = "jwt")]
pub use jwt::{Expected, Jwks, Jwt, JwtKeys, JwtVerifier, KeyError};
pub use secret::Secret;
pub use user::User;
