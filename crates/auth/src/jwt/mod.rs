//! Verifies signed JSON Web Tokens (RFC 7519, with the precautions of RFC 8725).
//!
//! `verifier.rs` verifies tokens, `keys.rs` selects the key for a token, and `jwks.rs` caches the
//! keys that an issuer publishes.

mod jwks;
mod keys;
#[cfg(test)]
mod tests;
mod verifier;

pub use jwks::RemoteJwks;
pub use keys::{JwtKeyError, JwtKeys};
pub use verifier::{ClaimRule, Jwt, JwtVerifier};
