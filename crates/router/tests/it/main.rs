//! The rules of matching, and that a lookup allocates nothing.

mod allocation;
mod matching;
