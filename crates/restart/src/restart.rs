//! The state that a server keeps for upgrades and for its service manager.

use crate::host::UpgradeHost;
use crate::listener::Holding;
use crate::notify_state::Telling;
use crate::options::Successor;
use crate::service_manager::Manager;
use crate::upgrade::Estate;
use crate::watchdog::Watchdog;
use peregrine_server::Order;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The state that a server keeps for upgrades and for its service manager.
#[derive(Debug, Default)]
pub struct Restart {
    /// Locked while an upgrade is in progress.
    pub(crate) under_way: Mutex<()>,
    /// Present while the server serves.
    pub(crate) estate: Mutex<Option<Arc<Estate>>>,
    pub(crate) manager: OnceLock<Option<Manager>>,
    pub(crate) telling: Mutex<Telling>,
    /// Whether a reload was requested since the last upgrade began.
    pub(crate) reload_asked: AtomicBool,
}

impl Restart {
    /// Starts reporting to the service manager, if there is one.
    pub fn tell_manager(&self) {
        self.manager.get_or_init(Manager::from_environment);
    }

    pub(crate) fn manager(&self) -> Option<&Manager> {
        self.manager.get().and_then(Option::as_ref)
    }

    /// Whether SIGUSR2 upgrades the server.
    #[must_use]
    pub fn is_by_signal(&self) -> bool {
        lock(&self.estate).as_ref().is_some_and(|estate| estate.is_by_signal())
    }

    /// Whether the server serves and prints nothing to the terminal.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        lock(&self.estate).as_ref().is_some_and(|estate| estate.quiet)
    }

    /// The watchdog, if the service manager requests one and receives reports.
    #[must_use]
    pub fn watchdog(&self) -> Option<Watchdog> {
        self.manager().and_then(|_| Watchdog::from_environment())
    }

    /// Called when the server serves, with what a successor would get.
    pub fn serves(
        &self,
        host: &dyn UpgradeHost,
        holdings: Vec<Holding>,
        successor: Successor,
        quiet: bool,
        status: &str,
    ) {
        let estate = Estate::new(holdings, successor, quiet);
        *lock(&self.estate) = Some(Arc::new(estate));
        // An order may have arrived in the meantime.
        if host.present() > Order::Serve {
            lock(&self.estate).take();
        } else {
            self.is_ready(status);
        }
    }

    /// Handles a new order. On shutdown, sockets must be closed, and no longer be kept for a
    /// successor.
    pub fn ordered(&self, order: Order) {
        if order <= Order::Serve {
            return;
        }
        let has_served = lock(&self.estate).take().is_some();
        // The manager no longer considers a process with a successor the service.
        self.is_ending(has_served && order != Order::Leave);
    }

    /// Records a reload request, so that a successor that is starting also reloads. Returns whether
    /// another process has taken over: the request must then be sent to that process.
    pub fn reload_asked(&self, host: &dyn UpgradeHost) -> bool {
        // The order matters: an upgrade gives `Order::Leave` before it reads this flag, so the
        // request is seen by at least one process.
        self.reload_asked.store(true, Ordering::SeqCst);
        host.present() == Order::Leave
    }

    /// Waits until an upgrade in progress has been abandoned: its successor must not outlive an
    /// order to stop.
    pub fn finish(&self) {
        drop(lock(&self.under_way));
    }
}

/// Locks one of the values above.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves none of them partially updated.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
