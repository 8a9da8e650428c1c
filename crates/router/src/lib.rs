//! Maps a path to a route and its parameters.
//!
//! A [`RouterBuilder`] collects routes, each with a pattern, a set of methods and an id;
//! [`RouterBuilder::build`] creates an immutable [`Router`], or reports every error in the table.
//! A lookup takes a few nanoseconds and does not allocate.
//!
//! This crate is independent of HTTP: a method is a number below 32 that the caller assigns, a path
//! is bytes, and the result is a [`Match`]. It does no I/O and has no dependencies.
//!
//! Start reading at [`RouterBuilder::insert`] for patterns and [`Router::find`] for matching.
//! `descend.rs` searches the tree without backtracking, `walk.rs` with it; `reference.rs`
//! implements the same rules in a simple, slow way.
#![forbid(unsafe_code)]

mod ambiguous;
mod builder;
mod descend;
mod encoding;
mod error;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod hash;
mod method_set;
mod node;
mod parameters;
mod pattern;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod reference;
mod router;
mod slashes;
mod static_paths;
mod tree_builder;
mod walk;

pub use ambiguous::{any_reading, has_dot_segments, may_be_ambiguous};
pub use builder::RouterBuilder;
pub use encoding::{DecodeError, decode};
pub use error::{PatternError, PatternErrorKind, RouteDescription, RouteError, RouterBuildError};
pub use method_set::MethodSet;
pub use parameters::{Parameters, Span, Values};
pub use router::{Match, Route, Router, TrailingSlash};

/// The maximum number of parameters in a pattern.
pub const PARAMETERS_MAX: usize = 32;
/// The maximum number of segments in a pattern.
pub const SEGMENTS_MAX: usize = 255;
/// The maximum number of bytes of fixed text in one segment of a pattern, percent-decoded.
pub const LITERAL_BYTES_MAX: usize = 255;
/// The largest route id, which also limits a table to 65,000 routes. Ids are used as indices into
/// a table, so number routes from 0.
pub const ROUTE_ID_MAX: u32 = 64_999;
