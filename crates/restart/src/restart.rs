//! What a server keeps for its successor and its service manager.

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

/// What a server keeps for its successor and its service manager.
#[derive(Debug, Default)]
pub struct Restart {
    /// Held while an upgrade is under way.
    pub(crate) under_way: Mutex<()>,
    /// There is one while the server serves.
    pub(crate) estate: Mutex<Option<Arc<Estate>>>,
    pub(crate) manager: OnceLock<Option<Manager>>,
    pub(crate) telling: Mutex<Telling>,
    /// Was there an order to read settings again since the last upgrade began?
    pub(crate) reload_asked: AtomicBool,
}

impl Restart {
    /// From now on the service manager is told of the server, if there is one.
    pub fn tell_manager(&self) {
        self.manager.get_or_init(Manager::from_environment);
    }

    pub(crate) fn manager(&self) -> Option<&Manager> {
        self.manager.get().and_then(Option::as_ref)
    }

    /// Does SIGUSR2 upgrade the server?
    #[must_use]
    pub fn is_by_signal(&self) -> bool {
        lock(&self.estate).as_ref().is_some_and(|estate| estate.is_by_signal())
    }

    /// Whether a server that serves prints nothing on the terminal.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        lock(&self.estate).as_ref().is_some_and(|estate| estate.quiet)
    }

    /// A watchdog, if the service manager wants one and is told of the server.
    #[must_use]
    pub fn watchdog(&self) -> Option<Watchdog> {
        self.manager().and_then(|_| Watchdog::from_environment())
    }

    /// The server serves, and this is what a successor would get.
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
        // An order may have come in between.
        if host.present() > Order::Serve {
            lock(&self.estate).take();
        } else {
            self.is_ready(status);
        }
    }

    /// There is a new order: sockets that are to close must not stay open for a successor.
    pub fn ordered(&self, order: Order) {
        if order <= Order::Serve {
            return;
        }
        let has_served = lock(&self.estate).take().is_some();
        // For its manager a process that has a successor is not the service any more.
        self.is_ending(has_served && order != Order::Leave);
    }

    /// There is an order to read settings again: a successor that is on its way hears of it. Says whether another process
    /// serves in place of this one, whose order it is then.
    pub fn reload_asked(&self, host: &dyn UpgradeHost) -> bool {
        // In this order: who leaves looks at the one after it has done the other.
        self.reload_asked.store(true, Ordering::SeqCst);
        host.present() == Order::Leave
    }

    /// Waits until an upgrade that is under way was given up: its successor must not outlive an order to
    /// end.
    pub fn finish(&self) {
        drop(lock(&self.under_way));
    }
}

/// Locks what no panic leaves half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
