//! Reports reloads, upgrades and the end of the server to the service manager.
//!
//! Reloads and an upgrade can be in progress at the same time. Each reports its start, since the
//! manager waits for that after requesting one (`Type=notify-reload`). The server is reported ready
//! again when the last of them has completed. A process that has a successor or is stopping reports
//! nothing more: the manager would take the report for the successor's.

use crate::restart::{RestartState, lock};
use std::sync::Arc;

/// The state of the reports to the manager.
#[derive(Debug, Default)]
pub(crate) struct NotifyState {
    stage: NotifyStage,
    /// Reloads and upgrades that were reported as started, but not yet as completed.
    in_progress: usize,
    /// The status while nothing is in progress.
    status: String,
    /// The status to report instead, because a reload or an upgrade has failed.
    failed: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NotifyStage {
    #[default]
    Starting,
    Serving,
    Stopped,
}

/// A reload in progress, until this is dropped.
#[derive(Debug)]
#[must_use = "the reload completes when this is dropped"]
pub struct ReloadGuard {
    /// Notified when the reload completes, if its start was reported.
    restart: Option<Arc<RestartState>>,
    failed: Option<String>,
    /// Reloads that complete together with this one.
    _joined: Vec<Self>,
}

impl ReloadGuard {
    /// Makes `other` complete together with this reload.
    pub fn join(&mut self, other: Self) {
        self._joined.push(other);
    }

    /// Marks the reload as failed. `text` becomes the status shown by the service manager.
    pub fn set_failed(&mut self, text: String) {
        self.failed = Some(text);
    }
}

impl Drop for ReloadGuard {
    fn drop(&mut self) {
        if let Some(restart) = &self.restart {
            restart.notify_end(self.failed.take());
        }
    }
}

impl RestartState {
    /// Reports the start of a reload.
    pub fn begin_reload(this: &Arc<Self>) -> ReloadGuard {
        let is_told = this.notify_begin("reloading");
        let restart = is_told.then(|| Arc::clone(this));
        ReloadGuard { restart, failed: None, _joined: Vec::new() }
    }

    /// Reports the start of a reload or an upgrade. Returns whether its completion must be
    /// reported.
    pub(crate) fn notify_begin(&self, status: &str) -> bool {
        let Some(manager) = self.service_manager() else { return false };
        // Held during the report, so that reports are sent in order.
        let mut telling = lock(&self.notify_state);
        let is_serving = telling.stage == NotifyStage::Serving;
        if is_serving {
            telling.in_progress += 1;
            manager.reloading(status);
        }
        is_serving
    }

    /// Reports the completion of a reload or an upgrade whose start was reported. `failed` is the
    /// status to show if it failed.
    pub(crate) fn notify_end(&self, failed: Option<String>) {
        let Some(manager) = self.service_manager() else { return };
        let mut telling = lock(&self.notify_state);
        telling.in_progress = telling.in_progress.saturating_sub(1);
        telling.failed = failed.or(telling.failed.take());
        if telling.stage == NotifyStage::Serving && telling.in_progress == 0 {
            let status = telling.failed.take().unwrap_or_else(|| telling.status.clone());
            manager.ready(&status);
        }
    }

    /// Reports that the server serves.
    pub(crate) fn notify_ready(&self, status: &str) {
        let Some(manager) = self.service_manager() else { return };
        let mut telling = lock(&self.notify_state);
        if telling.stage == NotifyStage::Starting {
            telling.stage = NotifyStage::Serving;
            status.clone_into(&mut telling.status);
            manager.ready(status);
        }
    }

    /// Reports that another process is the service from now on.
    pub(crate) fn notify_main_pid(&self, process: u32) {
        let mut telling = lock(&self.notify_state);
        telling.stage = NotifyStage::Stopped;
        if let Some(manager) = self.service_manager() {
            manager.main_pid(process, "serving");
        }
    }

