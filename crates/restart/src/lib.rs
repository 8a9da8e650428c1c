//! Restarts without lost connections: sockets from a service manager, notifications to it, and
//! upgrades in place.
//!
//! An *upgrade in place* starts the program again, usually a newer version, and passes the
//! listening sockets to the new process, the *successor*. When the successor is ready, it starts
//! serving, and only then does this process, its *predecessor*, drain as described at
//! `ServerHandle::graceful_shutdown`, but without the lame-duck phase. Requests in progress may
//! take until the shutdown timeout, and connections in a listen queue are not lost, since the
//! queues themselves are passed on. If the successor dies or is not ready in time, the upgrade is
//! abandoned, and this process continues as before.
//!
//! `Server::serve` upgrades on SIGUSR2, unless the program has its own handler for that signal;
//! `ServerHandle::upgrade` upgrades at any time. [`UpgradeOptions`] configures what is started.
//!
//! A socket is passed on if both programs listen at its address. Addresses match if they are
//! written the same way, or else if they resolve to the same one; sockets of a service manager
//! match by name. Listeners that only the old program has are drained and closed, and listeners
//! that only the new program has are bound. A process can upgrade only one `Server`, so give all
//! listeners to one. The successor is a separate process, so a program that is the first process of
//! its container cannot be upgraded in place.
//!
//! This works on Linux. The predecessor's side is in `upgrade.rs`, the successor's in `inherit.rs`,
//! and the messages between them are in `fd_message.rs`.
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
pub use options::UpgradeOptions;
#[cfg(all(target_os = "linux", feature = "restart"))]
pub use upgrade::UpgradeError;

/// What `peregrine` needs for restarts. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::host::{HandoverError, UpgradeHost};
    #[cfg(unix)]
    pub use crate::listener::FileId;
    pub use crate::listener::{InheritedListener, ListenerFds, TicketSecrets};

    #[cfg(not(all(target_os = "linux", feature = "restart")))]
    pub use crate::unsupported::{
        InheritedListeners, ReloadGuard, RestartState, UpgradeOptions, WatchdogResponder,
    };
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub use crate::{
        inherit::InheritedListeners, notify_state::ReloadGuard, restart::RestartState,
        socket_activation::activated, watchdog::WatchdogResponder,
    };
}
