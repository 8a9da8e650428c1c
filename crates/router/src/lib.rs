//! Path to route and parameters.
//!
//! A [`Builder`] takes patterns, sets of methods and route ids; [`Builder::build`] makes an immutable
//! [`Router`], or reports everything that is wrong with the table at once. A lookup costs some
//! nanoseconds and allocates nothing.
//!
//! This crate knows no HTTP: a method is a number below 32 that the caller assigns, a path is bytes,
//! and an answer is a [`Match`]. It does no I/O and has no dependencies.
//!
//! Start reading at [`Builder::insert`] for patterns and [`Router::find`] for matching; the way down
//! the tree is `descend.rs`, and with its alternatives `walk.rs`; `reference.rs` has the same rules,
//! slow and plain.
#![forbid(unsafe_code)]

mod ambiguous;
mod builder;
mod descend;
mod encoding;
mod error;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod methods;
mod node;
mod parameters;
mod pattern;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod reference;
mod router;
mod slashes;
mod statics;
mod walk;
mod word;

pub use ambiguous::{any_reading, has_dot_segments, may_be_ambiguous};
pub use builder::{Builder, SlashPolicy};
pub use encoding::{DecodeError, decode};
pub use error::{BuildError, PatternError, PatternFault, Problem, RouteName};
pub use methods::Methods;
pub use parameters::{Parameters, Span, Values};
pub use router::{Match, Route, Router};

/// The most parameters one pattern may have.
pub const PARAMETERS_MAX: usize = 32;
/// The most segments one pattern may have.
pub const SEGMENTS_MAX: usize = 255;
/// The most bytes of fixed text in one segment of a pattern, percent-decoded.
pub const LITERAL_BYTES_MAX: usize = 255;
/// The largest route id, and so the limit of a table's size. Ids index a table: number them from 0.
pub const ROUTE_ID_MAX: u32 = 64_999;
