//! Examples, one idea each: see `src/bin`.
#![forbid(unsafe_code)]
