//! The state that a server stores for upgrades and for its service manager.

use crate::host::UpgradeHost;
use crate::listener::ListenerFds;
use crate::notify_state::NotifyState;
use crate::options::UpgradeOptions;
use crate::service_manager::ServiceManager;
use crate::upgrade::HandoverState;
use crate::watchdog::Watchdog;
use peregrine_server::Lifecycle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The state that a server stores for upgrades and for its service manager.
#[derive(Debug, Default)]
pub struct RestartState {
    /// Locked while an upgrade is in progress.
    pub(crate) upgrade_lock: Mutex<()>,
    /// What a successor needs; present while the server serves.
    pub(crate) handover: Mutex<Option<Arc<HandoverState>>>,
    pub(crate) service_manager: OnceLock<Option<ServiceManager>>,
    pub(crate) notify_state: Mutex<NotifyState>,
    /// Whether a reload was requested since the last upgrade began: its successor must then reload.
    pub(crate) is_reload_requested: AtomicBool,
}

impl RestartState {
    /// Starts reporting to the service manager, if there is one.
    pub fn enable_notifications(&self) {
        self.service_manager.get_or_init(ServiceManager::from_environment);
    }

    pub(crate) fn service_manager(&self) -> Option<&ServiceManager> {
        self.service_manager.get().and_then(Option::as_ref)
    }

    /// Whether SIGUSR2 upgrades the server.
    #[must_use]
    pub fn upgrades_on_sigusr2(&self) -> bool {
        lock(&self.handover).as_ref().is_some_and(|handover| handover.upgrades_on_sigusr2())
    }

    /// Whether the server serves and prints nothing to the terminal.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        lock(&self.handover).as_ref().is_some_and(|handover| handover.quiet)
    }

    /// Creates a watchdog, if the service manager requests one and receives reports.
    #[must_use]
    pub fn watchdog(&self) -> Option<Watchdog> {
        self.service_manager().and_then(|_| Watchdog::from_environment())
    }

    /// Called when the server starts serving. Stores what a successor needs.
    pub fn set_serving(
        &self,
        host: &dyn UpgradeHost,
        listener_fds: Vec<ListenerFds>,
        options: UpgradeOptions,
        quiet: bool,
        status: &str,
    ) {
        let handover = HandoverState::new(listener_fds, options, quiet);
        *lock(&self.handover) = Some(Arc::new(handover));
        // The lifecycle may have changed in the meantime.
        if host.lifecycle() > Lifecycle::Serving {
            lock(&self.handover).take();
        } else {
            self.notify_ready(status);
        }
    }

    /// Handles a change of the lifecycle. On shutdown, the sockets are no longer kept open for a
    /// successor, because they must be closed.
    pub fn on_lifecycle_change(&self, lifecycle: Lifecycle) {
        if lifecycle <= Lifecycle::Serving {
            return;
        }
        let has_served = lock(&self.handover).take().is_some();
        // The manager no longer considers a process with a successor the service.
        self.notify_stopping(has_served && lifecycle != Lifecycle::HandingOver);
    }

    /// Makes a successor that is starting reload once it serves, because it may already have read
    /// its files. Returns whether a successor has taken over: the operator must then send the
    /// request to that process.
    pub fn request_successor_reload(&self, host: &dyn UpgradeHost) -> bool {
        // The order matters: an upgrade sets `Lifecycle::HandingOver` before it reads this flag,
        // so the request is seen by at least one process.
        self.is_reload_requested.store(true, Ordering::SeqCst);
        host.lifecycle() == Lifecycle::HandingOver
    }

    /// Waits until an upgrade in progress has been abandoned: its successor must not survive a
    /// shutdown request.
    pub fn finish(&self) {
        drop(lock(&self.upgrade_lock));
    }
}

/// Locks a mutex of [`RestartState`], even if it is poisoned.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Safe, because a panic does not leave any of these values partially updated.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
