//! Reads and prints human-readable settings.
//!
//! Settings are a serde type. [`Layers`] reads it from the program's values, then from a TOML file,
//! then from environment variables; later layers override earlier ones. Errors contain the position
//! (the file and line, or the variable), the key, the expected value, and the most similar known
//! key. [`print()`] prints complete settings in a form that parses to the same values.
//!
//! [`Time`] and [`Size`] are formats for durations and sizes, for `#[serde(with = "Time")]`;
//! [`MaybeTime`], [`MaybeSize`] and [`MaybeCount`] also accept `off`, [`Automatic`] accepts `auto`,
//! and [`AutoSize`] both. A [`Secret`] is never printed.
//!
//! `value.rs` is a tree with positions, `read.rs` builds it from the layers, and `de.rs`
//! deserialises it.
#![forbid(unsafe_code)]

mod de;
mod error;
mod mode;
mod number;
mod print;
mod read;
mod secret;
mod ser;
mod size;
mod time;
mod value;

pub use error::ConfigError;
pub use mode::MaybeMode;
pub use number::{Automatic, MaybeCount, MaybeText};
pub use print::{print, print_with};
pub use read::Layers;
pub use secret::Secret;
pub use ser::to_value;
pub use size::{AutoSize, MaybeSize, Size};
pub use time::{MaybeTime, Time, time};
pub use value::{Kind, Origin, Value};
