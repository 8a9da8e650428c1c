//! Restarts without loss: sockets that a service manager made, what such a manager is told, and upgrades
//! in place.
//!
//! An *upgrade in place* starts the program again, which may be a newer one, and hands it the listening
//! sockets. When the successor is ready it serves, and only then this process drains, as
//! `Handle::shut_down` says. Nobody who is connected is disturbed, and nobody who waits in a listen
//! queue is lost: the queues themselves are handed over. A successor that dies, or is not ready in time,
//! is given up, and this process goes on as if nothing had happened.
//!
//! `Server::serve` upgrades at SIGUSR2, unless the program has a handler of its
//! own for that signal; `Handle::upgrade` does it at any time. [`Successor`] says what is started.
//!
//! What listens at an address in both programs is handed over: the address as it is written, else where
//! it leads, decides; for sockets of a service manager it is their name. What only the old program
//! listens on is drained and closed, and what only the new one does is bound. A process upgrades one
//! `Server`: what it listens on belongs into one. The successor is a process of its
//! own, so that a program that is the first one of its container cannot be upgraded in place.
//!
//! This works on Linux. How it is made: `upgrade.rs` is the side that hands over, `inherit.rs` the
//! one that takes over, and `fd_message.rs` what is between them.
#![forbid(unsafe_code)]

mod host;
mod listener;

#[cfg(all(target_os = "linux", feature = "restart"))]
mod fd_message;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod inherit;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod notify_state;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod options;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod restart;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod service_manager;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod socket_activation;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod upgrade;
#[cfg(all(target_os = "linux", feature = "restart"))]
mod watchdog;

#[cfg(not(all(target_os = "linux", feature = "restart")))]
mod unsupported;

#[cfg(all(target_os = "linux", feature = "restart"))]
pub use options::Successor;
#[cfg(all(target_os = "linux", feature = "restart"))]
pub use upgrade::UpgradeError;

/// What a server needs to be restarted. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::host::{TakeOverError, UpgradeHost};
    #[cfg(unix)]
    pub use crate::listener::Identity;
    pub use crate::listener::{Holding, Inherited, Secrets};

    #[cfg(not(all(target_os = "linux", feature = "restart")))]
    pub use crate::unsupported::{Answering, Heir, Reloading, Restart, Successor};
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub use crate::{
        inherit::Heir, notify_state::Reloading, restart::Restart, socket_activation::activated,
        watchdog::Answering,
    };
}
