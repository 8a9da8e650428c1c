//! The JSON schema of the tree.

use super::tree::ServerConfig;

/// The JSON schema of [`ServerConfig`], for editors and for whoever checks files before they are deployed. With the
/// feature `config-schema`. The repository has it as `crates/peregrine/configuration.schema.json`.
#[must_use]
pub fn schema() -> String {
    format!("{:#}\n", schemars::schema_for!(ServerConfig).to_value())
}
