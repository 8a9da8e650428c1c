//! Recipes, and the states of contenders.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may say so by its line")]

#[cfg(target_os = "linux")]
mod interrupt;
mod recipes;
#[cfg(target_os = "linux")]
mod states;
