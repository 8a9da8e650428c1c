//! Contenders: recipes that say how a server is built and started, whether that can be done here,
//! and what exactly ran.
//!
//! A recipe is a folder with a `contender.toml`; its keys are explained in `lab/contenders/README.md`.
//! Nothing here measures or judges a server, and nothing starts one: a [`recipe::Command`] is handed
//! to the host control. What cannot be had on this machine is said with its reason, never left out.
//!
//! Where to start: [`recipe`] reads the files, [`state`] says what stands in the way of a contender,
//! [`build`] builds it, [`identity`] says what was built, [`mod@select`] finds the wanted ones by name
//! and lists all.

#![forbid(unsafe_code)]

pub mod build;
pub mod error;
pub mod identity;
mod lock;
mod program;
pub mod recipe;
pub mod select;
mod sources;
pub mod state;
mod toolchain;

pub use build::BuildError;
pub use error::RecipeError;
pub use recipe::{Command, Need, Places, Protocol, Recipe, all};
pub use select::{SelectError, select, table};
pub use state::State;
