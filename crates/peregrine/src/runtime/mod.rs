//! A running server: its workers, its lifecycle, and its shutdown.

pub(crate) mod blocking;
pub(crate) mod console;
pub(crate) mod deadline;
pub(crate) mod driver_choice;
pub(crate) mod handle;
pub(crate) mod memory_limits;
pub(crate) mod report;
pub(crate) mod running;
pub(crate) mod signals;
pub(crate) mod spawn_blocking;
pub(crate) mod start;
pub(crate) mod threads;
#[cfg(unix)]
mod upgrade;
pub(crate) mod worker;
