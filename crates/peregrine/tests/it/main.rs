//! What users of the crate see: attributes, features, and compile errors.

#[cfg(feature = "macros")]
mod attributes;
mod compile_errors;
mod features;
