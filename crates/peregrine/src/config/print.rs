//! Prints the configuration.

use super::tree::ServerConfig;
use peregrine_config::print;
use std::fmt;

/// Prints the whole configuration as TOML, including defaults. Reading the text yields an equal
/// configuration.
impl fmt::Display for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self).map_err(|_| fmt::Error)?)
    }
}
