//! Upgrades in place, requested by the program or by a signal.

#[cfg(all(target_os = "linux", feature = "restart"))]
use crate::console::report_error;
use crate::handle::ServerHandle;
#[cfg(all(target_os = "linux", feature = "restart"))]
use peregrine_restart::UpgradeError;
#[cfg(all(target_os = "linux", feature = "restart"))]
use std::thread;

#[cfg(all(target_os = "linux", feature = "restart"))]
impl ServerHandle {
    /// Upgrades in place: starts the program again, passes the listening sockets to it, and shuts
    /// down this server gracefully once the successor serves. See [`restart`](peregrine_restart).
    ///
    /// Blocks until the successor serves or the upgrade has failed, and returns the successor's
    /// process id. In a handler, call it with [`spawn_blocking`](crate::spawn_blocking()).
    ///
    /// # Errors
    /// The upgrade failed. The server keeps serving, unless a shutdown was requested.
    pub fn upgrade(&self) -> Result<u32, UpgradeError> {
        self.restart_state().upgrade(self)
    }

    /// Upgrades on a new thread, for callers that must not block, such as the signal thread.
    pub(crate) fn spawn_upgrade(&self) {
        let handle = self.clone();
        let upgrade = move || {
            let quiet = handle.restart_state().is_quiet();
            if let Err(error) = handle.upgrade() {
                report_error(&format!("peregrine: no upgrade: {error}"), quiet);
            }
        };
        let name = "peregrine-upgrade".to_owned();
        if let Err(error) = thread::Builder::new().name(name).spawn(upgrade) {
            report_error(&format!("peregrine: no upgrade: cannot start a thread: {error}"), false);
        }
    }
}

#[cfg(all(unix, not(all(target_os = "linux", feature = "restart"))))]
impl ServerHandle {
    /// Logs that upgrades are not available.
    pub(crate) fn spawn_upgrade(&self) {
        tracing::warn!(target: "peregrine", "this program was built without upgrades");
    }
}
