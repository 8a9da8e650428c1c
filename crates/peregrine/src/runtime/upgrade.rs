//! Upgrades in place, at an order of the program or at a signal.

#[cfg(all(target_os = "linux", feature = "restart"))]
use crate::runtime::console::complain;
use crate::runtime::handle::Handle;
#[cfg(all(target_os = "linux", feature = "restart"))]
use peregrine_restart::UpgradeError;
#[cfg(all(target_os = "linux", feature = "restart"))]
use std::thread;

#[cfg(all(target_os = "linux", feature = "restart"))]
impl Handle {
    /// Upgrades in place: starts the program again, hands it the listening sockets, and shuts this
    /// server down in order as soon as the successor serves. See [`restart`](crate::restart).
    ///
    /// It returns when that is so, with the successor's process id, or when the successor is given up.
    /// So it blocks: inside of a handler, call it by [`offload`](crate::offload()).
    ///
    /// # Errors
    /// There was no upgrade, and the server goes on unless it was ordered to end.
    pub fn upgrade(&self) -> Result<u32, UpgradeError> {
        self.restart().upgrade(self)
    }

    /// The same for who cannot wait, such as a signal.
    pub(crate) fn upgrade_beside(&self) {
        let handle = self.clone();
        let upgrade = move || {
            let quiet = handle.restart().is_quiet();
            if let Err(error) = handle.upgrade() {
                complain(&format!("peregrine: no upgrade: {error}"), quiet);
            }
        };
        let name = "peregrine-upgrade".to_owned();
        if let Err(error) = thread::Builder::new().name(name).spawn(upgrade) {
            complain(&format!("peregrine: no upgrade: there is no thread for it: {error}"), false);
        }
    }
}

#[cfg(all(unix, not(all(target_os = "linux", feature = "restart"))))]
impl Handle {
    pub(crate) fn upgrade_beside(&self) {
        tracing::warn!(target: "peregrine", "this program is built without upgrades");
    }
}
