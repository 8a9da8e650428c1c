//! The JSON schema of the configuration.

use super::tree::ServerConfig;

/// The JSON schema of [`ServerConfig`], for editors and for checking files before deployment. Needs
/// the feature `config-schema`. The repository contains it as
/// `crates/peregrine/configuration.schema.json`.
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(ServerConfig).to_value())
}
