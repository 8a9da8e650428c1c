//! Server settings as one configuration tree, read from code, a file, and environment variables.
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
//! 5. Methods called on the [`Server`](crate::Server) after
//!    [`Server::from_config`](crate::Server::from_config), for settings that operators must not
//!    change.
//!
//! # Reloading
//!
//! SIGHUP and [`Handle::reload`](crate::Handle::reload) read the configuration again, if it was
//! read from a file or the environment, and then the certificates. Limits, trusted proxies, the
//! access log, sampling, and whatever the callback of
//! [`Server::on_reload`](crate::Server::on_reload) applies then change for connections accepted
//! from then on. One log line names each setting that changed and each that needs a restart. If any
//! setting is invalid, nothing changes, and the log says why.
//!
//! Needs the feature `config`. Applications can read their own settings with [`Layers`], [`Time`]
//! and the other re-exported types.

mod access_log;
mod acme;
mod apply;
mod changes;
mod check;
mod figures;
mod print;
mod reload;
#[cfg(feature = "config-schema")]
mod schema;
mod settle;
mod tls;
mod traces;
mod tree;

pub use self::access_log::{AccessLogConfig, LineForm, LogsConfig};
pub use self::acme::{AcmeConfig, ChallengeKind, ExternalAccountConfig};
pub use self::tls::{CertificateConfig, ClientAuthConfig, Clients, MinimumVersion, TlsConfig};
pub use self::traces::{OtlpConfig, TracesConfig};
pub use self::tree::{
    AdminConfig, DriverConfig, DriverKind, Field, ListenerConfig, ProxiesConfig, ProxyHeader,
    ProxyProtocolConfig, RestartConfig, ServerConfig, SocketsConfig,
};
pub use peregrine_config::{
    Automatic, ConfigError, Kind, Layers, MaybeCount, MaybeMode, MaybeSize, MaybeText, MaybeTime,
    Origin, Secret, Size, Time, Value, print, print_with,
};

#[cfg(feature = "config-schema")]
pub use self::schema::schema;

#[cfg(test)]
pub(crate) use self::figures::FAMILIES;
pub(crate) use self::figures::{Figures, write};
pub(crate) use self::reload::{Began, Configured};

use crate::error::Error;

/// The prefix of environment variables.
const PREFIX: &str = "PEREGRINE_";

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

#[cfg(test)]
mod tests;
