//! The paper check from outside: its checks, its input, and the founding pages.

mod checks;
mod consistent_runs;
mod input;
mod pages;
