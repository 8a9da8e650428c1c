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
//! 5. What the program calls on the `Server` after `Server::from_config`,
//!    for what is not the operator's to change.
//!
//! # While the server runs
//!
//! SIGHUP, and `Handle::reload`, read the file again, if the tree came from one, and the certificates. Limits,
//! trusted proxies, the access log, sampling, and what `Server::on_reload` looks after count from then on, for connections that are accepted
//! from then on. One line of the log names each setting that changed, and each that needs a restart. Where anything is
//! wrong with the file, everything stays as it is, and the log says why.
//!
//! With the feature `config`. [`Layers`], [`Time`] and the others are for an application's own settings.
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

pub use self::access_log::{AccessLogConfig, LineForm};
pub use self::acme::{AcmeConfig, ChallengeKind, ExternalAccountConfig};
pub use self::server::{
    AdminConfig, DriverConfig, DriverKind, Field, ListenerConfig, LogsConfig, ProxiesConfig,
    ProxyHeader, ProxyProtocolConfig, RestartConfig, ServerConfig, SocketsConfig,
};
#[cfg(feature = "schema")]
pub use self::text::schema;
pub use self::tls::{CertificateConfig, ClientAuthConfig, Clients, MinimumVersion, TlsConfig};
pub use self::traces::{OtlpConfig, TracesConfig};
pub use peregrine_config::{
    Automatic, ConfigError, Kind, Layers, MaybeCount, MaybeMode, MaybeSize, MaybeText, MaybeTime,
    Origin, Secret, Size, Time, Value, print, print_with,
};

/// What a server needs to apply the tree and to reload it. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::diff::{changes, summary};
    pub use crate::layering::layers;
    pub use crate::metrics::{FAMILIES, Figures, write};
    pub use crate::server::Source;
    pub use crate::stable_file::settle;
}

#[cfg(test)]
mod tests;
