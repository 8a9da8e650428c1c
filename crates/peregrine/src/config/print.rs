//! The tree as text.

use super::tree::ServerConfig;
use peregrine_config::print;
use std::fmt;

/// The whole tree as TOML, defaults too. It reads back as the same.
impl fmt::Display for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self).map_err(|_| fmt::Error)?)
    }
}
