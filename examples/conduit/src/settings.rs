//! What the operator says of the application: by variables that begin with `CONDUIT_`. What concerns the server
//! (addresses, TLS, limits, logs) is the tree of `ServerConfig`.

use crate::start::StartError;
use peregrine::config::{Layers, Secret, Size, Time};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// The fewest bytes of a secret: HS256 makes no more of it (RFC 7518 §3.2).
const SECRET_BYTES_MIN: usize = 32;

/// The settings, with their defaults.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The file of the data base.
    pub database: PathBuf,
    /// How many connections to it there are at most. One writes at a time; the others read.
    pub database_connections: u32,
    /// How long a request waits each time for its turn: for a connection, for another one that writes, or for its password
    /// to be hashed. It is told to come again then.
    #[serde(with = "Time")]
    pub wait_max: Duration,
    /// The folder of uploaded pictures.
    pub uploads: PathBuf,
    /// How large such a picture may be.
    #[serde(with = "Size")]
    pub upload_bytes_max: u64,
    /// What tokens are signed with: 32 random bytes or more, the same for all processes.
    pub secret: Secret,
    /// How long a token counts.
    #[serde(with = "Time")]
    pub token_lifetime: Duration,
    /// How often somebody may try passwords of one account in a minute.
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
            secret: Secret::new(""),
            token_lifetime: Duration::from_secs(24 * 60 * 60),
            logins_per_minute: 20,
        }
    }
}

impl Settings {
    /// The defaults, and what the environment says.
    ///
    /// # Errors
    /// A variable has no setting, or a value that cannot be one.
    pub fn from_environment() -> Result<Self, StartError> {
        let settings = Layers::new("CONDUIT_").environment().load(&Self::default());
        settings.map_err(StartError::Settings)
    }

    /// Looks whether they can be used. For development, a secret is made where there is none, and the log says so.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub fn checked(mut self, is_development: bool) -> Result<Self, StartError> {
        if self.secret.expose().is_empty() && is_development {
            let mut random = [0; SECRET_BYTES_MIN];
            getrandom::fill(&mut random).map_err(|_| StartError::NoRandomNumbers)?;
            self.secret = Secret::new(random.map(|byte| format!("{byte:02x}")).concat());
            tracing::warn!(
                "DEVELOPMENT: CONDUIT_SECRET is not set, so tokens are signed with a secret of this process, and end with it. \
                 Never run a service so"
            );
        }
        match self.secret.expose().len() {
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
        let made = Settings::default().checked(true).expect("a secret is made").secret;
        assert_eq!(made.expose().len(), 64);
        let short = Settings { secret: Secret::new("hush"), ..Settings::default() };
        let error = short.checked(true).expect_err("it is short").to_string();
        assert!(error.contains('4') && error.contains("32") && !error.contains("hush"), "{error}");
    }
}
