//! Reports reloads, upgrades and the end of the server to the service manager.
//!
//! Reloads and an upgrade can be in progress at the same time. Each reports its start, since the
//! manager waits for that report after it has requested a reload (`Type=notify-reload`). The server
//! reports that it is ready again when the last of them has completed. A process that has handed
//! over or is stopping sends no more reports: the manager would attribute them to the successor.

use crate::restart::{RestartState, lock};
use std::sync::Arc;

/// The state of the reports to the manager.
#[derive(Debug, Default)]
pub(crate) struct NotifyState {
    stage: NotifyStage,
    /// The number of reloads and upgrades that were reported as started, but not yet as completed.
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
    /// The state to notify when the reload completes, if its start was reported.
    restart: Option<Arc<RestartState>>,
    /// The status to report if the reload has failed.
    failed: Option<String>,
    /// Reloads that complete together with this one.
    joined: Vec<Self>,
}

impl ReloadGuard {
    /// Makes `other` complete together with this reload.
    pub fn join(&mut self, other: Self) {
        self.joined.push(other);
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
        let is_reported = this.notify_begin("reloading");
        let restart = is_reported.then(|| Arc::clone(this));
        ReloadGuard { restart, failed: None, joined: Vec::new() }
    }

    /// Reports the start of a reload or an upgrade. Returns whether its completion must be
    /// reported.
    pub(crate) fn notify_begin(&self, status: &str) -> bool {
        let Some(manager) = self.service_manager() else { return false };
        // Held during the report, so that reports are sent in order.
        let mut state = lock(&self.notify_state);
        let is_serving = state.stage == NotifyStage::Serving;
        if is_serving {
            state.in_progress += 1;
            manager.notify_reloading(status);
        }
        is_serving
    }

    /// Reports the completion of a reload or an upgrade whose start was reported. `failed` is the
    /// status to show if it failed.
    pub(crate) fn notify_end(&self, failed: Option<String>) {
        let Some(manager) = self.service_manager() else { return };
        let mut state = lock(&self.notify_state);
        state.in_progress = state.in_progress.saturating_sub(1);
        state.failed = failed.or(state.failed.take());
        if state.stage == NotifyStage::Serving && state.in_progress == 0 {
            let status = state.failed.take().unwrap_or_else(|| state.status.clone());
            manager.notify_ready(&status);
        }
    }

    /// Reports that the server serves.
    pub(crate) fn notify_ready(&self, status: &str) {
        let Some(manager) = self.service_manager() else { return };
        let mut state = lock(&self.notify_state);
        if state.stage == NotifyStage::Starting {
            state.stage = NotifyStage::Serving;
            status.clone_into(&mut state.status);
            manager.notify_ready(status);
        }
    }

    /// Reports that another process is the service from now on.
    pub(crate) fn notify_main_pid(&self, pid: u32) {
        let mut state = lock(&self.notify_state);
        state.stage = NotifyStage::Stopped;
        if let Some(manager) = self.service_manager() {
            manager.notify_main_pid(pid, "serving");
        }
    }

    /// Ends reporting. If `report`, first reports that the server is stopping, unless the manager
    /// already knows of a successor.
    pub(crate) fn notify_stopping(&self, report: bool) {
        let mut state = lock(&self.notify_state);
        let previous = std::mem::replace(&mut state.stage, NotifyStage::Stopped);
        if let (true, Some(manager)) =
            (report && previous != NotifyStage::Stopped, self.service_manager())
        {
            manager.notify_stopping("stopping after the requests in progress");
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
    fn managed_server(name: &str) -> (Arc<RestartState>, UnixDatagram) {
        let name = format!("peregrine-notify-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("the name is short enough");
        let socket = UnixDatagram::bind_addr(&address).expect("the name is unused");
        socket.set_nonblocking(true).expect("the socket supports non-blocking mode");
        let restart = RestartState::default();
        let manager = ServiceManager::from_address(format!("@{name}").as_ref())
            .expect("the address is valid");
        restart.service_manager.set(Some(manager)).expect("no manager is set yet");
        (Arc::new(restart), socket)
    }

    /// The messages received since the last call, without their timestamps.
    fn received_messages(socket: &UnixDatagram) -> Vec<String> {
        let (mut messages, mut bytes) = (Vec::new(), [0; 1024]);
        while let Ok(length) = socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            let lines = text.lines().filter(|line| !line.starts_with("MONOTONIC_USEC="));
            messages.push(lines.collect::<Vec<_>>().join(" "));
        }
        messages
    }

    const RELOADING: &str = "RELOADING=1 STATUS=reloading";

    #[test]
    fn a_reload_reports_its_start_and_end_only_while_serving() {
        let (restart, socket) = managed_server("reload");
        drop(RestartState::begin_reload(&restart));
        assert!(received_messages(&socket).is_empty(), "a report would end the startup");
        restart.notify_ready("serving");
        assert_eq!(received_messages(&socket), ["READY=1 STATUS=serving"]);
        let reload = RestartState::begin_reload(&restart);
        assert_eq!(received_messages(&socket), [RELOADING]);
        drop(reload);
        assert_eq!(received_messages(&socket), ["READY=1 STATUS=serving"]);
        let mut reload = RestartState::begin_reload(&restart);
        reload.set_failed("unchanged".to_owned());
        drop(reload);
        assert_eq!(received_messages(&socket), [RELOADING, "READY=1 STATUS=unchanged"]);
    }

    #[test]
    fn ready_is_reported_when_all_reloads_and_upgrades_have_ended() {
        let (restart, socket) = managed_server("both");
        restart.notify_ready("serving");
        assert!(restart.notify_begin("starting its successor"));
        let reloads = [RestartState::begin_reload(&restart), RestartState::begin_reload(&restart)];
        assert_eq!(received_messages(&socket).len(), 4);
        drop(reloads);
        assert!(received_messages(&socket).is_empty(), "the upgrade is in progress");
        let mut late_reload = RestartState::begin_reload(&restart);
        late_reload.join(RestartState::begin_reload(&restart));
        restart.notify_end(Some("it failed".to_owned()));
        assert_eq!(
            received_messages(&socket),
            [RELOADING, RELOADING],
            "the reloads are in progress"
        );
        drop(late_reload);
        assert_eq!(
            received_messages(&socket),
            ["READY=1 STATUS=it failed"],
            "the failure is reported"
        );
        drop(RestartState::begin_reload(&restart));
        assert_eq!(
            received_messages(&socket),
            [RELOADING, "READY=1 STATUS=serving"],
            "the failure is reported once"
        );
    }

    #[test]
    fn nothing_is_reported_after_a_hand_over_or_a_stop() {
        let (restart, socket) = managed_server("successor");
        restart.notify_ready("serving");
        assert!(restart.notify_begin("starting its successor"));
        let reload = RestartState::begin_reload(&restart);
        restart.notify_main_pid(7);
        received_messages(&socket);
        drop(reload);
        drop(RestartState::begin_reload(&restart));
        restart.notify_stopping(false);
        assert!(received_messages(&socket).is_empty());

        let (restart, socket) = managed_server("end");
        restart.notify_ready("serving");
        let reload = RestartState::begin_reload(&restart);
        restart.notify_stopping(true);
        drop(reload);
        let messages = received_messages(&socket);
        assert!(messages.len() == 3 && messages[2].starts_with("STOPPING=1 "), "{messages:?}");
    }
}
