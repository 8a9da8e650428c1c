//! Server settings as one configuration tree, read from a file and environment variables over
//! settings in code.
//!
//! ```no_run
//! use peregrine::config::ServerConfig;
//! use peregrine::prelude::*;
//!
//! fn main() -> peregrine::Result<()> {
//!     let config = ServerConfig::load("app.toml")?;
//!     Server::from_config(config)?.serve(|| App::new().get("/", || "hello"))
//! }
//! ```
//!
//! # Precedence
//!
//! Later sources override earlier ones:
//!
//! 1. The defaults.
//! 2. Settings in code, passed to [`ServerConfig::load_over`].
//! 3. The file.
//! 4. Environment variables: `PEREGRINE_LIMITS__IDLE_TIMEOUT=75s` for `limits.idle_timeout`, and
//!    `PEREGRINE_DRIVER` for `driver.kind`.
//! 5. Methods called on the `Server` after `Server::from_config`, for settings that operators must
//!    not change.
//!
//! # Reloading
//!
//! SIGHUP and `ServerHandle::reload` read the configuration again, if it was read from a file or
//! the environment, and then the certificates. A reload applies changes to limits, trusted proxies,
//! the access log and sampling, and the callback of `Server::on_reload` can apply further ones. New
//! limits and trusted proxies apply to connections that are accepted after the reload. One log line
//! names each setting that changed and each that needs a restart. If any setting is invalid, no
//! setting changes, and the log contains the reason.
//!
//! Requires the feature `config`. Applications can read their own settings with [`ConfigLoader`],
//! [`HumanDuration`] and the other re-exported types.
#![forbid(unsafe_code)]

mod access_log;
mod acme;
mod convert;
mod diff;
mod layering;
mod metrics;
mod server;
mod stable_file;
mod text;
mod tls;
mod traces;
mod validate;

pub use self::access_log::{AccessLogConfig, LineFormat, LoggingConfig};
pub use self::acme::{AcmeConfig, ChallengeKind, ExternalAccountBindingConfig};
pub use self::server::{
    AdminConfig, DriverConfig, DriverKind, ForwardedHeader, ListenerConfig, ProxyProtocolConfig,
    ProxyProtocolMode, RestartConfig, ServerConfig, SocketsConfig, TrustedProxiesConfig,
};
#[cfg(feature = "schema")]
pub use self::text::schema;
pub use self::tls::{
    CertificateConfig, ClientAuthConfig, ClientAuthMode, MinTlsVersion, TlsSection,
};
pub use self::traces::{OtlpConfig, TraceSection};
pub use peregrine_config::{
    AutoCount, ByteSize, ConfigError, ConfigLoader, ConfigValue, HumanDuration, OptionalByteSize,
    OptionalCount, OptionalDuration, OptionalFileMode, OptionalString, SecretString,
    SourceLocation, ValueKind, to_toml_string, to_toml_string_with_comments,
};

/// Items that `peregrine` needs to apply and reload a configuration. They can change in any
/// release.
#[doc(hidden)]
pub mod internal {
    pub use crate::diff::{diff, summary};
    pub use crate::layering::layers;
    pub use crate::metrics::{FAMILIES, ReloadMetrics, write};
    pub use crate::server::ConfigSource;
    pub use crate::stable_file::wait_until_stable;
}

#[cfg(test)]
mod tests;
