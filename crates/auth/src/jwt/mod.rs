//! JSON Web Tokens that others have signed (RFC 7519, and RFC 8725 for what goes wrong with them).
//!
//! `verifier.rs` judges tokens, `keys.rs` finds the key that a token is signed by, and `jwks.rs` keeps the keys that an issuer publishes.

mod jwks;
mod keys;
#[cfg(test)]
mod tests;
mod verifier;

pub use jwks::Jwks;
pub use keys::{JwtKeys, KeyError};
pub use verifier::{Expected, Jwt, JwtVerifier};
