//! Reads and prints human-readable settings.
//!
//! Settings are a serde type. [`ConfigLoader`] reads it from the program's values, then from a TOML
//! file, then from environment variables. Later layers override earlier ones. Errors contain the
//! position (the file and line, or the variable), the key, the expected value, and the most similar
//! known key. [`to_toml_string()`] prints complete settings as TOML that parses to the same values.
//!
//! [`HumanDuration`] and [`ByteSize`] are formats of durations and sizes for serde's `with`
//! attribute, as in `#[serde(with = "HumanDuration")]`. [`OptionalDuration`], [`OptionalByteSize`]
//! and [`OptionalCount`] also accept `off`, [`AutoCount`] accepts `auto`, and [`AutoByteSize`]
//! accepts both. A [`SecretString`] is never printed.
//!
//! `value.rs` contains a tree of settings with positions, `loader/mod.rs` builds the tree from the
//! layers, and `de.rs` deserialises it.
#![forbid(unsafe_code)]

mod byte_size;
mod de;
mod duration;
mod error;
mod file_mode;
mod loader;
mod optional;
mod secret_string;
mod ser;
mod toml_writer;
mod value;

pub use byte_size::{AutoByteSize, ByteSize, OptionalByteSize};
pub use duration::{HumanDuration, OptionalDuration, parse_duration};
pub use error::ConfigError;
pub use file_mode::OptionalFileMode;
pub use loader::ConfigLoader;
pub use optional::{AutoCount, OptionalCount, OptionalString};
pub use secret_string::SecretString;
pub use ser::to_value;
pub use toml_writer::{to_toml_string, to_toml_string_with_comments};
pub use value::{ConfigValue, SourceLocation, ValueKind};
