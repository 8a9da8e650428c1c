//! The error for an invalid set of upstreams.

use std::fmt;

/// Why a set of upstreams is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpstreamError {
    /// The set is empty.
    Empty,
    /// This string is not the URL of a server.
    InvalidUrl(String),
    /// This URL has a scheme other than `http`, or it is `https` without the feature `proxy-tls`.
    UnsupportedScheme(String),
    /// There are `https` upstreams, but the system has no root certificates.
    NoTrustRoots(String),
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("there is no upstream: name at least one, such as http://10.0.0.7:8080")
            }
            Self::InvalidUrl(text) => write!(
                f,
                "`{text}` is not a valid upstream: write scheme, host and port, such as \
                 http://10.0.0.7:8080, without a query or a user"
            ),
            Self::UnsupportedScheme(text) => write!(
                f,
                "`{text}` cannot be an upstream: only http:// can, and https:// with the feature \
                 `proxy-tls`"
            ),
            Self::NoTrustRoots(reason) => write!(
                f,
                "no root certificates for TLS: {reason}; install the system's certificates, or pass \
                 yours to `Upstreams::with_tls_config`"
            ),
        }
    }
}

impl std::error::Error for UpstreamError {}
