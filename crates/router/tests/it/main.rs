//! The rules of matching, and that a lookup does not allocate.

mod allocation;
mod matching;
