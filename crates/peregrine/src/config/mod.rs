//! A server's settings as one tree: from the program, from a file, from the environment.
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
//! # Which setting counts
//!
//! 1. The defaults.
//! 2. What the program says before: the tree that [`ServerConfig::load_over`] is given.
//! 3. The file.
//! 4. Variables of the environment: `PEREGRINE_LIMITS__IDLE_TIMEOUT=75s` for `limits.idle_timeout`, and
//!    `PEREGRINE_DRIVER` for `driver.kind`.
//! 5. What the program calls on the [`Server`](crate::Server) after [`Server::from_config`](crate::Server::from_config),
//!    for what is not the operator's to change.
//!
//! # While the server runs
//!
//! SIGHUP, and [`Handle::reload`](crate::Handle::reload), read the file again, if the tree came from one, and the certificates. Limits,
//! trusted proxies, the access log, sampling, and what [`Server::on_reload`](crate::Server::on_reload) looks after count from then on, for connections that are accepted
//! from then on. One line of the log names each setting that changed, and each that needs a restart. Where anything is
//! wrong with the file, everything stays as it is, and the log says why.
//!
//! With the feature `config`. [`Layers`], [`Time`] and the others are for an application's own settings.

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

pub use self::access_log::{AccessLogConfig, LineForm};
pub use self::acme::{AcmeConfig, ChallengeKind, ExternalAccountConfig};
pub use self::tls::{CertificateConfig, ClientAuthConfig, Clients, MinimumVersion, TlsConfig};
pub use self::traces::{OtlpConfig, TracesConfig};
pub use self::tree::{
    AdminConfig, DriverConfig, DriverKind, Field, ListenerConfig, LogsConfig, ProxiesConfig,
    ProxyHeader, ProxyProtocolConfig, RestartConfig, ServerConfig, SocketsConfig,
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

/// What variables of the environment begin with.
const PREFIX: &str = "PEREGRINE_";

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.to_string())
    }
}

#[cfg(test)]
mod tests;