    /// Ends reporting. If `is_told`, first reports that the server is stopping, unless the manager
    /// already knows of a successor.
    pub(crate) fn notify_stopping(&self, is_told: bool) {
        let mut telling = lock(&self.notify_state);
        let before = std::mem::replace(&mut telling.stage, NotifyStage::Stopped);
        if let (true, Some(manager)) =
            (is_told && before != NotifyStage::Stopped, self.service_manager())
        {
            manager.stopping("stopping after the requests in progress");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service_manager::ServiceManager;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    /// A server, and the socket of its service manager.
    fn managed(name: &str) -> (Arc<RestartState>, UnixDatagram) {
        let name = format!("peregrine-telling-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let socket = UnixDatagram::bind_addr(&address).expect("a new name");
        socket.set_nonblocking(true).expect("non-blocking mode");
        let restart = RestartState::default();
        let manager = ServiceManager::from_address(format!("@{name}").as_ref()).expect("a name");
        restart.service_manager.set(Some(manager)).expect("no manager is set yet");
        (Arc::new(restart), socket)
    }

    /// The messages received since the last call, without their timestamps.
    fn told(socket: &UnixDatagram) -> Vec<String> {
        let (mut all, mut bytes) = (Vec::new(), [0; 1024]);
        while let Ok(length) = socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let lines = text.lines().filter(|line| !line.starts_with("MONOTONIC_USEC="));
            all.push(lines.collect::<Vec<_>>().join(" "));
        }
        all
    }

    const BEGINS: &str = "RELOADING=1 STATUS=reloading";

    #[test]
    fn a_reload_tells_its_beginning_and_its_end_and_nothing_before_the_server_serves() {
        let (restart, socket) = managed("reload");
        drop(RestartState::begin_reload(&restart));
        assert!(told(&socket).is_empty(), "a report would end the startup");
        restart.notify_ready("whole");
        assert_eq!(told(&socket), ["READY=1 STATUS=whole"]);
        let one = RestartState::begin_reload(&restart);
        assert_eq!(told(&socket), [BEGINS]);
        drop(one);
        assert_eq!(told(&socket), ["READY=1 STATUS=whole"]);
        let mut one = RestartState::begin_reload(&restart);
        one.set_failed("unchanged".to_owned());
        drop(one);
        assert_eq!(told(&socket), [BEGINS, "READY=1 STATUS=unchanged"]);
    }

    #[test]
    fn a_server_is_ready_when_the_last_of_what_is_under_way_is_over() {
        let (restart, socket) = managed("both");
        restart.notify_ready("whole");
        assert!(restart.notify_begin("starting its successor"));
        let reloads = [RestartState::begin_reload(&restart), RestartState::begin_reload(&restart)];
        assert_eq!(told(&socket).len(), 4);
        drop(reloads);
        assert!(told(&socket).is_empty(), "the upgrade is in progress");
        let mut late = RestartState::begin_reload(&restart);
        late.join(RestartState::begin_reload(&restart));
        restart.notify_end(Some("it failed".to_owned()));
        assert_eq!(told(&socket), [BEGINS, BEGINS], "the reloads are in progress");
        drop(late);
        assert_eq!(told(&socket), ["READY=1 STATUS=it failed"], "the failure is reported");
        drop(RestartState::begin_reload(&restart));
        assert_eq!(told(&socket), [BEGINS, "READY=1 STATUS=whole"], "the failure is reported once");
    }

    #[test]
    fn who_has_a_successor_or_ends_says_nothing_more() {
        let (restart, socket) = managed("successor");
        restart.notify_ready("whole");
        assert!(restart.notify_begin("starting its successor"));
        let reload = RestartState::begin_reload(&restart);
        restart.notify_main_pid(7);
        told(&socket);
        drop(reload);
        drop(RestartState::begin_reload(&restart));
        restart.notify_stopping(false);
        assert!(told(&socket).is_empty());

        let (restart, socket) = managed("end");
        restart.notify_ready("whole");
        let reload = RestartState::begin_reload(&restart);
        restart.notify_stopping(true);
        drop(reload);
        let told = told(&socket);
        assert!(told.len() == 3 && told[2].starts_with("STOPPING=1 "), "{told:?}");
    }
}
