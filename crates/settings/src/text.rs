//! Prints the configuration, and its JSON schema.

use crate::server::ServerConfig;
use peregrine_config::to_toml_string;
use std::fmt;

/// Prints the whole configuration as TOML, including defaults. Reading the text yields an equal
/// configuration.
impl fmt::Display for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_toml_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Returns the JSON schema of [`ServerConfig`], for editors and for checking files before
/// deployment. Requires the feature `config-schema` of `peregrine`. The repository contains the
/// schema as `crates/settings/configuration.schema.json`.
#[cfg(feature = "schema")]
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(ServerConfig).to_value())
}
