//! Restarts without lost connections: sockets from a service manager, notifications to it, and
//! upgrades in place.
//!
//! An *upgrade in place* starts the program again, usually a newer version, and passes the
//! listening sockets to the new process, the *successor*. When the successor is ready it starts
//! serving, and only then does this process drain as described at [`Handle::shut_down`]. Connected
//! clients are not disturbed, and connections in a listen queue are not lost, since the queues
//! themselves are passed on. If the successor dies or is not ready in time, the upgrade is
//! abandoned, and this process continues as before.
//!
//! [`Server::serve`](crate::Server::serve) upgrades on SIGUSR2, unless the program has its own
//! handler for that signal; [`Handle::upgrade`] upgrades at any time. [`Successor`] configures what
//! is started.
//!
//! A socket is passed on if both programs listen at its address. Addresses match if they are
//! written the same way, or else if they resolve to the same one; sockets of a service manager
//! match by name. Listeners that only the old program has are drained and closed, and listeners
//! that only the new program has are bound. A process can upgrade only one
//! [`Server`](crate::Server), so give all listeners to one. The successor is a separate process, so
//! a program that is the first process of its container cannot be upgraded in place.
//!
//! This works on Linux. The predecessor's side is in `upgrade.rs`, the successor's in `heir.rs`,
//! and the messages between them are in `parcel.rs`.

mod activation;
mod heir;
mod notify;
mod parcel;
mod successor;
mod telling;
mod upgrade;
mod watchdog;

pub(crate) use heir::Heir;
pub use successor::Successor;
pub(crate) use telling::Reloading;
pub use upgrade::UpgradeError;
pub(crate) use watchdog::Answering;

use crate::entrances::Holding;
use crate::error::Error;
use crate::orders::Handle;
use notify::Manager;
use peregrine_driver::Socket;
use peregrine_server::Order;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use telling::Telling;
use upgrade::Estate;
use watchdog::Watchdog;

/// The names of the messages between the two processes, in the order in which they are sent.
mod step {
    /// The original standard input: the successor's was replaced by the link between the processes.
    pub(super) const INPUT: &str = "input";
    /// The sockets of a listener. The rest of the name is the listener's key.
    pub(super) const LISTENER: &str = "listener ";
    // To pass anything else to successors, add a message here: older successors ignore names that
    // they do not know.
    /// All sockets were passed on.
    pub(super) const END: &str = "end";
    /// The successor does not listen at the address with this key.
    pub(super) const UNTAKEN: &str = "untaken";
    /// The successor is ready, but does not accept connections yet.
    pub(super) const READY: &str = "ready";
    /// The successor cannot start; the bytes contain the reason.
    pub(super) const FAILED: &str = "failed";
    /// Tells the successor to accept connections.
    pub(super) const GO: &str = "go";
    /// A reload was requested from the predecessor when the successor may already have read its
    /// settings, so the successor must reload.
    pub(super) const RELOAD: &str = "reload";
    /// The successor accepts connections.
    pub(super) const SERVING: &str = "serving";
    /// The successor now owns the sockets, and is the service manager's main process.
    pub(super) const YOURS: &str = "yours";
}

/// The state that a server keeps for upgrades and for its service manager.
#[derive(Debug, Default)]
pub(crate) struct Restart {
    /// Locked while an upgrade is in progress.
    under_way: Mutex<()>,
    /// Present while the server serves.
    estate: Mutex<Option<Arc<Estate>>>,
    manager: OnceLock<Option<Manager>>,
    telling: Mutex<Telling>,
    /// Whether a reload was requested since the last upgrade began.
    reload_asked: AtomicBool,
}

impl Restart {
    /// Starts reporting to the service manager, if there is one.
    pub(crate) fn tell_manager(&self) {
        self.manager.get_or_init(Manager::from_environment);
    }

    fn manager(&self) -> Option<&Manager> {
        self.manager.get().and_then(Option::as_ref)
    }

    /// Whether SIGUSR2 upgrades the server.
    pub(crate) fn is_by_signal(&self) -> bool {
        lock(&self.estate).as_ref().is_some_and(|estate| estate.is_by_signal())
    }

    /// The watchdog, if the service manager requests one and receives reports.
    pub(crate) fn watchdog(&self) -> Option<Watchdog> {
        self.manager().and_then(|_| Watchdog::from_environment())
    }

    /// Called when the server serves, with what a successor would get.
    pub(crate) fn serves(
        &self,
        handle: &Handle,
        holdings: Vec<Holding>,
        successor: Successor,
        quiet: bool,
        status: &str,
    ) {
        let estate = Estate::new(holdings, successor, quiet);
        *lock(&self.estate) = Some(Arc::new(estate));
        // An order may have arrived in the meantime.
        if handle.present() > Order::Serve {
            lock(&self.estate).take();
        } else {
            self.is_ready(status);
        }
    }

    /// Handles a new order. On shutdown, sockets must be closed, and no longer be kept for a
    /// successor.
    pub(crate) fn ordered(&self, order: Order) {
        if order <= Order::Serve {
            return;
        }
        let has_served = lock(&self.estate).take().is_some();
        // The manager no longer considers a process with a successor the service.
        self.is_ending(has_served && order != Order::Leave);
    }

    /// Records a reload request, so that a successor that is starting also reloads. Returns whether
    /// another process has taken over: the request must then be sent to that process.
    pub(crate) fn reload_asked(&self, handle: &Handle) -> bool {
        // The order matters: an upgrade gives `Order::Leave` before it reads this flag, so the
        // request is seen by at least one process.
        self.reload_asked.store(true, Ordering::SeqCst);
        handle.present() == Order::Leave
    }

    /// Waits until an upgrade in progress has been abandoned: its successor must not outlive an
    /// order to stop.
    pub(crate) fn finish(&self) {
        drop(lock(&self.under_way));
    }
}

/// The sockets called `name` from a service manager. Empty if there are no such sockets at all and
/// the listener `has_other` address to use instead.
pub(crate) fn activated(name: &str, has_other: bool) -> Result<Vec<Socket>, Error> {
    match activation::take(name) {
        Ok(sockets) => Ok(sockets),
        Err(activation::Missing::All(_)) if has_other => Ok(Vec::new()),
        Err(missing) => {
            Err(Error::Config(format!("the service manager passed no socket `{name}`: {missing}")))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic leaves none of them partially updated.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
