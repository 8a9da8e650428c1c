//! The application's settings, from environment variables that start with `CONDUIT_`. The server's
//! settings (addresses, TLS, limits, logs) are in `ServerConfig`.

use crate::start::StartError;
use peregrine::config::{ByteSize, ConfigLoader, HumanDuration, SecretString};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The minimum length of the secret, which is what HS256 requires (RFC 7518 §3.2).
const SECRET_BYTES_MIN: usize = 32;

/// The settings, with their defaults.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The database file. Default: `conduit.db`.
    pub database: PathBuf,
    /// The maximum number of database connections. One writes at a time; the others read. Default:
    /// 8.
    pub database_connections: u32,
    /// How long a request waits for a connection, for another writer, and for its password to be
    /// hashed; then it is answered with a 503. Default: 3 s.
    #[serde(with = "HumanDuration")]
    pub wait_max: Duration,
    /// The folder of uploaded pictures. Default: `uploads`.
    pub uploads: PathBuf,
    /// The maximum size of a picture, in bytes. Default: 2 MiB.
    #[serde(with = "ByteSize")]
    pub upload_bytes_max: u64,
    /// The key that signs tokens: at least 32 random bytes, the same in all processes.
    pub secret: SecretString,
    /// The lifetime of a token. Default: 24 h.
    #[serde(with = "HumanDuration")]
    pub token_lifetime: Duration,
    /// The maximum number of login attempts per account and minute. Default: 20.
    pub logins_per_minute: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            database: "conduit.db".into(),
            database_connections: 8,
            wait_max: Duration::from_secs(3),
            uploads: "uploads".into(),
            upload_bytes_max: 2 << 20,
            secret: SecretString::new(""),
            token_lifetime: Duration::from_secs(24 * 60 * 60),
            logins_per_minute: 20,
        }
    }
}

impl Settings {
    /// The defaults, overridden by the environment.
    ///
    /// # Errors
    /// A variable does not match any setting, or its value is invalid.
    pub fn from_environment() -> Result<Self, StartError> {
        let settings = ConfigLoader::new("CONDUIT_").env().load(&Self::default());
        settings.map_err(StartError::Settings)
    }

    /// Checks the settings. In development mode, generates a missing secret and logs a warning.
    ///
    /// # Errors
    /// A setting is missing or invalid.
    pub fn checked(mut self, is_development: bool) -> Result<Self, StartError> {
        if self.secret.expose_secret().is_empty() && is_development {
            let mut random = [0; SECRET_BYTES_MIN];
            getrandom::fill(&mut random).map_err(|_| StartError::NoRandomNumbers)?;
            self.secret = SecretString::new(random.map(|byte| format!("{byte:02x}")).concat());
            tracing::warn!(
                "DEVELOPMENT: CONDUIT_SECRET is not set, so tokens are signed with a generated secret and become invalid when this process exits. \
                 Do not use this in production"
            );
        }
        match self.secret.expose_secret().len() {
            0 => Err(StartError::SecretMissing),
            length if length < SECRET_BYTES_MIN => {
                Err(StartError::SecretShort { length, least: SECRET_BYTES_MIN })
            }
            _ if self.database_connections == 0 => {
                Err(StartError::Zero("CONDUIT_DATABASE_CONNECTIONS"))
            }
            _ if self.logins_per_minute == 0 => Err(StartError::Zero("CONDUIT_LOGINS_PER_MINUTE")),
            _ => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_runs_a_service_without_a_secret_by_mistake() {
        let error = Settings::default().checked(false).expect_err("there is no secret").to_string();
        assert!(error.contains("CONDUIT_SECRET") && error.contains("--development"), "{error}");
        let made = Settings::default().checked(true).expect("a secret is generated").secret;
        assert_eq!(made.expose_secret().len(), 64);
        let short = Settings { secret: SecretString::new("hush"), ..Settings::default() };
        let error = short.checked(true).expect_err("too short").to_string();
        assert!(error.contains('4') && error.contains("32") && !error.contains("hush"), "{error}");
    }
}
