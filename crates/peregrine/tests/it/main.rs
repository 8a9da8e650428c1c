//! Tests of the crate's public surface: attributes, features, and compile errors.

#[cfg(feature = "macros")]
mod attributes;
mod compile_errors;
mod features;
