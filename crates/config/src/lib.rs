//! Settings as people write them.
//!
//! A tree of settings is a type of serde's. [`Layers`] reads one from what the program says, then from a file of
//! TOML, then from variables of the environment, each stronger than the one before. What is wrong is told with its place:
//! the file and its line, or the variable; the key; what was expected; and the nearest key there is. [`print()`] prints a
//! tree whole, so that it reads back as the same.
//!
//! [`Time`] and [`Size`] are how durations and sizes are written, for `#[serde(with = "Time")]`; [`MaybeTime`],
//! [`MaybeSize`] and [`MaybeCount`] may also be `off`, [`Automatic`] may be `auto`, and [`AutoSize`] either. A [`Secret`] is
//! never shown.
//!
//! `value.rs` is a tree that knows where each part came from, `read.rs` makes one of the layers, `de.rs` makes a type of it.
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
