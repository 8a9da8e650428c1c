//! The tree as text, and its JSON schema.

use crate::server::ServerConfig;
use peregrine_config::print;
use std::fmt;

/// The whole tree as TOML, defaults too. It reads back as the same.
impl fmt::Display for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self).map_err(|_| fmt::Error)?)
    }
}

/// The JSON schema of [`ServerConfig`], for editors and for whoever checks files before they are deployed. With the
/// feature `config-schema`. The repository has it as `crates/settings/configuration.schema.json`.
#[cfg(feature = "schema")]
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(ServerConfig).to_value())
}
