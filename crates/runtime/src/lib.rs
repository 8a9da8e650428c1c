//! Runs a server's threads: listeners, workers, signals, shutdown, and the final report.
//!
//! `peregrine` converts the settings of its `Server` into `ServerParts`. From these, `start.rs`
//! binds the listeners (`listen/`), selects the driver (`driver_choice.rs`), and starts one thread
//! per worker (`worker.rs`). A [`RunningServer`] (`running.rs`) waits for the workers to end. A
//! [`ServerHandle`] (`handle.rs`) shuts the server down or reloads it, on behalf of the program or
//! of a signal (`signals.rs`).
//!
//! This crate does not use the server's builder, and does not know how certificates and settings
//! are reloaded or obtained: `peregrine` passes it functions that start those threads, and
//! re-exports the public items.
#![forbid(unsafe_code)]

mod blocking;
mod console;
mod deadline;
mod driver_choice;
mod error;
mod handle;
mod listen;
mod memory_limits;
mod report;
mod running;
mod signals;
mod spawn_blocking;
mod start;
mod threads;
#[cfg(unix)]
mod upgrade;
mod worker;

pub use driver_choice::DriverChoice;
pub use error::Error;
pub use handle::ServerHandle;
pub use listen::admin::Admin;
pub use listen::bind::ListenAddr;
pub use listen::listener::Listener;
pub use report::ShutdownReport;
pub use running::RunningServer;
pub use spawn_blocking::spawn_blocking;

/// Items that `peregrine` needs to start a server and to wait for its end. They can change in any
/// release.
#[doc(hidden)]
pub mod internal {
    #[cfg(any(all(target_os = "linux", feature = "restart"), feature = "config"))]
    pub use crate::console::report_error;
    pub use crate::console::{report, report_shutdown};
    #[cfg(feature = "config")]
    pub use crate::error::missing_feature;
    pub use crate::handle::{ControlChannel, ReloadFn};
    pub use crate::listen::admin::{DEFAULT_LIVENESS_THRESHOLD, new_admin_state};
    pub use crate::listen::listener::{ListenerSettings, into_settings};
    pub use crate::memory_limits::{
        describe as describe_memory_max, resolve as resolve_memory_max,
    };
    pub use crate::report::stopped;
    pub use crate::running::{
        AcmeThreads, ForceCloseOnDrop, SENDS_BEFORE_EXIT, run_on_thread, wait_handling_signals,
    };
    pub use crate::signals::{HandledSignals, Signals};
    pub use crate::start::{ServerParts, StartAcme, StartReloaders, UpgradeOptions, start};
    pub use crate::worker::{BoxedMakeApp, BuildFuture, RoutePatterns};
}
